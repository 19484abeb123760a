"""Verbs of a scene with a host tier: whole prompts copied out, evicted, and asked for again.

Each is a few verbs of `kvsuite.replay.scene.Scene`; a launch judges the pins of what moves (I15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contract import RefusalReason, Release
from kvsuite.errors import InvariantViolation
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import Violation
from kvsuite.ledger.tiers import pins

if TYPE_CHECKING:
    from kvsuite.engine.contract import Admission, Transfer
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.replay.scene import Scene
    from kvsuite.trace.tokens import TokenContent

ROUNDS = 4
"""Launches within which an engine must have begun, and the suite ended, everything that is to move."""
FOR_EVER_TOKENS = 10**6


def of(scene: Scene, prompt: str) -> TokenContent:
    """Return the tokens called ``prompt``: equal names are equal tokens."""
    return scene.prompts.of((prompt, FOR_EVER_TOKENS))


def host_spec(scene: Scene) -> PoolSpec:
    """Return the pool of the host tier."""
    return next(pool for pool in scene.engine.spec.pools if pool.key.tier == "host")


def host_now(scene: Scene) -> PoolSnapshot:
    """Return the host pool as it stands."""
    key = host_spec(scene).key
    return next(snapshot for snapshot in scene.engine.snapshot() if snapshot.key == key)


def judge_pins(scene: Scene, transfers: list[Transfer] | None = None) -> None:
    """Expect one pin at each end of ``transfers``, by default all those under way, and no other."""
    under_way = scene.transfers if transfers is None else transfers
    scene.violations += pins(under_way, scene.engine.snapshot(), scene.step_number)


def begin(scene: Scene) -> list[Transfer]:
    """Launch and settle a step, and return the transfers that began with it."""
    before = len(scene.transfers)
    scene.launch()
    judge_pins(scene)
    scene.settle()
    return scene.transfers[before:]


def flush(scene: Scene, *, ok: bool = True) -> int:
    """Let transfers begin and end until none is under way; return how many ended."""
    ended = 0
    for _ in range(ROUNDS):
        begin(scene)
        if not scene.transfers:
            break
        for transfer in list(scene.transfers):
            scene.acknowledge(transfer, ok=ok)
            ended += 1
    return ended


def compute(scene: Scene, prompt: str, tokens: int, reason: Release = Release.FINISH) -> None:
    """Compute a prompt as ``first <prompt>`` and let it go.

    **Raises:** `InvariantViolation` where it is refused by an engine with room for it.
    """
    admission = scene.admit(f"first {prompt}", tokens, content=of(scene, prompt))
    if not admission.accepted:
        _stuck(scene, f"first {prompt} of {tokens} tokens is refused with room for it")
    scene.step()
    scene.release(f"first {prompt}", reason)


def store(scene: Scene, prompt: str, tokens: int) -> None:
    """Compute a prompt, let it go, and let it be copied out."""
    compute(scene, prompt, tokens)
    flush(scene)


def room_tokens(scene: Scene) -> int:
    """Return how many tokens the free and cached blocks of the device hold for a new prompt; at least 1.

    Beside others that run, what admission keeps back is none of its room.
    """
    device = scene.engine.snapshot()[0]
    kept = kept_back(scene.engine.spec) if device.request_ids else 0
    blocks = len(device.free) + len(device.cached) - kept
    return max(1, blocks * scene.engine.spec.pools[0].block_size)


def evict(scene: Scene) -> None:
    """Take every free and cached block of the device once, without computing anything."""
    tokens = room_tokens(scene)
    if not scene.admit("filler", tokens).accepted:
        _stuck(scene, f"a prompt of {tokens} tokens is refused, which free and cached blocks hold")
    scene.release("filler", Release.CANCEL)
    flush(scene)


def ask(scene: Scene, name: str, prompt: str, tokens: int) -> Admission:
    """Ask until the answer is something else than LOADING; loads end well.

    **Raises:** `InvariantViolation` when it stays LOADING although every transfer has ended.
    """
    for _ in range(ROUNDS):
        admission = scene.admit(name, tokens, content=of(scene, prompt))
        if admission.refusal is None or admission.refusal.reason is not RefusalReason.LOADING:
            return admission
        flush(scene)
    return _stuck(scene, f"{name} is still loading after {ROUNDS} rounds of transfers that all ended well")


def crowd_the_host(scene: Scene) -> None:
    """Store as many new prompts of one block as the host has blocks; transfers begun before go on."""
    size = scene.engine.spec.pools[0].block_size
    for number in range(host_spec(scene).usable_blocks):
        compute(scene, f"crowd {number}", size + 1)
        for transfer in begin(scene):
            scene.acknowledge(transfer)


def end(scene: Scene) -> None:
    """Let everything go and every transfer end; expect rest in all tiers, no pin, and judge."""
    for name in scene.running:
        scene.release(name)
    flush(scene)
    scene.drain()
    judge_pins(scene, [])
    scene.judge()


def _stuck(scene: Scene, message: str) -> Admission:
    pool = str(scene.engine.spec.pools[0].key)
    scene.violations.append(Violation("progress", scene.step_number, pool, message))
    scene.judge()
    raise InvariantViolation(message)
