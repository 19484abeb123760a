"""The fixture behind ``golden``: observes and judges in a worker, leaves writing to the controller."""

from __future__ import annotations

import os
import platform
import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import kvsuite
from kvsuite.errors import GoldenError, GoldenMismatch
from kvsuite.plugin.case_id import ENGINE
from kvsuite.plugin.notes import notes_of
from kvsuite.plugin.options import CASES_MODULE, SETTINGS
from kvsuite.plugin.replays import refuse_violations
from kvsuite.plugin.subjects import subjects_of

if TYPE_CHECKING:
    import pytest

    from kvsuite.golden.codec import Observed
    from kvsuite.golden.judge import Judgement
    from kvsuite.plugin.replays import Replayer
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace


_PROVENANCE = ("numpy", "torch", "triton")


class GoldenCheck:
    """Compares ledgers of one case with their goldens, or offers them for writing."""

    def __init__(self, item: pytest.Item, replayer: Replayer) -> None:
        from kvsuite.golden.store import GoldenStore

        self._item = item
        self._replayer = replayer
        self._settings = item.config.stash[SETTINGS]
        self._store = GoldenStore(Path(self._settings.goldens))
        self._compared: dict[str, str] = {}

    def check(self, replay: Replay, trace: Trace, label: str = "") -> None:
        """Hold one ledger against its golden; ``label`` tells several ledgers of a case apart.

        Under ``--update-goldens`` the ledger is offered to be written instead, unless the case is a
        known deviation, which is never accepted by the way; one that only sets laws apart is.

        **Raises:** `InvariantViolation` for a replay that broke a law which is not set apart,
        `GoldenMismatch` where the engine differs, `GoldenError` where a golden is missing, damaged, or no
        longer judges.
        """
        __tracebackhide__ = True
        refuse_violations(self._item, replay)
        observed = self._observed(replay, trace, label)
        path = f"{self._store.folder(observed)}/{_name(observed)}"
        if path in self._compared:
            raise GoldenError(f"{path} is checked twice by one case: tell the ledgers apart with a label")
        self._compared[path] = self._store.folder(observed)
        notes = notes_of(self._item)
        if self._settings.update and (notes.deviation is None or notes.set_apart):
            self._offer(observed)
            return
        judgement = self._store.judge(observed)
        passes = judgement.passes(strict_footprint=self._settings.strict_footprint)
        self._note(observed, judgement, passes)
        if not passes:
            from kvsuite.golden.judge import MISMATCHES

            kind = GoldenMismatch if judgement.verdict in MISMATCHES else GoldenError
            raise kind(judgement.text(accept_command(self._item)))

    def refuse_superseded(self) -> None:
        """Fail where the folder still holds a golden of this case that nothing compared.

        **Raises:** `GoldenError` naming the files.
        """
        __tracebackhide__ = True
        case = notes_of(self._item).case
        left = [
            path
            for folder in sorted(set(self._compared.values()))
            for path in self._store.superseded(folder, case, self._compared)
        ]
        if not left:
            return
        said = f"{case} no longer compares {', '.join(path.name for path in left)}"
        remedy = f"delete: rm {' '.join(shlex.quote(str(path)) for path in left)}"
        if not self._settings.update:
            raise GoldenError(f"{said}: its trace or recipe changed; {remedy}")
        notes_of(self._item).summary.append(f"superseded: {said}; {remedy}")

    def _observed(self, replay: Replay, trace: Trace, label: str) -> Observed:
        from kvsuite.golden.codec import Observed
        from kvsuite.golden.key import PER_OPENING, Question, asked_recipe
        from kvsuite.trace.identity import content_hash

        subject = subjects_of(self._item.config).spec(self._replayer.engine_name)
        config = self._replayer.config_of(replay)
        if config is None:
            values = {k: v for k, v in sorted(replay.spec.effective.items()) if k in PER_OPENING}
            values |= {
                field.name: getattr(replay.scheduler, field.name) for field in fields(replay.scheduler)
            }
        else:
            values = asked_recipe(config, replay.scheduler)
        question = Question(
            case=notes_of(self._item).case,
            label=label,
            trace_name=trace.source.name,
            trace_hash=content_hash(trace),
            layout=replay.spec.layout if config is None else str(config.layout),
            dtype=replay.spec.dtype if config is None else config.layout.dtype.value,
            recipe=values,
        )
        engine = subject if subject.name == replay.spec.name else replay.spec
        return Observed(engine, replay.spec, question, replay.timeline, self._provenance(replay))

    def _provenance(self, replay: Replay) -> dict[str, str]:
        from kvsuite.record.provenance import installed_packages

        packages = installed_packages()
        shown = {name: version for name, version in packages.items() if name in _PROVENANCE}
        notes = notes_of(self._item)
        here = {
            "python": platform.python_version(),
            "kvsuite": kvsuite.__version__,
            "device": notes.device,
            "slots": replay.content.mode,
        }
        return {**replay.spec.provenance, **shown, **here}

    def _offer(self, observed: Observed) -> None:
        from kvsuite.golden.judge import Verdict
        from kvsuite.record.schema import GoldenLine

        try:
            same = self._store.judge(observed).verdict is Verdict.MATCH
        except GoldenError:
            same = False
        parcel = self._store.parcel(observed)
        notes = notes_of(self._item)
        line = GoldenLine(
            case=notes.case, engine=notes.engine, path=parcel.path, verdict="match" if same else "written"
        )
        notes.add_golden(line, passes=True, parcel=None if same else parcel)

    def _note(self, observed: Observed, judgement: Judgement, passes: bool) -> None:
        from kvsuite.golden.judge import Verdict
        from kvsuite.record.schema import GoldenLine

        match = judgement.verdict is Verdict.MATCH
        notes = notes_of(self._item)
        line = GoldenLine(
            case=notes.case,
            engine=notes.engine,
            path=judgement.path,
            verdict=judgement.verdict.value,
            first_divergence=judgement.sentence or None,
            diff=list(judgement.diff),
            lines_differ=judgement.lines_differ,
            changed_preimage=list(judgement.changed_preimage),
            accept="" if match else accept_command(self._item),
        )
        notes.add_golden(line, passes=passes, parcel=None if match else self._store.parcel(observed))


def accept_command(item: pytest.Item) -> str:
    """Return the command that accepts what one case observed, to be run from the rootdir."""
    settings = item.config.stash[SETTINGS]
    words = ["pytest"]
    shipped = item.path.is_relative_to(Path(kvsuite.__file__).parent)
    engine = getattr(item, "callspec", None)
    if engine is not None and ENGINE in engine.params:
        words.append(f"--engine={engine.params[ENGINE]}")
    default = item.config.rootpath / "goldens"
    if Path(settings.goldens) != default:
        words.append(f"--goldens={os.path.relpath(settings.goldens, item.config.rootpath)}")
    words.append("--update-goldens")
    words += ["--pyargs", CASES_MODULE, "-k", item.name] if shipped else [item.nodeid]
    return shlex.join(words)


def _name(observed: Observed) -> str:
    from kvsuite.golden.key import file_name

    return file_name(observed.question)
