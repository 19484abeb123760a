"""Filling a pool to the last block, beside an engine that keeps some back at admission.

A watermark holds for admissions alone: what it keeps back is there for those that run, so the last blocks are
taken by growth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.sharing import available_blocks

if TYPE_CHECKING:
    from kvsuite.replay.scene import Scene


def to_be_had(scene: Scene) -> int:
    """Return the blocks to be had in the first pool."""
    return available_blocks(scene.engine.snapshot()[0])


def fill_to(scene: Scene, leave_blocks: int) -> list[str]:
    """Take all but ``leave_blocks`` of the blocks to be had, one block a request; return those requests.

    The last of them also holds what no admission was given.
    """
    size = scene.engine.spec.pools[0].block_size
    reach = max(leave_blocks, kept_back(scene.engine.spec))
    fillers = [f"filler{number}" for number in range(to_be_had(scene) - reach)]
    for name in fillers:
        assert scene.admit(name, size).accepted, scene.lifecycle[-1]
    rest = to_be_had(scene) - leave_blocks
    if fillers and rest > 0:
        assert scene.extend(fillers[-1], rest * size), scene.lifecycle[-1]
    scene.step()
    return fillers
