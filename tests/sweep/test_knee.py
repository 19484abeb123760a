"""The verdicts of the knee on figures made up so that each rule decides once."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.errors import ConfigError
from kvsuite.sweep.knee import Decision, Option, decide, ratio_of


def size(
    block: int,
    tokens: int | tuple[int, ...],
    *,
    slack: float = 0.0,
    tables: float = 0.0,
    step: float = 10.0,
    **more: object,
) -> Option:
    qualified = tokens if isinstance(tokens, tuple) else (tokens,) * 3
    return Option(
        name=f"block {block}",
        block_size=block,
        qualified_tokens=qualified,
        step_us=(step,) * len(qualified),
        completed_tokens=1000,
        slack_share=slack,
        table_share=tables,
        **more,  # type: ignore[arg-type]
    )


def said(decision: Decision) -> dict[str, tuple[str | None, str | None]]:
    return {ruling.option.name: (ruling.verdict, ruling.cause) for ruling in decision.rulings}


KNEE = (
    size(1, 500, slack=0.0, step=40),
    size(2, 700, slack=0.001, step=20),
    size(4, 900, slack=0.002, step=12),
    size(8, 1000, slack=0.004, step=10),
    size(16, 980, slack=0.03, step=10),
    size(32, 700, slack=0.07, step=10),
)


def test_an_interior_size_ships_between_inspected_and_rejected_ones() -> None:
    decision = decide(KNEE)
    assert decision.result == "ship"
    assert decision.shipped == KNEE[3]
    assert decision.tied == ()
    assert said(decision) == {
        "block 1": ("inspect", "latency"),
        "block 2": ("inspect", "latency"),
        "block 4": ("inspect", "latency"),
        "block 8": ("ship", "slack"),  # its strongest rival, block 16, loses by slack
        "block 16": ("reject", "slack"),
        "block 32": ("reject", "slack"),
    }
    ratio = decision.ruling("block 16").ratio
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (0.98, 0.98, 0.98)


def test_a_slo_that_small_blocks_cannot_meet_moves_the_verdict_off_the_smallest() -> None:
    """The smallest block serves most, until it misses the SLO."""
    easy = [size(b, 1000 - b, slack=0.02 * b, step=10) for b in (1, 2, 4, 8, 16)]
    assert decide(easy).shipped == easy[0]
    hard = [replace(easy[0], qualified_tokens=(0, 0, 0), step_us=(60.0,) * 3), *easy[1:]]
    decision = decide(hard)
    assert decision.shipped == hard[1]
    assert said(decision)["block 1"] == ("inspect", "latency")


def test_table_bytes_reject_block_1_where_they_matter() -> None:
    options = [size(1, 800, tables=0.2), *(size(b, 1000, tables=0.2 / b) for b in (2, 4, 8, 16))]
    options[1] = size(2, 900, tables=0.1)
    assert said(decide(options))["block 1"] == ("reject", "table bytes")
    assert said(decide(options))["block 2"] == ("reject", "table bytes")


def test_what_loses_memory_and_latency_is_dominated() -> None:
    options = [*KNEE[:5], size(32, 700, slack=0.07, step=11)]
    assert said(decide(options))["block 32"] == ("reject", "dominated")


def test_the_larger_of_two_cause_shares_is_the_cause() -> None:
    lossy = size(64, 600, slack=0.05, tables=0.06)
    decision = decide([*KNEE, lossy])
    assert said(decision)["block 64"] == ("reject", "table bytes")
    assert said(decide([*KNEE, replace(lossy, slack_share=0.08)]))["block 64"] == ("reject", "slack")


def test_requests_that_never_fit_are_refusals() -> None:
    options = [*KNEE, size(64, 600, slack=0.001, lost_requests=4)]
    assert said(decide(options))["block 64"] == ("reject", "refusal")


NOISY = (
    size(1, (700, 710, 690)),
    size(2, (800, 810, 790)),
    size(4, (900, 910, 890), slack=0.001),
    size(8, (1000, 990, 1010), slack=0.004),
    size(16, (990, 1000, 1000), slack=0.009),
    size(32, (700, 700, 700), slack=0.2),
)


def test_within_the_noise_the_larger_block_ships() -> None:
    """Ratios of 16 to 8 in the repeats: 0.99, 1.01, 0.99; their interval holds 1."""
    decision = decide(NOISY)
    assert decision.shipped == NOISY[4]
    assert decision.tied == NOISY[3:5]
    assert said(decision)["block 8"] == ("inspect", "dominated")


def test_unless_its_extra_slack_exceeds_one_percent_of_the_pool() -> None:
    """0.4 % and 1.5 %: 1.1 % more. With 1.4 % it is 1.0 % more, which does not exceed it."""
    wasteful = [*NOISY[:4], replace(NOISY[4], slack_share=0.015), NOISY[5]]
    decision = decide(wasteful)
    assert decision.shipped == NOISY[3]
    assert said(decision)["block 16"] == ("reject", "slack")
    assert [option.name for option in decision.tied] == ["block 8", "block 16"]
    just = [*NOISY[:4], replace(NOISY[4], slack_share=0.0139), NOISY[5]]
    assert decide(just).shipped == just[4]


def test_noise_is_capped_at_five_percent() -> None:
    """1,000 +- 200 against 940 +- 300: the interval holds 1, and 6 % is more than noise may be."""
    wide = (size(16, (1300, 600, 920), slack=0.001),)
    options = [*KNEE[:3], size(8, (800, 1200, 1000), slack=0.0005), *wide]
    ratio = ratio_of(wide[0].qualified_tokens, options[3].qualified_tokens)
    assert ratio.value == pytest.approx(0.94)
    assert ratio.high > 1
    assert decide(options).tied == ()
    near = size(16, (1300, 600, 960), slack=0.001)
    assert [option.name for option in decide([*options[:4], near]).tied] == ["block 8", "block 16"]


def test_an_interval_of_equal_repeats_is_its_value() -> None:
    assert ratio_of((9, 9, 9), (10, 10, 10)) == ratio_of((9,) * 7, (10,) * 7)
    assert ratio_of((0, 0, 0), (0, 0, 0)).value == 1
    assert ratio_of((1, 0, 0), (0, 0, 0)).value == float("inf")


def test_no_size_qualifies_a_token() -> None:
    options = [replace(option, qualified_tokens=(0, 0, 0)) for option in KNEE]
    options[5] = replace(options[5], completed_tokens=0)
    decision = decide([*options, Option(name="block 3", block_size=3, refused="odd")])
    assert decision.result == "SLO unreachable on this device"
    assert decision.shipped is None
    assert set(said(decision).values()) == {("inspect", "latency"), ("reject", "refusal")}
    assert said(decision)["block 32"] == said(decision)["block 3"] == ("reject", "refusal")


def test_a_control_that_qualifies_tokens_makes_no_slo_reachable() -> None:
    options = [replace(option, qualified_tokens=(0, 0, 0)) for option in KNEE]
    control = replace(KNEE[0], name="contiguous-exact", is_control=True)
    decision = decide([*options, control])
    assert decision.result == "SLO unreachable on this device"
    assert said(decision)["contiguous-exact"] == ("inspect", "dominated")
    assert said(decision)["block 1"] == ("inspect", "latency")


def test_all_tied_is_not_decided_by_latency() -> None:
    options = [size(b, 1000, slack=0.001 * b, tables=0.01 / b) for b in (1, 2, 4, 8, 16)]
    decision = decide(options)
    assert decision.result == "not decided by latency"
    assert decision.shipped is None
    assert decision.favoured == options[3]  # 0.8 % against 0.1 %; block 16 leaves 1.6 %
    assert len(decision.tied) == 5
    assert not {verdict for verdict, _ in said(decision).values()} & {"ship"}


@pytest.mark.parametrize("ran", [0, 1, 4])
def test_fewer_than_five_sizes_give_no_verdict(ran: int) -> None:
    refused = [Option(name=f"block {b}", block_size=b, refused="not mine") for b in (64, 128, 256)]
    control = replace(KNEE[0], name="contiguous-max", is_control=True)
    decision = decide([*KNEE[:ran], *refused, control])
    assert decision.result == "no verdict"
    assert said(decision)["block 64"] == ("reject", "refusal")
    assert said(decision)["contiguous-max"] == (None, None)
    assert all(said(decision)[option.name] == (None, None) for option in KNEE[:ran])


def test_another_factor_needs_two_values_and_ties_go_to_the_leaner() -> None:
    """One block size, so nothing is larger: of two that tie, the one with less overhead."""
    pools = [
        replace(size(16, 1000, slack=slack), name=name) for name, slack in (("lean", 0.001), ("fat", 0.002))
    ]
    third = replace(size(16, 500), name="slow")
    assert decide([*pools, third], least=2).shipped == pools[0]
    assert decide(pools[:1], least=2).result == "no verdict"


def test_what_is_unfit_does_not_ship_and_is_refused() -> None:
    options = [*KNEE[:3], replace(KNEE[3], unfit="r7 starves"), *KNEE[4:]]
    decision = decide(options)
    assert decision.shipped == KNEE[4]
    assert said(decision)["block 8"] == ("reject", "refusal")
    nothing = decide([replace(option, unfit="leaks") for option in KNEE])
    assert (nothing.result, nothing.shipped) == ("no verdict", None)


def test_a_control_is_ruled_on_and_never_ships() -> None:
    control = replace(size(1, 2000, slack=0.5), name="contiguous-max", is_control=True)
    decision = decide([*KNEE, control])
    assert decision.shipped == KNEE[3]
    assert said(decision)["contiguous-max"] == ("reject", "slack")
    ratio = decision.ruling("contiguous-max").ratio
    assert ratio is not None
    assert ratio.value == 2


@pytest.mark.parametrize(
    ("tokens", "slack", "ruled"),
    [
        (1.0, 0.0, ("inspect", "dominated")),
        (2.0, 0.0, ("inspect", "dominated")),
        (0.5, 0.0, ("inspect", "latency")),
        (1.0, 0.5, ("reject", "slack")),
    ],
    ids=["as-many", "more", "fewer", "fat"],
)
def test_a_control_that_ties_is_kept_back_by_the_rule_alone(
    tokens: float, slack: float, ruled: tuple[str, str]
) -> None:
    """It reads no table, so its step is the shortest of all."""
    got = round(tokens * KNEE[3].qualified_tokens[0])
    control = replace(size(1, got, slack=slack, step=1.0), name="contiguous-max", is_control=True)
    decision = decide([*KNEE, control])
    assert said(decision)["contiguous-max"] == ruled
    assert control not in decision.tied
    assert decide(KNEE).rulings == decision.rulings[:-1]


def test_what_cannot_be_paired_is_refused() -> None:
    with pytest.raises(ConfigError, match="different numbers of repeats"):
        decide([*KNEE[:5], size(32, (1, 2, 3, 4))])
    with pytest.raises(ConfigError, match="expected the same number of both, 3 or more"):
        decide([*KNEE[:5], size(32, (1, 2))])
    with pytest.raises(ConfigError, match="two options are called 'block 1'"):
        decide([KNEE[0], KNEE[0]])


tokens = st.integers(0, 10**6)
options_of = st.lists(
    st.tuples(
        st.tuples(tokens, tokens, tokens),
        st.floats(0, 0.5),
        st.floats(0, 0.5),
        st.floats(1, 1e6),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=5,
    max_size=9,
).map(
    lambda rows: [
        size(
            2**k, got, slack=slack, tables=tables, step=step, lost_requests=lost, is_control=control and k > 4
        )
        for k, (got, slack, tables, step, lost, control) in enumerate(rows)
    ]
)


@given(options_of, st.randoms(use_true_random=False))
def test_the_order_of_the_options_decides_nothing(options: list[Option], random: object) -> None:
    shuffled = list(options)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, second = decide(options), decide(shuffled)
    assert (first.result, first.shipped, first.favoured, first.tied) == (
        second.result,
        second.shipped,
        second.favoured,
        second.tied,
    )
    assert said(first) == said(second)


@given(options_of, st.integers(1, 1000))
def test_scaling_all_tokens_decides_nothing(options: list[Option], factor: int) -> None:
    scaled = [
        replace(option, qualified_tokens=tuple(factor * got for got in option.qualified_tokens))
        for option in options
    ]
    assert said(decide(options)) == said(decide(scaled))


@given(options_of)
def test_one_ships_or_the_reason_is_named(options: list[Option]) -> None:
    decision = decide(options)
    shipped = [ruling.option for ruling in decision.rulings if ruling.verdict == "ship"]
    assert shipped == ([] if decision.shipped is None else [decision.shipped])
    assert (decision.result == "ship") == (len(shipped) == 1)
    assert all(ruling.verdict and ruling.cause for ruling in decision.rulings)


@given(options_of)
def test_nothing_that_serves_clearly_fewer_ships(options: list[Option]) -> None:
    decision = decide(options)
    if decision.shipped is not None:
        best = max(sum(o.qualified_tokens) for o in options if not o.is_control)
        assert sum(decision.shipped.qualified_tokens) >= 0.95 * best * (1 - 1e-12)


def test_every_order_of_a_small_one() -> None:
    assert {decide(order).shipped for order in permutations(NOISY[1:])} == {NOISY[4]}
