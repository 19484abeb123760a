"""Workers and cards: how many ``-n auto`` means, and which card a worker sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kvsuite.plugin.options import SETTINGS, in_use, read_settings

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

WORKER_VARIABLE = "PYTEST_XDIST_WORKER"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Pin a worker before any conftest can import torch."""
    options = early_config.known_args_namespace
    if WORKER_VARIABLE in os.environ and in_use(options, args, early_config.rootpath):
        prepare_worker(os.environ, options.device or "auto")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Pin a worker whose plugin came by a conftest, which is too late for the hook above."""
    if WORKER_VARIABLE in os.environ and in_use(config.option, config.args, config.rootpath):
        prepare_worker(os.environ, config.getoption("device") or "auto")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return visible cards times workers per card; without a card, leave it to pytest-xdist."""
    if SETTINGS not in config.stash:
        config.stash[SETTINGS] = read_settings(config)
    settings = config.stash[SETTINGS]
    if not settings.active or settings.device == "cpu":
        return None
    from kvsuite.device.select import visible_gpus

    cards = 1 if settings.device.startswith("cuda:") else visible_gpus()
    return cards * settings.workers_per_gpu or None


def prepare_worker(environ: MutableMapping[str, str], device: str) -> None:
    """Give a worker one thread and one card; a worker that has its card keeps it."""
    environ.setdefault("OMP_NUM_THREADS", "1")
    if device == "cpu":
        return
    from kvsuite.device.select import gpu_ids

    cards = gpu_ids(environ)
    if cards and len(cards) > 1:
        environ["CUDA_VISIBLE_DEVICES"] = card_for(environ[WORKER_VARIABLE], cards, device)


def card_for(worker: str, cards: Sequence[str], device: str) -> str:
    """Return the card of one worker, an entry of the caller's own list.

    >>> card_for("gw3", ["2", "5"], "auto"), card_for("gw3", ["2", "5"], "cuda:0")
    ('5', '2')
    """
    _, asked, index = device.partition(":")
    if asked:
        return cards[int(index)] if int(index) < len(cards) else ""
    digits = "".join(filter(str.isdigit, worker)) or "0"
    return cards[int(digits) % len(cards)]
