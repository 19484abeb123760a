"""What SGLang's cache asks of a request: its rows, its ids, its lock, and how far it is computed."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsuite.engine.adapters.token_ids import ids_of
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent


@dataclass(slots=True)
class KvRecord:
    """Stands for ``ReqKvInfo`` of SGLang, whose module pulls the whole server in; names are SGLang's."""

    req_pool_idx: int | None = None
    cache_protected_len: int = 0
    cache_inserted_len: int = 0
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    swa_evict_floor: int = 0

    @property
    def holds_kv(self) -> bool:
        """Whether a row of slots is registered."""
        return self.req_pool_idx is not None

    @property
    def is_kv_released(self) -> bool:
        """Whether nothing is allocated."""
        return self.kv_allocated_len == 0

    def mark_kv_released(self) -> None:
        """Learn that everything was given back."""
        self.kv_allocated_len = 0

    def get_evicted_seqlen(self, component_type: Any) -> int:
        """Return how far a window has let go: nothing has a window here."""
        del component_type
        return 0

    def swa_dead_lo(self, page_size: int) -> int:
        """Return from where a window may let go."""
        del page_size
        return self.cache_protected_len


@dataclass(slots=True)
class CacheRequest:
    """Stands for ``Req`` of SGLang in what its allocator and tree read; names are SGLang's.

    ``prompt_tokens`` is everything that is computed before it decodes: after a retraction, the answer so far
    too. ``settled`` tokens are computed.
    """

    rid: RequestId
    content: TokenContent
    origin_input_ids: array[int]
    prompt_tokens: int
    full_untruncated_fill_ids: array[int]
    settled: int = 0
    launched: int = 0
    """Tokens it had slots for when the last step was launched."""
    kv: KvRecord = field(default_factory=KvRecord)
    lock: Any = None
    last_node: Any = None
    done: bool = False
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    skip_radix_cache_insert: bool = False
    finished_len: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens it holds slots for."""
        return self.kv.kv_allocated_len

    @property
    def decodes(self) -> bool:
        """Whether its prompt is computed."""
        return self.settled >= self.prompt_tokens

    def finished(self) -> bool:
        """Return whether it has ended."""
        return self.done

    def owned_kv_len(self) -> int:
        """Return the tokens whose slots are its own to give back."""
        return self.kv.kv_committed_len

    def refresh_fill_ids(self) -> None:
        """Make the ids reach to every token that is computed."""
        have = len(self.full_untruncated_fill_ids)
        if have < self.settled:
            self.full_untruncated_fill_ids += key_ids(TokenRun(self.content, have, self.settled))


def key_ids(tokens: TokenRun) -> array[int]:
    """Return token ids as SGLang's keys hold them."""
    ids = array("q")
    ids.frombytes(ids_of(tokens).tobytes())
    return ids
