"""How many workers ``-n auto`` starts, and which card each one sees."""

from __future__ import annotations

import pytest

from kvsuite.device import select
from kvsuite.plugin.devices import card_for, prepare_worker, pytest_xdist_auto_num_workers

WORKER = "PYTEST_XDIST_WORKER"


def test_a_worker_gets_one_card_of_the_callers_own_list() -> None:
    environ = {WORKER: "gw1", "CUDA_VISIBLE_DEVICES": "2,3"}
    prepare_worker(environ, "auto")
    assert (environ["CUDA_VISIBLE_DEVICES"], environ["OMP_NUM_THREADS"]) == ("3", "1")


def test_a_worker_that_has_its_card_keeps_it() -> None:
    environ = {WORKER: "gw1", "CUDA_VISIBLE_DEVICES": "2,3,5"}
    prepare_worker(environ, "cuda")
    prepare_worker(environ, "cuda")
    assert environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_more_workers_than_cards_share_them_in_turn() -> None:
    seen = [card_for(f"gw{worker}", ["7", "9"], "auto") for worker in range(4)]
    assert seen == ["7", "9", "7", "9"]


def test_a_card_asked_for_by_number_is_given_to_every_worker() -> None:
    for worker in ("gw0", "gw1"):
        environ = {WORKER: worker, "CUDA_VISIBLE_DEVICES": "4,6"}
        prepare_worker(environ, "cuda:1")
        assert environ["CUDA_VISIBLE_DEVICES"] == "6"


def test_without_cards_or_on_the_cpu_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_installed_gpus", lambda root: 0)
    environ = {WORKER: "gw0"}
    prepare_worker(environ, "auto")
    assert environ == {WORKER: "gw0", "OMP_NUM_THREADS": "1"}
    listed = {WORKER: "gw0", "CUDA_VISIBLE_DEVICES": "2,3"}
    prepare_worker(listed, "cpu")
    assert listed["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_threads_that_were_asked_for_are_kept() -> None:
    environ = {WORKER: "gw0", "OMP_NUM_THREADS": "4"}
    prepare_worker(environ, "cpu")
    assert environ["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("args", "cards", "expected"),
    [
        ([], 3, 3),
        (["--workers-per-gpu=2"], 3, 6),
        (["--device=cuda:1", "--workers-per-gpu=4"], 3, 4),
        (["--device=cpu"], 3, None),
        ([], 0, None),
    ],
    ids=["one a card", "two a card", "one card", "cpu", "no card"],
)
def test_auto_means_cards_times_workers(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    cards: int,
    expected: int | None,
) -> None:
    monkeypatch.setattr(select, "visible_gpus", lambda *_: cards)
    config = project.parseconfig("--engine=reference", *args)
    answers = config.hook.pytest_xdist_auto_num_workers.get_hookimpls()
    mine = next(impl for impl in answers if "kvsuite" in impl.plugin_name)
    assert mine.function(config) == expected
    assert answers[-1] is mine  # asked first


def test_a_session_that_is_not_the_suites_keeps_its_workers(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "visible_gpus", lambda *_: 3)
    (project.path / "cases" / "test_suite_is_complete.py").unlink()
    assert pytest_xdist_auto_num_workers(project.parseconfig()) is None
    assert pytest_xdist_auto_num_workers(project.parseconfig("--engine=acme")) == 3
