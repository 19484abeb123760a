"""The three controls: reserve the declared maximum, a power of two, or the exact final length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.contiguous.base import POOL, ContiguousEngine, Run
from kvsuite.engine.contract import BlockCopy
from kvsuite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.model import RequestId


class ContiguousMax(ContiguousEngine):
    """Reserves the most tokens the client may ask for, from the start.

    That is the declared ``max_tokens``, or else ``EngineConfig.max_model_tokens``.
    """

    name = "contiguous-max"
    reservation = "max_tokens"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._max_model_tokens = config.max_model_tokens

    def reserved_tokens(self, request_id: RequestId, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return the declared cap.

        **Raises:** `ConfigError` when neither the request nor the configuration declares one.
        """
        del prompt_tokens
        cap = self._max_model_tokens if max_tokens is None else max_tokens
        if cap is None:
            raise ConfigError(
                f"{request_id} declares no max_tokens and the configuration no max_model_tokens: "
                f"{self.name} cannot know how much to reserve; give max_model_tokens"
            )
        return cap

    def outgrow(self, request_id: RequestId, run: Run, length: int) -> bool:
        """Refuse by error: a sequence never passes the cap that was declared for it.

        **Raises:** `EngineError` always.
        """
        raise EngineError(
            f"{request_id} grows to {length} tokens, past the {run.reserved} that were declared for it: "
            "declare a larger max_tokens"
        )


class ContiguousPow2(ContiguousEngine):
    """Reserves the next power of two of what is there now, and doubles when that is full.

    It grows in place where a hole follows, else it moves to a run of its own, both held while the tokens are
    copied; where there is neither, growth is refused.
    """

    name = "contiguous-pow2"
    reservation = "power_of_two"

    def reserved_tokens(self, request_id: RequestId, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return the smallest power of two that holds the prompt."""
        del request_id, max_tokens
        return next_power_of_two(prompt_tokens)

    def outgrow(self, request_id: RequestId, run: Run, length: int) -> bool:
        """Double the reservation until ``length`` fits, in place or by moving."""
        reserved = next_power_of_two(length)
        if not self._take_at(run.start + run.reserved, reserved - run.reserved):
            start = self._take(reserved)
            if start is None:
                return False
            moved = zip(
                range(run.start, run.start + run.length), range(start, start + run.length), strict=True
            )
            self._copies += [BlockCopy(POOL, source, target, 1, request_id) for source, target in moved]
            self._give_back(run.start, run.reserved)
            run.start = start
        run.reserved = reserved
        self._changed.add(request_id)
        return True


class ContiguousExact(ContiguousEngine):
    """Reserves exactly what the request will hold at its end: it reads the trace, which no engine can.

    No contiguous scheme wastes less inside its runs, so what this control loses is lost to holes alone.
    """

    name = "contiguous-exact"
    reservation = "exact"

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        if config.trace is None:
            raise ConfigError(
                f"{self.name} must know final lengths: give EngineConfig the trace it will replay"
            )
        finals: list[int] = (config.trace.prompt_tokens + config.trace.output_tokens).tolist()
        self._final_tokens: dict[RequestId, int] = dict(zip(config.trace.request_ids, finals, strict=True))

    def reserved_tokens(self, request_id: RequestId, prompt_tokens: int, max_tokens: int | None) -> int:
        """Return the final length that the trace gives.

        **Raises:** `EngineError` for a request that is not in the trace.
        """
        del prompt_tokens, max_tokens
        try:
            return self._final_tokens[request_id]
        except KeyError:
            raise EngineError(
                f"{request_id} is not among the {len(self._final_tokens)} requests of the trace given to "
                f"{self.name}: open it with the trace that is replayed"
            ) from None

    def outgrow(self, request_id: RequestId, run: Run, length: int) -> bool:
        """Refuse by error: the trace said that the sequence ends here.

        **Raises:** `EngineError` always.
        """
        raise EngineError(
            f"{request_id} grows to {length} tokens, but the trace given to {self.name} "
            f"ends it at {run.reserved}: open it with the trace that is replayed"
        )


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is at least ``value``, for ``value`` of 1 or more.

    >>> [next_power_of_two(n) for n in (1, 2, 3, 1024, 1025)]
    [1, 2, 4, 1024, 2048]
    """
    return 1 << (value - 1).bit_length()
