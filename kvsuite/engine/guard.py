"""Stands between the suite and an engine: a crash is named, and every answer has the form of the contract.

Whether an answer is true, the ledger judges; what is refused here leaves nothing to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.engine.contract import NO_OPS, Admission, BlockCopy, Capability, Ops, Refusal, RefusalReason
from kvsuite.engine.snapshot import STORAGE_ROLES, MemoryClaim, PoolKey, PoolSnapshot, Storage
from kvsuite.engine.spec_checks import is_a, spec_of, whole
from kvsuite.errors import EngineError, KvsuiteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.contract import Engine, EngineSpec, Release
    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


class GuardedEngine:
    """An engine as the suite drives it; ``step`` is set by the driver and stands in every error.

    **Raises:** `EngineError` for an exception of the engine, and for an answer that is none by the contract.
    """

    def __init__(self, engine: Engine) -> None:
        self.step: int | None = None
        self._engine = engine
        self._spec = spec_of(engine)
        self._pools = {pool.key: pool for pool in self._spec.pools}
        self._lookahead = self._spec.claims(Capability.LOOKAHEAD)
        self._extend = engine.extend

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims, as it said when it was opened."""
        return self._spec

    def check_spec_is_constant(self) -> None:
        """Check that the engine still says the same of itself.

        **Raises:** `EngineError` when it does not.
        """
        spec = spec_of(self._engine)
        if spec != self._spec:
            raise EngineError(
                f"engine {self._spec.name!r} changed its spec while it ran, from {self._spec} to {spec}: "
                "the spec of an engine is constant"
            )

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in, or refuse it and change nothing."""
        answer: Admission = self._ask(
            "admit", request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if not is_a(answer, Admission):
            raise self._no_answer(f"admit of {request_id}", answer, "an Admission")
        if answer.refusal is not None:
            self._check_refusal(request_id, answer.refusal)
            return answer
        hit, scheduled, target = answer.hit_tokens, answer.scheduled_tokens, len(prompt)
        if not (whole(hit) and whole(scheduled) and 0 <= hit <= scheduled <= target and scheduled > 0):
            raise self._no_answer(
                f"admit of {request_id}",
                answer,
                f"0 <= hit_tokens <= scheduled_tokens <= {target}, its prompt, and 1 scheduled or more",
            )
        return answer

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        try:
            answer: object = self._extend(request_id, tokens, lookahead_tokens=lookahead_tokens)
        except (KvsuiteError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise self._crash("extend", request_id, error) from error
        return answer if isinstance(answer, bool) else self._truth("extend", request_id, answer)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares every block of ``parent_id``; False: refused."""
        return self._truth("fork", parent_id, self._ask("fork", parent_id, child_id))

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds."""
        self._ask("release", request_id, reason)

    def take_ops(self) -> Ops:
        """Return, once, the copies and zeroing to be done before this step's writes."""
        ops: Ops = self._ask("take_ops")
        if ops is NO_OPS:
            return ops
        if not (is_a(ops, Ops) and all(is_a(x, tuple) for x in (ops.copies, ops.zeroed, ops.transfers))):
            raise self._no_answer("take_ops", ops, "an Ops of three tuples")
        for copy in ops.copies:
            if not self._is_copy(copy):
                raise self._no_answer("take_ops", copy, f"a BlockCopy within one of {self._ranges()}")
        for zeroed in ops.zeroed:
            if not self._is_zeroed(zeroed):
                raise self._no_answer("take_ops", zeroed, f"a pool and a block to zero of {self._ranges()}")
        return ops

    def launched(self, step: int) -> None:
        """Learn that this step's reads and writes are under way."""
        self._ask("launched", step)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Learn that the step is settled."""
        self._ask("done", step, accepted)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return every pool as it stands; its arrays are checked where they are taken in."""
        shots: tuple[PoolSnapshot, ...] = self._ask("snapshot", since)
        if not is_a(shots, tuple) or not all(is_a(shot, PoolSnapshot) for shot in shots):
            raise self._no_answer("snapshot", shots, "a tuple of PoolSnapshot")
        if [shot.key for shot in shots] != [*self._pools]:
            raise self._no_answer(
                "snapshot",
                f"pools {[str(shot.key) for shot in shots]}",
                f"every pool of the spec, in its order: {[str(key) for key in self._pools]}",
            )
        for shot in shots:
            if since is None and shot.since is not None:
                raise self._no_answer("snapshot(None)", f"changes since {shot.since}", "a full snapshot")
            if shot.lookahead_tokens and not self._lookahead:
                found = f"{shot.lookahead_tokens} look-ahead tokens"
                raise self._no_answer("snapshot", found, "none: the engine does not claim LOOKAHEAD")
        return shots

    def transfer_done(self, ref: int, ok: bool) -> None:
        """Learn that a transfer has ended."""
        self._ask("transfer_done", ref, ok)

    def tick(self, now_us: int) -> None:
        """Learn the time."""
        self._ask("tick", now_us)

    def forget(self, request_id: RequestId) -> None:
        """Learn that a request that waits goes away."""
        self._ask("forget", request_id)

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of every token a sequence still holds, a pool each."""
        return self._indices("read_slots", request_id)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the slots of the tokens a sequence was given since the last step was launched."""
        return self._indices("write_slots", request_id)

    def write_storage(self, pool: PoolKey, slots: Int64Array, tags: Int64Array) -> None:
        """Fill every word of the tokens in ``slots`` with their tag."""
        self._ask("write_storage", pool, slots, tags)

    def read_storage(self, pool: PoolKey, slots: Int64Array) -> Int64Array:
        """Return every word of the tokens in ``slots``."""
        words: Int64Array = self._ask("read_storage", pool, slots)
        shape: tuple[int, ...] = getattr(words, "shape", ())
        dtype = getattr(words, "dtype", None)
        if dtype != np.int64 or len(shape) != 2 or shape[0] != len(slots) or shape[1] < 1:
            found = f"{type(words).__name__} of {dtype}, shape {shape}"
            raise self._no_answer("read_storage", found, f"int64[{len(slots)}, words] with a word or more")
        return words

    def memory(self) -> MemoryClaim:
        """Return the storages held and what the engine says is cache."""
        claim: MemoryClaim = self._ask("memory")
        if not (
            is_a(claim, MemoryClaim) and is_a(claim.storages, tuple) and whole(claim.claimed_cache_bytes)
        ):
            raise self._no_answer("memory", claim, "a MemoryClaim of a tuple of storages and whole bytes")
        for storage in claim.storages:
            if not is_a(storage, Storage) or storage.role not in STORAGE_ROLES:
                raise self._no_answer("memory", storage, f"a Storage whose role is {_either(STORAGE_ROLES)}")
            if not whole(storage.nbytes) or storage.nbytes < 0 or not whole(storage.data_pointer):
                raise self._no_answer("memory", storage, "whole bytes, 0 or more, at a whole address")
        return claim

    def _indices(self, verb: str, request_id: RequestId) -> tuple[Int64Array, ...]:
        slots: tuple[Int64Array, ...] = self._ask(verb, request_id)
        if not is_a(slots, tuple) or [(getattr(s, "dtype", None), getattr(s, "ndim", 0)) for s in slots] != [
            (np.dtype(np.int64), 1)
        ] * len(self._pools):
            raise self._no_answer(f"{verb} of {request_id}", slots, f"{len(self._pools)} arrays int64[n]")
        return slots

    def _ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._engine, verb)(*arguments, **options)
        except (KvsuiteError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise self._crash(verb, arguments[0] if arguments else None, error) from error

    def _crash(self, verb: str, of: object, error: BaseException) -> EngineError:
        subject = f" of {of}" if isinstance(of, str) else ""
        said = f": {error}" if str(error) else ""
        return EngineError(
            f"engine {self._spec.name!r} raised {type(error).__name__} in {verb}{subject}{self._when()}{said}"
        )

    def _no_answer(self, verb: str, found: object, expected: str) -> EngineError:
        shown = found if isinstance(found, str) else repr(found)
        return EngineError(
            f"engine {self._spec.name!r} answered {verb}{self._when()} with {shown[:200]}, "
            f"expected {expected}"
        )

    def _when(self) -> str:
        return "" if self.step is None else f" at step {self.step}"

    def _truth(self, verb: str, request_id: RequestId, answer: object) -> bool:
        if isinstance(answer, bool | np.bool_):
            return bool(answer)
        raise self._no_answer(f"{verb} of {request_id}", answer, "True or False")

    def _check_refusal(self, request_id: RequestId, refusal: Refusal) -> None:
        if not (
            is_a(refusal, Refusal)
            and is_a(refusal.reason, RefusalReason)
            and self._pool(refusal.pool) is not None
            and whole(refusal.needed_blocks)
            and whole(refusal.free_blocks)
            and whole(refusal.reclaimable_blocks)
        ):
            expected = f"a Refusal in blocks, with a RefusalReason, of one of {self._ranges()}"
            raise self._no_answer(f"admit of {request_id}", refusal, expected)

    def _is_copy(self, copy: object) -> bool:
        return (
            isinstance(copy, BlockCopy)
            and self._is_block(copy.pool, copy.source)
            and self._is_block(copy.pool, copy.target)
            and whole(copy.num_tokens)
            and 0 <= copy.num_tokens <= self._pools[copy.pool].block_size
        )

    def _is_zeroed(self, zeroed: object) -> bool:
        return isinstance(zeroed, tuple) and len(zeroed) == 2 and self._is_block(*zeroed)

    def _is_block(self, key: object, block: object) -> bool:
        pool = self._pool(key)
        return pool is not None and isinstance(block, int) and 0 <= block < pool.num_blocks

    def _pool(self, key: object) -> PoolSpec | None:
        return self._pools.get(key) if isinstance(key, PoolKey) else None

    def _ranges(self) -> str:
        return ", ".join(f"{key} blocks 0..{pool.num_blocks - 1}" for key, pool in self._pools.items())


def _either(names: tuple[str, ...]) -> str:
    return ", ".join(names[:-1]) + f" or {names[-1]}"
