"""Archives that would write where they must not."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.environments.build import declared
from kvsuite.engine.environments.recipe import Sources
from kvsuite.engine.environments.unpack import unpack
from kvsuite.errors import EnvironmentUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SDIST = Sources("sdist", ("toy",))
WHEEL = Sources("wheel", ("toy",))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    made.size = len(b"evil = 1\n") if kind == tarfile.REGTYPE else 0
    return made


def write_tar(path: Path, members: Sequence[tarfile.TarInfo]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for one in [member("toy-1.0/PKG-INFO"), member("toy-1.0/toy/__init__.py"), *members]:
            archive.addfile(one, io.BytesIO(b"evil = 1\n"))


@pytest.mark.parametrize(
    ("evil", "said"),
    [
        (member("toy-1.0/toy/../../../evil.py"), "lies outside"),
        (member("../toy/evil.py"), "lies outside"),
        (member("/toy/evil.py"), "lies outside"),
        (member("toy-1.0/toy/evil.py", tarfile.SYMTYPE, "/etc/passwd"), "is no regular file"),
        (member("toy-1.0/toy/evil.py", tarfile.LNKTYPE, "../../evil"), "is no regular file"),
        (member("toy-1.0/toy/evil.py", tarfile.FIFOTYPE), "is no regular file"),
    ],
    ids=["up", "first-up", "root", "link", "hard-link", "fifo"],
)
def test_a_member_of_a_source_distribution_is_refused(
    tmp_path: Path, evil: tarfile.TarInfo, said: str
) -> None:
    target = tmp_path / "a" / "b" / "target"
    target.mkdir(parents=True)
    write_tar(tmp_path / "toy-1.0.tar.gz", [evil])

    with pytest.raises(EnvironmentUnavailable, match=said):
        unpack(tmp_path / "toy-1.0.tar.gz", SDIST, target)
    assert not list(tmp_path.rglob("evil*"))


def test_a_linked_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "outside").mkdir()
    linked = member("toy-1.0/toy/sub", tarfile.SYMTYPE, str(tmp_path / "outside"))
    write_tar(tmp_path / "toy-1.0.tar.gz", [linked, member("toy-1.0/toy/sub/inside.py")])

    unpack(tmp_path / "toy-1.0.tar.gz", SDIST, tmp_path / "target")
    assert not list((tmp_path / "outside").iterdir())
    assert (tmp_path / "target" / "toy" / "sub" / "inside.py").is_file()


@pytest.mark.parametrize("evil", ["toy/../../../evil.py", "toy/sub/../../evil.py"])
def test_a_member_of_a_wheel_is_refused(tmp_path: Path, evil: str) -> None:
    (tmp_path / "target").mkdir()
    with zipfile.ZipFile(tmp_path / "toy-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("toy-1.0.dist-info/METADATA", "Name: toy\n")
        archive.writestr(evil, "evil = 1\n")

    with pytest.raises(EnvironmentUnavailable, match="lies outside"):
        unpack(tmp_path / "toy-1.0-py3-none-any.whl", WHEEL, tmp_path / "target")
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize(
    ("name", "sources"), [("toy-1.0.tar.gz", SDIST), ("toy-1.0-py3-none-any.whl", WHEEL)]
)
def test_a_cut_archive_is_called_damaged(tmp_path: Path, name: str, sources: Sources) -> None:
    write_tar(tmp_path / name, [])
    cut = (tmp_path / name).read_bytes()[:-60]
    (tmp_path / name).write_bytes(cut)

    with pytest.raises(EnvironmentUnavailable, match=f"{name} is damaged"):
        unpack(tmp_path / name, sources, tmp_path / "target")


def test_declared_requirements_keep_their_pins() -> None:
    text = "\n".join(
        [
            "Name: engine",
            "Requires-Dist: Fast_API[all]<2,>=1",
            "Requires-Dist: torch==2.14.0",
            "Requires-Dist: near (>=3)",
            'Requires-Dist: one==1; platform_machine == "x86_64"',
            'Requires-Dist: two==2; extra == "audio"',
            "Requires-Dist: three",
        ]
    )
    found = declared(text, ("fast-api", "near", "one", "two", "three"))
    assert found == ["Fast_API<2,>=1", "near(>=3)", 'one==1; platform_machine == "x86_64"', "three"]
