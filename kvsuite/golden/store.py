"""Goldens on disk: one file a ledger, written whole or not at all.

goldens/<engine>/BASELINE                         the engine hash 8 that unknown ones are held against
goldens/<engine>/<engine hash 8>/MANIFEST.json    the preimage of the hash: same bytes from any writer
goldens/<engine>/<engine hash 8>/<case>.<trace>.<dtype>.<key 8>.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import GoldenError
from kvsuite.golden import codec
from kvsuite.golden.diff import changed_values, compare
from kvsuite.golden.document import Blessed, Document, render
from kvsuite.golden.files import (
    BASELINE,
    MANIFEST,
    folders,
    goldens_in,
    is_there,
    read_manifest,
    read_text,
    write,
)
from kvsuite.golden.judge import Judgement, Verdict, verdict_of
from kvsuite.golden.key import SHOWN, engine_hash, engine_preimage, file_name, golden_key, slug

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from kvsuite.golden.codec import Observed


@dataclass(frozen=True, slots=True)
class Parcel:
    """A golden ready to be written: text only, so that another process can write it."""

    folder: str
    """``<engine>/<engine hash 8>``, below the root."""
    name: str
    text: str
    manifest: str

    @property
    def path(self) -> str:
        """Where the golden lies below the root."""
        return f"{self.folder}/{self.name}"


@dataclass(frozen=True, slots=True)
class StoredGolden:
    """One golden as `GoldenStore.list` shows it; ``problem`` says why it cannot be read."""

    engine: str
    engine_hash: str
    path: Path
    is_baseline: bool
    document: Document | None
    problem: str | None = None


class GoldenStore:
    """The goldens below one folder. Reading never writes; writing never judges.

    **Raises:** every method raises `GoldenError` for a file that cannot be read, or cannot be written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @staticmethod
    def folder(observed: Observed) -> str:
        """Return where goldens of this engine lie below the root: ``<engine>/<engine hash 8>``."""
        return f"{slug(observed.engine.name)}/{engine_hash(observed.engine)[:SHOWN]}"

    def judge(self, observed: Observed) -> Judgement:
        """Hold a ledger against its golden, or against the baseline where the engine hash is unknown."""
        folder, name = self.folder(observed), file_name(observed.question)
        path = f"{folder}/{name}"
        if is_there(self.root / path):
            self._check_manifest(observed, folder)
            self.baseline(observed.engine.name)  # a damaged one is told now, not at the next version
            return self._compared(observed, path, path)
        engine = self.root / slug(observed.engine.name)
        if goldens_in(self.root / folder):
            return _missing(path, "no such file, though this engine has others")
        if not any(goldens_in(other) for other in folders(engine)):
            why = "this engine has no goldens: invariants alone judge it"
            return Judgement(Verdict.UNRECORDED, path, sentence=why)
        baseline = self.baseline(engine.name)
        if baseline is None:
            known = ", ".join(other.name for other in folders(engine))
            why = f"unknown engine hash and no baseline: set one of {known} with `kvsuite golden baseline`"
            return _missing(path, why)
        against = f"{engine.name}/{baseline}/{name}"
        if not is_there(self.root / against):
            return _missing(path, f"unknown engine hash, and the baseline has no such file: {against}")
        return self._compared(observed, path, against)

    def parcel(self, observed: Observed) -> Parcel:
        """Return a ledger as a golden; one that differs from the baseline says so for good."""
        document = msgspec.structs.replace(observed.document(), blessed=self._blessed(observed))
        text = render(document)
        size = len(text.encode())
        if size > codec.MAX_FILE_BYTES:
            raise GoldenError(
                f"{file_name(observed.question)}: {size} bytes in {len(document.pools)} pools, more than "
                f"{codec.MAX_FILE_BYTES}: compare fewer pools or shorten the recipe"
            )
        manifest = json.dumps(engine_preimage(observed.engine), indent=2) + "\n"
        return Parcel(self.folder(observed), file_name(observed.question), text, manifest)

    def write(self, observed: Observed) -> Path:
        """Record a ledger; see `save`."""
        return self.save(self.parcel(observed))

    def save(self, parcel: Parcel) -> Path:
        """Write a golden with its manifest, each whole; one that says the same already stays untouched.

        The first golden of an engine also makes its engine hash the baseline.
        """
        folder, path = self.root / parcel.folder, self.root / parcel.path
        self._write_manifest(folder / MANIFEST, parcel.manifest)
        if not self._says_the_same(path, parcel.text):
            write(path, parcel.text)
        baseline = folder.parent / BASELINE
        if not is_there(baseline):
            write(baseline, folder.name + "\n")
        return path

    def list(self, engine: str | None = None) -> tuple[StoredGolden, ...]:
        """Return every golden, of one engine or of all; damaged ones are listed with their problem."""
        engines = [self.root / slug(engine)] if engine else folders(self.root)
        return tuple(
            self._stored(path, folder)
            for home in engines
            for folder in folders(home)
            for path in goldens_in(folder)
        )

    def orphans(self, cases: Collection[str], engine: str | None = None) -> tuple[Path, ...]:
        """Return goldens whose case is not among ``cases``: nothing compares them any more."""
        return tuple(g.path for g in self.list(engine) if g.document and g.document.case not in cases)

    def superseded(self, folder: str, case: str, compared: Collection[str]) -> tuple[Path, ...]:
        """Return goldens of ``case`` in ``folder`` that are not among ``compared``, paths below the root."""
        return tuple(
            path
            for path in goldens_in(self.root / folder)
            if path.name.startswith(slug(case))
            and f"{folder}/{path.name}" not in compared
            and self.load(path).case == case
        )

    def load(self, path: Path) -> Document:
        """Return one golden, checked against its file name."""
        where = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        document = codec.read(read_text(path), where)
        said = golden_key(document.question)
        if path.stem.rpartition(".")[2] != said:
            raise GoldenError(
                f"{where}: the file holds the golden of key {said}, so it was renamed or copied: call it "
                f"{file_name(document.question)}, or delete it and record again with --update-goldens"
            )
        return document

    def baseline(self, engine: str) -> str | None:
        """Return the shown digits of the engine hash that unknown ones are held against."""
        path = self.root / slug(engine) / BASELINE
        if not is_there(path):
            return None
        shown = read_text(path).strip()
        known = [folder.name for folder in folders(path.parent) if is_there(folder / MANIFEST)]
        if shown not in known:
            raise GoldenError(
                f"{path} names {shown!r}, which has no {MANIFEST} beside it: name one of "
                f"{', '.join(known)} with `kvsuite golden baseline`"
            )
        return shown

    def damaged_baselines(self, engine: str | None = None) -> tuple[str, ...]:
        """Return what is wrong with the baselines, a sentence each, of one engine or of all."""
        found = []
        for home in [self.root / slug(engine)] if engine else folders(self.root):
            try:
                self.baseline(home.name)
            except GoldenError as error:
                found.append(str(error))
        return tuple(found)

    def set_baseline(self, engine: str, wanted: str) -> str:
        """Make the recorded engine hash that starts with ``wanted``, or has that version, the baseline."""
        home = self.root / slug(engine)
        known = {path.name: read_manifest(path / MANIFEST)["version"] for path in folders(home)}
        alike = {name for name in known if wanted and (name.startswith(wanted) or wanted.startswith(name))}
        found = [name for name, version in known.items() if name in alike or version == wanted]
        if len(found) != 1:
            choices = ", ".join(f"{name} (version {version})" for name, version in known.items())
            choice = f"expected one of {choices}" if known else "record goldens first"
            raise GoldenError(
                f"{wanted!r} names {len(found)} of the engine hashes recorded for {engine} in {self.root}: "
                f"{choice}"
            )
        write(home / BASELINE, found[0] + "\n")
        return found[0]

    def _compared(self, observed: Observed, path: str, against: str) -> Judgement:
        golden = self.load(self.root / against)
        document = observed.document(golden.rows_per_line)
        found = compare(golden, document)
        known = path == against
        changed = found.changed
        if not known:
            own = engine_preimage(observed.engine)
            theirs = read_manifest((self.root / against).parent / MANIFEST)
            identity = changed_values(_flat(theirs), _flat(own))
            changed = tuple(dict.fromkeys((*identity, *changed)))
        if not found.suite_equal:
            old, new = (msgspec.structs.asdict(d.suite) for d in (golden, document))
            changed = (*changed_values(old, new), *changed)
        return Judgement(
            verdict=verdict_of(found, known_engine=known),
            path=path,
            held_against=against,
            rows_equal=found.rows_equal,
            sentence=found.divergence.sentence if found.divergence else "; ".join(found.changed),
            diff=found.diff,
            lines_differ=found.lines_differ,
            changed_preimage=changed,
        )

    def _blessed(self, observed: Observed) -> Blessed | None:
        folder, name = self.folder(observed), file_name(observed.question)
        baseline = self.baseline(observed.engine.name)
        against = f"{slug(observed.engine.name)}/{baseline}"
        if baseline is None or against == folder or not is_there(self.root / against / name):
            return None
        judgement = self._compared(observed, f"{folder}/{name}", f"{against}/{name}")
        if judgement.rows_equal:
            return None
        return Blessed(
            baseline=baseline,
            first_divergence=judgement.sentence,
            lines_differ=judgement.lines_differ,
            changed=[*judgement.changed_preimage],
        )

    def _check_manifest(self, observed: Observed, folder: str) -> None:
        if read_manifest(self.root / folder / MANIFEST) != engine_preimage(observed.engine):
            raise GoldenError(
                f"{folder}/{MANIFEST} is of another engine whose hash begins alike: keep one of the two in "
                "another goldens folder"
            )

    def _write_manifest(self, path: Path, text: str) -> None:
        if not is_there(path):
            write(path, text)
        elif read_text(path) != text:
            raise GoldenError(
                f"{path} differs from the preimage of this engine: restore it from version control"
            )

    def _says_the_same(self, path: Path, text: str) -> bool:
        """Whether the file stands for the same ledger already: provenance alone is no reason to write."""
        if not is_there(path):
            return False
        try:
            old, new = self.load(path), codec.read(text, path.name)
            return old.rows_per_line == new.rows_per_line and compare(old, new).equal
        except GoldenError:
            return False

    def _stored(self, path: Path, folder: Path) -> StoredGolden:
        engine = folder.parent.name
        try:
            baseline = self.baseline(engine) == folder.name
        except GoldenError:
            baseline = False
        try:
            return StoredGolden(engine, folder.name, path, baseline, self.load(path))
        except GoldenError as error:
            return StoredGolden(engine, folder.name, path, baseline, None, str(error))


def _missing(path: str, why: str) -> Judgement:
    return Judgement(Verdict.MISSING, path, sentence=why)


def _flat(preimage: dict[str, object]) -> dict[str, object]:
    effective = preimage.get("effective")
    values = effective if isinstance(effective, dict) else {}
    return {**{name: value for name, value in preimage.items() if name != "effective"}, **values}
