"""What a decision rests on, by name, and the decision as it is stored beside it.

A stored decision holds until a part of its recipe changes; then it is stale, and only a new sweep decides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from kvsuite.errors import ConfigError
from kvsuite.golden.key import preimage_hash
from kvsuite.record.decision_rows import DecisionRow
from kvsuite.sweep.knee import Result
from kvsuite.trace.atomic import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvsuite.cache.layout import Layout
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.sweep.slo import Slo

Scalar = int | str | bool

SCHEMA = "kvsuite.decision"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that a decision depends on."""

    engine: str
    """Name, version and hash of what it really ran with."""
    engine_options: tuple[tuple[str, Scalar], ...]
    kernel: str
    layout: Layout
    sharing: bool
    """Whether prefixes are shared."""
    scheduler: SchedulerConfig
    watermark_blocks: int
    max_model_tokens: int
    pool_bytes: int
    trace_hash: str
    slo: Slo
    sizes: tuple[int, ...]
    """Block sizes that were compared."""
    device: str
    declared_burst: int = 0
    """Samples that may diverge at once; 0 where none is declared."""
    varied: str = ""
    """What the options differ in beside block size, as ``NAME=V1,V2``."""

    def flat(self) -> dict[str, Scalar]:
        """Return it by name, each part a value that a person can compare."""
        return {
            "engine": self.engine,
            **{f"engine.{name}": value for name, value in sorted(self.engine_options)},
            "kernel": self.kernel,
            "layout": str(self.layout),
            "dtype": self.layout.dtype.value,
            "sharing": self.sharing,
            **{f"scheduler.{name}": value for name, value in _given(asdict(self.scheduler))},
            "scheduler.watermark_blocks": self.watermark_blocks,
            "scheduler.max_model_tokens": self.max_model_tokens,
            "pool_bytes": self.pool_bytes,
            "trace_hash": self.trace_hash,
            "slo.ttft_us": self.slo.ttft_us,
            "slo.itl_us": self.slo.itl_us,
            "sizes": ",".join(map(str, self.sizes)),
            "device": self.device,
            **({"declared_burst": self.declared_burst} if self.declared_burst else {}),
            **({"varied": self.varied} if self.varied else {}),
        }


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``decision.json``: equal decisions have equal bytes."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    result: Result
    shipped: str | None
    """The option that ships."""
    with_sharing: bool | None = None
    """Whether it ships with shared prefixes; ``None`` where nothing ships, and without a prefix cache."""
    tied: list[str]
    projected: bool
    """Whether the costs are of another device than the one that decided."""
    sentence: str
    recipe: dict[str, Scalar]
    recipe_hash: str
    """SHA-256 of the recipe's canonical JSON."""
    rows: list[DecisionRow]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a new decision stands to the stored one."""

    said: str
    """``same``, or what changed, in words."""
    changed: bool


def recipe_hash(recipe: dict[str, Scalar]) -> str:
    """Return the hash of a recipe, 64 hex digits."""
    return preimage_hash(recipe)


def write_decision(path: Path, decision: StoredDecision) -> None:
    """Write ``decision.json``, whole or not at all.

    **Raises:** `TraceError` when the folder cannot be written.
    """
    text = msgspec.json.format(msgspec.json.encode(decision), indent=1)
    write_whole(path, text + b"\n")


def read_decision(path: Path) -> StoredDecision:
    """Return a stored decision.

    **Raises:** `ConfigError` for a file that is missing, is no decision, or whose recipe was edited.
    """
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=StoredDecision)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no stored decision; sweep without --decision, and copy that run's decision.json to it"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the stored decision ({error.strerror or error})") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: no stored decision, {error}") from error
    if (stored.schema, stored.schema_version) != (SCHEMA, SCHEMA_VERSION):
        raise ConfigError(
            f"{path}: {stored.schema} {stored.schema_version}, expected {SCHEMA} {SCHEMA_VERSION}: sweep anew"
        )
    if stored.recipe_hash != recipe_hash(stored.recipe):
        raise ConfigError(
            f"{path}: its recipe has the hash {recipe_hash(stored.recipe)[:8]}, and the file says "
            f"{stored.recipe_hash[:8]}: it was edited; sweep again"
        )
    return stored


def changes(old: dict[str, Scalar], new: dict[str, Scalar]) -> list[str]:
    """Return what differs between two recipes, as ``NAME changed from X to Y``, in the order of the new one.

    >>> changes({"sharing": True, "pool_bytes": 8}, {"sharing": False, "pool_bytes": 8})
    ['sharing changed from true to false']
    """
    names = [*new, *(name for name in old if name not in new)]
    return [
        f"{name} changed from {_text(old.get(name))} to {_text(new.get(name))}"
        for name in names
        if (type(old.get(name)), old.get(name)) != (type(new.get(name)), new.get(name))
    ]


def compare(stored: StoredDecision, now: StoredDecision) -> Comparison:
    """Hold a new decision against the stored one: a stale recipe is told first, then another size."""
    stale = changes(stored.recipe, now.recipe)
    if stale:
        return Comparison(f"recipe is stale: {'; '.join(stale)}", changed=True)
    if _key(stored) != _key(now):
        before, after = _outcome(stored), _outcome(now)
        return Comparison(f"shipped size changed: from {before} to {after}", changed=True)
    return Comparison("same", changed=False)


def _given(values: dict[str, Any]) -> Iterator[tuple[str, Scalar]]:
    """Yield what is set, and has a say where steps last what they cost."""
    yield from ((name, value) for name, value in values.items() if value is not None and name != "step_us")


def _key(decision: StoredDecision) -> tuple[str, str | None, bool]:
    return decision.result, decision.shipped, decision.with_sharing is False


def _outcome(decision: StoredDecision) -> str:
    if decision.shipped is None:
        return decision.result
    return decision.shipped + (" with sharing off" if decision.with_sharing is False else "")


def _text(value: Scalar | None) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)
