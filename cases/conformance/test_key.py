"""Prefix identity: a prompt is found where equal tokens were computed before, and nowhere else.

Every answer is held against what has been computed by then, by exact identity: ``hit <= n - 1`` in whole
blocks, never more than somebody computed, and, where no block had to be given up since, never less. What a
hit returns is read back token by token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind
from kvsuite.replay.asker import Asker
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 32
pytestmark = pytest.mark.requires(Capability.PREFIX_CACHE)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_the_same_prompt_again(kv_scene: Callable[..., Scene], units: int, extra: int, beside: bool) -> None:
    """n = k * u - 1, k * u, k * u + 1: found are floor((n - 1) / u) * u, after its end or while it runs."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = units * play.unit + extra
    words = play.scene.prompts.of(("words", tokens))
    play.ask("first", words, tokens)
    play.step()
    if not beside:
        play.release("first")
    found = [play.ask(name, words, tokens, kept=True) for name in ("second", "third")]
    play.step()
    play.end()
    assert found == [(tokens - 1) // play.unit * play.unit] * 2


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("units", [1, 2])
def test_prefixes_around_a_block_boundary(kv_scene: Callable[..., Scene], units: int, extra: int) -> None:
    """Two prompts share s = k * u - 1, k * u, k * u + 1 tokens: found are floor(s / u) * u of the second."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    shared = units * play.unit + extra
    one, two = (play.scene.prompts.of(("system", shared), (tail, 9)) for tail in ("one", "two"))
    play.ask("one", one, shared + play.unit + 1)
    play.step()
    found = play.ask("two", two, shared + play.unit + 1, kept=True)
    play.step()
    play.grow("one", play.unit)
    play.grow("two", play.unit)
    play.step()
    play.end()
    assert found == shared // play.unit * play.unit


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_twins_in_one_step(kv_scene: Callable[..., Scene], order: str) -> None:
    """nano-vllm #243: equal prompts computed side by side, in two blocks or one: what stays is found.

    The one that ends first leaves no entry behind that points to what it gave back.
    """
    play = Asker(kv_scene(block_size=B, num_blocks=16))
    tokens = 2 * play.unit + 1
    words = play.scene.prompts.of(("words", tokens))
    for name in "ab":
        play.ask(name, words, tokens)
    play.step()
    play.release(order[0])
    play.ask("other", play.scene.prompts.of(("other", tokens)), tokens)
    play.step()
    play.ask("third", words, tokens, kept=True)
    play.step()
    play.release(order[1])
    play.release("third")
    play.once("fourth", words, tokens, kept=True)
    play.end()


def test_a_twin_outlives_the_other(kv_scene: Callable[..., Scene]) -> None:
    """vllm #44237: two blocks of one content, room for one of them only: the prompt is still found.

    Then the other block goes too, for other tokens, and each prompt gets its own.
    """
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = play.unit + 1
    words = play.scene.prompts.of(("words", tokens))
    for name in "ab":
        play.ask(name, words, tokens)
    play.step()
    play.release("a")
    play.release("b")
    tenants = play.fill("tenant", tokens=1, leave=play.unit // B)
    play.release(tenants[0])
    play.once("again", words, tokens, kept=len(play.scene.engine.spec.pools) == 1)
    for name in play.fill("last"):
        play.release(name)
    play.once("once more", words, tokens)
    play.end()


def test_a_refusal_in_between(kv_scene: Callable[..., Scene]) -> None:
    """Computed, refused for lack of room without a trace, taken in later: found as before."""
    play = Asker(kv_scene(block_size=B, num_blocks=16))
    words = play.scene.prompts.of(("words", 2 * play.unit))
    play.once("first", words, 2 * play.unit + 1)
    tenants = play.fill("tenant", tokens=1, leave=2 * play.unit // B)
    with play.scene.unchanged("a prompt larger than what is left"):
        refused = play.ask("second", words, 12 * play.unit)
    play.step()
    for name in tenants:
        play.release(name)
    play.once("third", words, 2 * play.unit + 1, kept=len(play.scene.engine.spec.pools) == 1)
    play.end()
    assert refused is None


def test_a_hit_needs_equal_tokens(kv_scene: Callable[..., Scene]) -> None:
    """openvino.genai #3722: prompts of one length and no common token: nothing is found, by any hash."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = 2 * play.unit + 2
    found = [
        play.once(name, play.scene.prompts.of((name, tokens)), tokens) for name in ("one", "two", "three")
    ]
    play.end()
    assert found == [0, 0, 0]


ALIKE_BUT_ONE_BIT = {8: (5338, 106284), 16: (39356, 39931), 31: (3500, 111543)}
"""Contents whose first token ids, of a vocabulary of 2**32, differ in that one bit and in no other."""


@pytest.mark.parametrize("bit", ALIKE_BUT_ONE_BIT)
def test_token_ids_that_differ_in_one_high_bit(kv_scene: Callable[..., Scene], bit: int) -> None:
    """Blocks of one token; a key that keeps fewer bits of a token id takes the one for the other."""
    play = Asker(kv_scene(block_size=1, num_blocks=NUM_BLOCKS))
    one, two = (TokenContent((key,), ()) for key in ALIKE_BUT_ONE_BIT[bit])
    ids = [int(TokenRun(content, 0, 1).token_ids(2**32)[0]) for content in (one, two)]
    assert ids[0] ^ ids[1] == 1 << bit
    tokens = play.unit + 3
    for name, content in (("one", one), ("two", two)):
        play.ask(name, content, tokens)
        play.step()
    play.ask("two again", two, tokens, kept=True)
    play.step()
    play.end()


@pytest.mark.parametrize("bit", [8, 16, 31])
def test_prompts_whose_identities_differ_in_one_high_bit(kv_scene: Callable[..., Scene], bit: int) -> None:
    """The same with the identities that the suite hands out for whole prefixes."""
    play = Asker(kv_scene(block_size=B, num_blocks=NUM_BLOCKS))
    tokens = 2 * play.unit + 2
    for name, key in (("one", 1), ("two", 1 + (1 << bit))):
        play.ask(name, TokenContent((key,), ()), tokens)
        play.step()
    play.end()


SWAPS = {
    "order": [((9, 7), (1, 1)), ((7, 5), (1, 1)), ((7, 9), (1, 1))],
    "seam": [((12, 3), (1, 1)), ((1, 5), (1, 1)), ((1, 23), (1, 1))],
    "parent": [((8, 118578), (1, 1)), ((7, 5), (1, 1)), ((7, 45473), (1, 1))],
}
"""Three prompts of two parts: the first two are computed, the third is asked for. Its first part is that of
the second; with it, it looks like the first one when parts are taken in any order, when they are written one
after another without a seam, or when the last part is taken alone (equal ids at that place)."""


@pytest.mark.parametrize("field", SWAPS)
def test_parts_that_look_alike_in_another_place(kv_scene: Callable[..., Scene], field: str) -> None:
    """Equal strings in other fields of a key: found is the first part, and not what follows another one."""
    play = Asker(kv_scene(block_size=1, num_blocks=NUM_BLOCKS))
    for number, (keys, lengths) in enumerate(SWAPS[field]):
        content = TokenContent(keys, tuple(length * play.unit for length in lengths[:-1]))
        play.ask(f"prompt{number}", content, 2 * play.unit + 2, kept=True)
        play.step()
    play.end()


SCOPES: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "adapter": [("", (7,)), ("adapter 1", (7,)), ("adapter 2", (7,))],
    "none after one": [("adapter 1", (7,)), ("", (7,)), ("adapter 2", (7,))],
    "seam": [("1", (23, 5)), ("12", (3, 5)), ("", (123, 5))],
    "swapped": [("a", (7, 9)), ("b", (9, 7)), ("b", (7, 9))],
}
"""Three prompts, each with its scope, that are never the same: equal tokens under another adapter, image or
salt, and scopes and tokens that read alike when they are written one after another or change places."""


