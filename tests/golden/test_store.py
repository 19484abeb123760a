"""Goldens on disk: layout, whole files, baselines, orphans, and every way the disk can fail."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import GoldenError
from kvsuite.golden import files
from kvsuite.golden.judge import Verdict
from kvsuite.golden.key import engine_hash
from kvsuite.golden.store import GoldenStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.golden.codec import Observed


def _tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_the_layout_on_disk(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    shown = engine_hash(observe().engine)[:8]
    path = store.write(observe())
    assert _tree(store.root) == [
        "acme/BASELINE",
        f"acme/{shown}/MANIFEST.json",
        f"acme/{shown}/{path.name}",
    ]
    manifest = json.loads((path.parent / "MANIFEST.json").read_text())
    assert manifest == {"name": "acme", "version": "1.0", "adapter_version": 1, "effective": {"cow": "lazy"}}
    assert (store.root / "acme/BASELINE").read_text() == f"{shown}\n"


def test_any_writer_writes_the_same_bytes(tmp_path: Path, observe: Callable[..., Observed]) -> None:
    one, two = GoldenStore(tmp_path / "one"), GoldenStore(tmp_path / "two")
    cases = [f"conformance/test_x.py::test_{n}" for n in range(3)]
    for case in cases:
        one.write(observe(case=case))
    for case in reversed(cases):
        two.write(observe(case=case, num_blocks=8))
    assert _tree(one.root) == _tree(two.root)
    assert all((one.root / f).read_bytes() == (two.root / f).read_bytes() for f in _tree(one.root))


def test_an_update_leaves_a_golden_that_says_the_same(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    path = store.write(observe(provenance={"device": "cpu"}))
    before = path.read_bytes()
    store.write(observe(provenance={"device": "cuda"}))
    assert path.read_bytes() == before


def test_an_update_replaces_a_damaged_golden(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    path = store.write(observe())
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(GoldenError, match=r"acme/.*, line \d+: the file ends in the middle"):
        store.judge(observe())
    store.write(observe())
    assert path.read_text() == whole


def test_a_renamed_golden_is_refused(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    path = store.write(observe())
    other = path.with_name(path.name.replace(path.stem[-8:], "0123abcd"))
    path.rename(other)
    with pytest.raises(GoldenError, match=r"renamed or copied: call it .*\.chat\."):
        store.load(other)


def test_an_edited_manifest_is_refused(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    path = store.write(observe())
    manifest = path.parent / "MANIFEST.json"
    manifest.write_text(manifest.read_text().replace("1.0", "1.1"))
    with pytest.raises(GoldenError, match="was edited"):
        store.judge(observe())
    with pytest.raises(GoldenError, match="restore it from version control"):
        store.write(observe())


def test_the_baseline_moves_only_on_demand(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    old, new = (engine_hash(observe(version=v).engine)[:8] for v in ("1.0", "1.1"))
    store.write(observe(version="1.0"))
    store.write(observe(version="1.1"))
    assert store.baseline("acme") == old
    assert store.set_baseline("acme", new[:4]) == new
    assert store.baseline("acme") == new
    assert store.set_baseline("acme", "1.0") == old, "by version"
    assert store.set_baseline("acme", "1.1") == new
    listed = ", ".join(sorted([rf"{old} \(version 1\.0\)", rf"{new} \(version 1\.1\)"]))
    with pytest.raises(GoldenError, match=rf"'zz' names 0 .* one of {listed}"):
        store.set_baseline("acme", "zz")
    with pytest.raises(GoldenError, match="record goldens first"):
        store.set_baseline("unknown", new)
    assert store.baseline("acme") == new


def test_a_baseline_that_is_not_there_is_an_error(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    store.write(observe())
    (store.root / "acme/BASELINE").write_text("ffffffff\n")
    with pytest.raises(GoldenError, match=r"BASELINE names 'ffffffff'"):
        store.judge(observe(version="2.0"))


def test_the_list_shows_every_golden_and_what_is_wrong_with_it(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    store.write(observe(version="1.0"))
    damaged = store.write(observe(version="1.1"))
    damaged.write_text("{")
    found = {golden.engine_hash: golden for golden in store.list()}
    good = found[engine_hash(observe(version="1.0").engine)[:8]]
    bad = found[damaged.parent.name]
    assert len(found) == 2
    assert good.document is not None
    assert (good.is_baseline, good.document.steps, good.problem) == (True, 4, None)
    assert bad.document is None
    assert "line 1" in str(bad.problem)
    assert store.list("nobody") == ()
    assert GoldenStore(store.root / "nowhere").list() == ()


def test_orphans_are_goldens_of_cases_that_are_gone(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    kept, gone = (store.write(observe(case=case)) for case in ("a.py::test_kept", "a.py::test_gone"))
    assert store.orphans(["a.py::test_kept"]) == (gone,)
    assert store.orphans(["a.py::test_kept", "a.py::test_gone"]) == ()
    assert kept.exists()


def test_superseded_are_goldens_of_a_case_that_it_no_longer_asks_for(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    case = "a.py::test_one"
    first = store.write(observe(case=case, label="old"))
    second = store.write(observe(case=case))
    store.write(observe(case="a.py::test_one_more"))
    folder = store.folder(observe())
    assert store.superseded(folder, case, [f"{folder}/{second.name}"]) == (first,)
    assert store.superseded(folder, case, [f"{folder}/{p.name}" for p in (first, second)]) == ()


_WRITER = """
import sys
from pathlib import Path
from kvsuite.golden.store import GoldenStore, Parcel
root, manifest, *pairs = sys.argv[1:]
for name in pairs:
    text = (Path(root).parent / "parcels" / name).read_text()
    folder = "acme/" + Path(manifest).parent.name
    GoldenStore(Path(root)).save(Parcel(folder, name, text, Path(manifest).read_text()))
