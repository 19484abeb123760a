"""Seeded, named rules that add to a trace what no public trace carries: forks, beams, caps, cancels, pace.

    fork:every=50,n=2               one in 50 requests is sampled twice in parallel
    beam:every=40,width=4,after=8   one in 40 goes on as 4 beams after 8 generated tokens
    cancel:every=37                 one in 37 goes away after a drawn number of generated tokens
    cancel:every=37,after=0         ... before its first
    cap:tokens=512                  every request asks for at most 512 tokens, or what it made if more
    slow:times=20                   all times 20 times as far apart: the load of a smaller device
    fast:times=2                    all times half as far apart

What was added is listed in ``Trace.filled``, and the content hash pins it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from kvsuite.errors import TraceError
from kvsuite.trace.draws import Draws
from kvsuite.trace.model import Fill
from kvsuite.trace.rows import Row, rows_of, tail_rule, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.trace.model import Trace

MAX_SEED = 2**32 - 1
MAX_CHILDREN = 4096


@dataclass(frozen=True, slots=True)
class _Rule:
    required: tuple[str, ...]
    defaults: Mapping[str, int]
    optional: tuple[str, ...]
    """Parameters that may be left out and have no default."""
    eligible: Callable[[Row, Mapping[str, int]], bool]
    apply: Callable[[Draws, Row, Mapping[str, int]], list[Row]]
    """Changes the row, and returns the children to stand after it."""
    takes_all: bool = False
    """Whether it is applied to every row, whatever became of it by other rules."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Every parameter that the rule takes."""
        return (*self.required, *self.defaults, *self.optional)


def apply_overlay(trace: Trace, *rules: str, seed: int = 0) -> Trace:
    """Return the trace with every rule applied, in the order given.

    A rule with ``every=k`` picks, of each whole run of ``k`` requests it can be applied to, one at a drawn
    place. Children stand after their parent and arrive with it; ``rows_added`` counts them. Rules applied in
    several calls give what they give in one.

    **Raises:** `TraceError` for a rule that cannot be read.
    """
    if not 0 <= seed <= MAX_SEED:
        raise TraceError(f"overlay seed {seed}: expected 0 to {MAX_SEED}")
    rows = rows_of(trace)
    for place, text in enumerate(rules, len(trace.filled)):
        name, parameters = parse_rule(text)
        rows = _applied(_RULES[name], parameters, rows, Draws((seed, place)))
    fills = tuple(Fill(parse_rule(text)[0], text, seed) for text in rules)
    return trace_of(
        rows,
        trace.source,
        block_size=trace.block_size,
        tail=tail_rule(trace),
        filled=trace.filled + fills,
        dropped=dict(trace.dropped),
        rows_added=trace.rows_added + len(rows) - len(trace),
        hash_scope=trace.hash_scope,
    )


def parse_rule(text: str) -> tuple[str, dict[str, int]]:
    """Return the name and parameters of a rule such as ``fork:every=50,n=2``, defaults filled in.

    **Raises:** `TraceError` that says what the rule takes.
    """
    name, _, rest = text.partition(":")
    if name not in _RULES:
        raise TraceError(f"unknown overlay rule {name!r}: the rules are {', '.join(_RULES)}")
    rule = _RULES[name]
    given: dict[str, int] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in rule.parameters or not (value.isascii() and value.isdigit() and len(value) <= 15):
            raise TraceError(f"overlay rule {text!r}: cannot read {part!r}; {_usage(name)}")
        if key in given:
            raise TraceError(f"overlay rule {text!r}: {key} stands twice; {_usage(name)}")
        given[key] = int(value)
    parameters = {**rule.defaults, **given}
    missing = [key for key in rule.required if key not in parameters]
    least = next((key for key in ("every", "times") if parameters.get(key, 1) < 1), None)
    if missing or least:
        what = f"{', '.join(missing)} is missing" if missing else f"{least} must be at least 1"
        raise TraceError(f"overlay rule {text!r}: {what}; {_usage(name)}")
    for key in ("n", "width"):
        if parameters.get(key, 0) > MAX_CHILDREN:
            raise TraceError(
                f"overlay rule {text!r}: {key} is {parameters[key]}, at most {MAX_CHILDREN} children a "
                "request"
            )
    return name, parameters