@pytest.mark.parametrize("field", SCOPES)
def test_equal_tokens_of_another_scope(kv_scene: Callable[..., Scene], field: str) -> None:
    """An adapter, an image or a cache salt is part of a key: nothing of another scope is ever found.

    Under its own scope each prompt is found again.
    """
    play = Asker(kv_scene(block_size=1, num_blocks=NUM_BLOCKS))
    ends = (play.unit,)
    prompts = [TokenContent(keys, ends[: len(keys) - 1], scope) for scope, keys in SCOPES[field]]
    tokens = 2 * play.unit + 2
    found = []
    for number, content in enumerate(prompts):
        found.append(play.ask(f"prompt{number}", content, tokens))
        play.step()
    play.release("prompt0")
    again = play.ask("again", prompts[0], tokens, kept=True)
    play.step()
    play.end()
    assert found == [0, 0, 0]
    assert again == (tokens - 1) // play.unit * play.unit


@pytest.mark.requires(Capability.GROUPS)
def test_groups_find_as_much_as_each_other(kv_scene: Callable[..., Scene]) -> None:
    """kvcached #451: groups of unlike block sizes are keyed so that what one finds the others hold too.

    Found are multiples of every group's key; each group's table holds the hit in its own blocks.
    """
    play = Asker(kv_scene(block_size=16, num_blocks=64))
    pools = play.scene.engine.spec.pools
    words = play.scene.prompts.of(("words", 2 * play.unit))
    play.ask("first", words, 2 * play.unit + 1)
    play.step()
    first = [play.scene.table("first", pool).tolist() for pool in range(len(pools))]
    found = play.ask("second", words, 2 * play.unit + 1, kept=True) or 0
    shots = play.scene.engine.snapshot()
    play.step()
    play.end()
    for spec, shot, table in zip(pools, shots, first, strict=True):
        if spec.kind is PoolKind.FULL:
            held = found // spec.block_size
            assert shot.table(1)[:held].tolist() == table[:held]
