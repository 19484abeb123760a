"""Verbs an engine has only where it claims the capability behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Budget, Gauges, Int64Array, MemoryClaim, PoolKey
    from kvsuite.trace.model import RequestId


@runtime_checkable
class SupportsFork(Protocol):
    """The verb behind `Capability.FORK`."""

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares every block of ``parent_id``; False: refused."""
        ...


@runtime_checkable
class SupportsMemory(Protocol):
    """The verb behind `Capability.MEMORY`."""

    def memory(self) -> MemoryClaim:
        """Return the storages held and what the engine says is cache."""
        ...


@runtime_checkable
class SupportsGauges(Protocol):
    """The verb behind `Capability.GAUGES`."""

    def gauges(self) -> tuple[Gauges, ...]:
        """Return what the engine reports of each pool now."""
        ...


@runtime_checkable
class SupportsBudget(Protocol):
    """The verb behind `Capability.BUDGET`."""

    def budget(self) -> Budget:
        """Return how the pools came to their size."""
        ...


@runtime_checkable
class SupportsTransfers(Protocol):
    """The verbs behind `Capability.HOST_TIER`."""

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Learn that a transfer has ended; ``ok`` says whether the target holds the content."""
        ...

    def tick(self, now_us: int) -> None:
        """Learn the time: transfers past their deadline count as failed, whatever is answered later."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """Learn that a waiting request, refused or preempted, will not be asked for again.

        Nothing may stay held for it in any tier once the transfers under way have ended. For a request of
        which nothing is held this does nothing.
        """
        ...


@runtime_checkable
class SupportsSlots(Protocol):
    """The verbs behind `Capability.SLOTS`: one int64 array a pool, in the order of the spec.

    A slot is what the attention kernel is given, ``kernel block * its size + offset``, in token order. A
    replay writes and reads there; positions are counted back from the newest token of the sequence.
    """

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of every token a sequence still holds; what a window let go of is left out."""
        ...

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of the tokens a sequence was given since the last step was launched."""
        ...


@runtime_checkable
class SupportsStorage(Protocol):
    """The verbs behind `Capability.COPIES_ITSELF`: the tensors that the engine makes its copies in.

    A slot is ``block * block size + offset`` of its pool. What a step copies is copied when `launched`
    returns; the suite writes and reads after that, and never copies.
    """

    def write_storage(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Fill every word of the tokens in ``slots`` with their tag, both int64[n].

        A word is eight bytes of a token, in whichever tensor, layer or stream they lie. Bits are stored as
        they are. A later entry wins where a slot stands twice.
        """
        ...

    def read_storage(self, pool: PoolKey, slots: Int64Array) -> Int64Array:
        """Return every word of the tokens in ``slots``, int64[n, words], bits as they are."""
        ...


@runtime_checkable
class SupportsResetCache(Protocol):
    """The verb behind `Capability.RESET_CACHE`."""

    def reset_cache(self) -> bool:
        """Forget every cached block; False: refused because sequences are live."""
        ...