def _usage(name: str) -> str:
    rule = _RULES[name]
    takes = [f"{key}=N" if key in rule.required else f"[{key}=N]" for key in rule.parameters]
    return f"{name} takes {', '.join(takes)}, whole numbers"


def _applied(rule: _Rule, parameters: Mapping[str, int], rows: list[Row], draws: Draws) -> list[Row]:
    if rule.takes_all:
        for row in rows:
            rule.apply(draws, row, parameters)
        return rows
    forked = Counter(row.parent for row in rows if row.parent is not None)
    free = [
        k for k, row in enumerate(rows) if rule.eligible(row, parameters) and row.request_id not in forked
    ]
    every = parameters.get("every", 1)
    chosen = {free[start + draws.between(0, every - 1)] for start in range(0, len(free) - every + 1, every)}
    result: list[Row] = []
    for k, row in enumerate(rows):
        result.append(row)
        if k in chosen:
            result.extend(rule.apply(draws, row, parameters))
    return result


def _uncancelled(row: Row, parameters: Mapping[str, int]) -> bool:
    del parameters
    return row.cancel_after is None and row.cancel_at is None


def _can_fork(row: Row, parameters: Mapping[str, int]) -> bool:
    alone = row.parent is None and _uncancelled(row, parameters)
    return alone and row.output_length > parameters.get("after", 0)


def _can_cancel(row: Row, parameters: Mapping[str, int]) -> bool:
    return _uncancelled(row, parameters) and row.output_length >= parameters.get("after", 0)


def _can_cap(row: Row, parameters: Mapping[str, int]) -> bool:
    del parameters
    return row.max_output_length is None


def _any(row: Row, parameters: Mapping[str, int]) -> bool:
    del row, parameters
    return True


def _fork(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    """Return ``n - 1`` more samples, each of a drawn length up to the parent's."""
    return [
        _child(row, f"s{k}", "sample", 0, draws.between(1, row.output_length))
        for k in range(1, parameters["n"])
    ]


def _beam(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    """Return ``width - 1`` more beams, as long as the parent."""
    del draws
    return [
        _child(row, f"b{k}", "beam", parameters["after"], row.output_length)
        for k in range(1, parameters["width"])
    ]


def _child(row: Row, mark: str, fork: Literal["sample", "beam"], generated: int, output: int) -> Row:
    return Row(
        request_id=f"{row.request_id}.{mark}",
        timestamp=row.timestamp,
        input_length=row.input_length,
        output_length=output,
        max_output_length=row.max_output_length,
        parent=row.request_id,
        fork=fork,
        fork_at=row.input_length + generated,
        session_id=row.session_id,
        turn=row.turn,
        priority=row.priority,
    )


def _cancel(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    given = parameters.get("after")
    row.cancel_after = draws.between(0, row.output_length) if given is None else given
    return []


def _cap(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    del draws
    row.max_output_length = max(parameters["tokens"], row.output_length)
    return []


def _slow(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    del draws
    row.timestamp *= parameters["times"]
    if row.cancel_at is not None:
        row.cancel_at *= parameters["times"]
    return []


def _fast(draws: Draws, row: Row, parameters: Mapping[str, int]) -> list[Row]:
    del draws
    row.timestamp = Decimal(row.timestamp) / parameters["times"]
    if row.cancel_at is not None:
        row.cancel_at = Decimal(row.cancel_at) / parameters["times"]
    return []


_RULES = {
    "fork": _Rule(("every",), {"n": 2}, (), _can_fork, _fork),
    "beam": _Rule(("every",), {"width": 2, "after": 1}, (), _can_fork, _beam),
    "cancel": _Rule(("every",), {}, ("after",), _can_cancel, _cancel),
    "cap": _Rule(("tokens",), {"every": 1}, (), _can_cap, _cap),
    "slow": _Rule(("times",), {}, (), _any, _slow, takes_all=True),
    "fast": _Rule(("times",), {}, (), _any, _fast, takes_all=True),
}


def rule_names() -> tuple[str, ...]:
    """Return the names of the rules."""
    return tuple(_RULES)
