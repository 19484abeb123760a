"""Keys that say too little of a prefix, so that one prompt is taken for another."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from kvsuite.engine.extensions.group_members import FullGroup
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant
from kvsuite.trace.tokens import TokenContent

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvsuite.trace.tokens import PrefixKey, TokenRun

_KEY = "conformance/test_key.py::"
_VOCABULARY = 2**32


class _OtherKeys(ReferenceEngine):
    """Names the blocks of a prompt by keys of its own."""

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        size = self.cache.block_size
        keys = [self.key_of(prompt, block) for block in range(prompt.stop // size)]
        return cast("list[PrefixKey]", keys)

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the key of one full block of a prompt."""
        raise NotImplementedError

    def segments(self, content: TokenContent, block: int) -> list[int]:
        """Return the segment that each block up to ``block`` ends in."""
        size = self.cache.block_size
        return [content.prefix_key((b + 1) * size) >> 32 for b in range(block + 1)]


@mutant(
    "constant-hash",
    caught_by="content",
    shown_by="two different prompts of a block or more",
    kind="KEY",
    killer=f"{_KEY}test_a_hit_needs_equal_tokens",
)
class ConstantHash(_OtherKeys):
    """Every block has the same hash, and a hit is taken on the hash alone: tokens are not compared."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return one key for all."""
        del prompt, block
        return 0


class _NarrowIds(_OtherKeys):
    bits: ClassVar[int]

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the low bits of every token id up to the end of the block."""
        ids = prompt.token_ids(_VOCABULARY)[: (block + 1) * self.cache.block_size]
        return tuple((ids & (2**self.bits - 1)).tolist())


@mutant(
    "token-ids-of-8-bits",
    caught_by="content",
    shown_by="prompts whose ids are equal in their low 8 bits",
    kind="KEY",
    killer=f"{_KEY}test_token_ids_that_differ_in_one_high_bit",
)
class TokenIdsOf8Bits(_NarrowIds):
    """A key keeps the low 8 bits of each token id."""

    bits = 8


@mutant(
    "token-ids-of-31-bits",
    caught_by="content",
    shown_by="prompts whose ids are equal in their low 31 bits",
    kind="KEY",
    killer=f"{_KEY}test_token_ids_that_differ_in_one_high_bit",
)
class TokenIdsOf31Bits(_NarrowIds):
    """A key packs token ids into signed 32-bit integers and loses the highest bit."""

    bits = 31


@mutant(
    "prefix-identity-of-16-bits",
    caught_by="content",
    shown_by="prompts whose identities are equal in their low 16 bits",
    kind="KEY",
    killer=f"{_KEY}test_prompts_whose_identities_differ_in_one_high_bit",
)
class PrefixIdentityOf16Bits(_OtherKeys):
    """A key keeps the low 16 bits of what a prefix is."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Cut the identity short."""
        return block, self.segments(prompt.content, block)[-1] & 0xFFFF


@mutant(
    "key-without-order",
    caught_by="content",
    shown_by="prompts of the same parts in another order",
    kind="KEY",
    killer=f"{_KEY}test_parts_that_look_alike_in_another_place",
)
class KeyWithoutOrder(_OtherKeys):
    """Block hashes are combined by a sum: the same parts in another order have the same key."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the sum of the segments."""
        return block, sum(self.segments(prompt.content, block))


@mutant(
    "key-without-seam",
    caught_by="content",
    shown_by="prompts whose parts read alike one after another",
    kind="KEY",
    killer=f"{_KEY}test_parts_that_look_alike_in_another_place",
)
class KeyWithoutSeam(_OtherKeys):
    """The fields of a key are written one after another without a seam: 1, 23 is 12, 3."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the segments as one string."""
        return block, "".join(str(segment) for segment in self.segments(prompt.content, block))


@mutant(
    "key-without-parent",
    caught_by="content",
    shown_by="prompts with an equal block after different ones",
    kind="KEY",
    killer=f"{_KEY}test_parts_that_look_alike_in_another_place",
)
class KeyWithoutParent(_OtherKeys):
    """A block is known by its own tokens and place, whatever came before it."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the ids of the block alone."""
        size = self.cache.block_size
        return block, tuple(prompt.token_ids(_VOCABULARY)[block * size : (block + 1) * size].tolist())


@mutant(
    "key-of-first-token",
    caught_by="content",
    shown_by="prompts that part inside a block",
    kind="KEY",
    killer=f"{_KEY}test_prefixes_around_a_block_boundary",
)
class KeyOfFirstToken(_OtherKeys):
    """A key says what a prefix is up to the first token of its last block, and not to the end of it."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the identity of one token too few, or of many."""
        return prompt.content.prefix_key(block * self.cache.block_size + 1)


@mutant(
    "key-without-scope",
    caught_by="content",
    shown_by="equal prompts under two adapters",
    kind="KEY",
    killer=f"{_KEY}test_equal_tokens_of_another_scope",
)
class KeyWithoutScope(_OtherKeys):
    """A key says which tokens a prefix has, and not by which adapter they were computed."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return the identity of the tokens alone."""
        bare = TokenContent(prompt.content.keys, prompt.content.ends)
        return bare.prefix_key((block + 1) * self.cache.block_size)


@mutant(
    "scope-joined-to-tokens",
    caught_by="content",
    shown_by="a scope that reads like the first token of a prompt without one",
    kind="KEY",
    killer=f"{_KEY}test_equal_tokens_of_another_scope",
)
class ScopeJoinedToTokens(_OtherKeys):
    """A key is one text, scope and tokens one after the other without a seam: a, bc is ab, c."""

    def key_of(self, prompt: TokenRun, block: int) -> Hashable:
        """Return scope and segments as one string."""
        return block, prompt.scope + "".join(str(part) for part in self.segments(prompt.content, block))

    def segments(self, content: TokenContent, block: int) -> list[int]:
        """Return the segment that each block up to ``block`` ends in, whatever the scope."""
        return super().segments(TokenContent(content.keys, content.ends), block)


class _CoarselyKeyedGroup(FullGroup):
    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        size = self.cache.block_size
        keys = [prompt.content.prefix_key(block * size + size // 2) for block in range(prompt.stop // size)]
        return keys[: self.found_tokens // size]


@mutant(
    "group-keyed-by-half-a-block",
    caught_by="hits",
    shown_by="a prompt asked for twice of an engine with groups",
    kind="KEY",
    killer=f"{_KEY}test_groups_find_as_much_as_each_other",
)
class GroupKeyedByHalfABlock(GroupsEngine):
    """A group is keyed by units of another group's block size."""

    full_group = _CoarselyKeyedGroup