"""


def test_two_updates_at_once_give_the_union(tmp_path: Path, observe: Callable[..., Observed]) -> None:
    ready = GoldenStore(tmp_path / "ready")
    names = [ready.write(observe(case=f"a.py::test_{n}")).name for n in range(40)]
    folder = ready.root / ready.folder(observe())
    (tmp_path / "parcels").mkdir()
    for name in names:
        (tmp_path / "parcels" / name).write_bytes((folder / name).read_bytes())
    root, manifest = str(tmp_path / "goldens"), str(folder / "MANIFEST.json")
    halves = (names[:25], names[15:])
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, root, manifest, *half], cwd=_project())
        for half in halves
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert _tree(Path(root)) == _tree(ready.root)
    assert all((Path(root) / f).read_bytes() == (ready.root / f).read_bytes() for f in _tree(ready.root))


def test_an_update_interrupted_before_the_move_loses_nothing(
    store: GoldenStore, observe: Callable[..., Observed], growth: tuple[dict[str, int], ...]
) -> None:
    path = store.write(observe())
    before = path.read_bytes()
    changed = observe(({**growth[0], "hit": 1}, *growth[1:]))

    def killed_before_the_move() -> None:
        Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment, method-assign]
        store.write(changed)

    assert _in_child(killed_before_the_move) == -signal.SIGKILL
    assert path.read_bytes() == before
    assert store.judge(observe()).verdict is Verdict.MATCH
    assert [golden.path for golden in store.list()] == [path]
    store.write(changed)
    assert store.judge(changed).verdict is Verdict.MATCH


def test_a_full_disk_loses_nothing(
    store: GoldenStore, observe: Callable[..., Observed], growth: tuple[dict[str, int], ...]
) -> None:
    path = store.write(observe())
    before = _tree(store.root), path.read_bytes()
    changed = observe(({**growth[0], "hit": 1}, *growth[1:]))

    def on_a_full_disk() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (256, 256))
        with pytest.raises(GoldenError, match=r"cannot write .*\.json: File too large; nothing was changed"):
            store.write(changed)

    assert _in_child(on_a_full_disk) == 0
    assert (_tree(store.root), path.read_bytes()) == before


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder every user can reach; those of pytest are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to be refused")
def test_no_permission_is_an_error_that_says_where(
    observe: Callable[..., Observed], growth: tuple[dict[str, int], ...], open_to_all: Path
) -> None:
    store = GoldenStore(open_to_all / "goldens")
    path = store.write(observe())
    before = _tree(store.root), path.read_bytes()
    changed = observe(({**growth[0], "hit": 1}, *growth[1:]))

    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(GoldenError, match=r"cannot write .*: Permission denied; nothing was changed"):
            store.write(changed)
        with pytest.raises(GoldenError, match=r"cannot make .*: Permission denied; nothing was changed"):
            GoldenStore(store.root / "new").write(changed)

    assert _in_child(as_nobody) == 0
    assert (_tree(store.root), path.read_bytes()) == before


def test_a_file_where_a_folder_should_be(tmp_path: Path, observe: Callable[..., Observed]) -> None:
    (tmp_path / "goldens").write_text("")
    with pytest.raises(GoldenError, match=r"cannot make .*: Not a directory; nothing was changed"):
        GoldenStore(tmp_path / "goldens").write(observe())


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(GoldenError, match=r"cannot read .*x\.json: it is not UTF-8 text"):
        files.read_text(path)


def _project() -> str:
    return str(Path(__file__).parents[2])


def _in_child(act: Callable[[], None]) -> int:
    """Run ``act`` in a forked child; its exit code, 0 where it returned, minus the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads of a worker take no part
        child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
