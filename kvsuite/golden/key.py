"""Identity of a golden: who answered (the engine hash) and what was asked (the golden's key).

    goldens/<engine>/<engine hash 8>/<case>.<trace>.<dtype>.<key 8>.json
            `------- engine -------' `------------- question ----------'

The engine hash covers name, version, adapter version and the effective values that belong to the engine
whatever pool it is opened with. Values that are asked for at each opening (`PER_OPENING`) and everything
else that was asked make up the key; so the same question has the same file name below every engine hash,
and two versions are compared file by file.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.replay.batch import scheduler_recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.replay.scheduler import SchedulerConfig

Scalar = int | str | bool

PER_OPENING = frozenset(
    {
        "block_size",
        "num_blocks",
        "num_slots",
        "null_blocks",
        "prefix_cache",
        "watermark_blocks",
        "max_model_tokens",
        "max_tokens",
        "layout",
        "dtype",
    }
)
"""Effective values that follow from how an engine is opened: part of a golden, not of the engine hash."""

SHOWN = 8
"""Hex digits of a hash in paths."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Question:
    """What a golden answers: a case, a trace and how the engine was to be opened and driven.

    ``label`` tells several ledgers of one case apart. ``trace_name`` is for readers of the path; content
    is told by ``trace_hash``. ``recipe`` is what was asked for, before the engine's own rounding.
    """

    case: str
    trace_name: str
    trace_hash: str
    layout: str
    dtype: str
    recipe: Mapping[str, Scalar]
    label: str = ""


def engine_preimage(spec: EngineSpec) -> dict[str, object]:
    """Return what the engine hash stands for: the content of ``MANIFEST.json``."""
    return {
        "name": spec.name,
        "version": spec.version,
        "adapter_version": spec.adapter_version,
        "effective": {name: spec.effective[name] for name in sorted(spec.effective.keys() - PER_OPENING)},
    }


def engine_hash(spec: EngineSpec) -> str:
    """Return the identity of an engine, 64 hex digits; paths show the first `SHOWN`."""
    return preimage_hash(engine_preimage(spec))


def preimage_hash(preimage: Mapping[str, object]) -> str:
    """Return the hash of a preimage, 64 hex digits: SHA-256 of its JSON with sorted keys and no blanks."""
    text = json.dumps(preimage, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def golden_key(question: Question) -> str:
    """Return the key of a question, `SHOWN` hex digits, over everything but the trace's name."""
    asked = {
        "case": question.case,
        "label": question.label,
        "trace_hash": question.trace_hash,
        "layout": question.layout,
        "dtype": question.dtype,
        "recipe": dict(question.recipe),
    }
    return preimage_hash(asked)[:SHOWN]


def asked_recipe(config: EngineConfig, scheduler: SchedulerConfig) -> dict[str, Scalar]:
    """Return how an engine was asked to be opened and driven; what was left open does not appear."""
    asked: dict[str, Scalar | None] = {
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "prefix_cache": config.prefix_cache,
        "watermark_blocks": config.watermark_blocks,
        "max_model_tokens": config.max_model_tokens,
        **{f"option.{name}": config.options[name] for name in sorted(config.options)},
        **scheduler_recipe(scheduler),
        "lookahead_tokens": scheduler.lookahead_tokens or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def slug(text: str, longest: int = 120) -> str:
    """Return ``text`` as a part of a file name: letters, digits and ``_``, all else a single ``-``.

    >>> slug("conformance/test_growth.py::test_chunks[chat-16]")
    'conformance-test_growth-test_chunks-chat-16'
    """
    return _UNSAFE.sub("-", text.replace(".py::", "::")).strip("-")[:longest] or "none"


def file_name(question: Question) -> str:
    """Return the name of a golden's file; the same for every engine that is asked."""
    case = slug(f"{question.case}::{question.label}" if question.label else question.case)
    parts = (case, slug(question.trace_name, 48), slug(question.dtype, 16), golden_key(question), "json")
    return ".".join(parts)
