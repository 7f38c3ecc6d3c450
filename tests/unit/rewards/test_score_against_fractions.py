"""`score` against the page of docs/rewards.md written down with fractions, one by one, on random episodes."""

import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reward_episodes import CORRECT, NO_ANSWER, WRONG, Table, Turn, episode, explore, shaped, submit, talk

from atlas_rl.errors import RewardError
from atlas_rl.records.episode import Episode
from atlas_rl.records.vocabulary import EventKind, TerminalReason, Verdict
from atlas_rl.rewards.config import Preset, ProcessMode, RewardConfig
from atlas_rl.rewards.placement import place
from atlas_rl.rewards.potentials import ZERO
from atlas_rl.rewards.score import Scored, score

money = st.decimals(min_value=0, max_value=100, places=7, allow_nan=False)
prices = st.decimals(min_value=0, max_value=2, places=4, allow_nan=False)
worths = st.lists(st.floats(min_value=-2, max_value=2, allow_nan=False), min_size=9, max_size=9)
costs = st.lists(st.tuples(money, st.booleans()), max_size=8)


def plain(record: Episode, acc: int, config: RewardConfig, phi: Any) -> dict[str, Fraction]:
    """Every amount of the breakdown as a fraction."""

    def price(prices: Any, events: Any) -> Fraction:
        return sum(
            (Fraction(prices.per_explore) + Fraction(prices.per_dollar) * Fraction(event.charged_cost_usd))
            for event in events
        ) or Fraction(0)

    explores = [event for event in record.events if event.kind is EventKind.EXPLORE]
    submits = [event for event in record.events if event.kind is EventKind.SUBMIT]
    is_overlong = config.overlong_from_tokens is not None and record.response_tokens >= config.overlong_from_tokens
    bonus = Fraction(config.format_score) if submits and submits[0].payload_nonempty else Fraction(0)
    malus = Fraction(config.overlong_penalty) if is_overlong else Fraction(0)
    penalty = price(config.objective_prices, explores)
    final = acc - penalty + bonus - malus
    is_terminal = config.process_mode is ProcessMode.TERMINAL
    own = {
        f"explore_reward_{k}": Fraction(0)
        if is_terminal
        else phi(event.prefix_after) - phi(event.prefix_before) - price(config.objective_prices, [event])
        for k, event in enumerate(explores, 1)
    }
    last = phi(explores[-1].prefix_after if explores else 0)
    return {
        "objective": acc - penalty,
        "final_reward": final,
        "training_reward": final - phi(0),
        "utility": acc - price(config.utility_prices, explores),
        "penalty": penalty,
        "format_score": bonus,
        "overlong_penalty": malus,
        "potential_stop": last,
        "terminal_reward": final if is_terminal else acc + bonus - malus - last,
        **{f"explore_reward_{k}": Fraction(0) for k in range(1, 9)},
        **own,
    }


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def check(scored: Scored, expected: dict[str, Fraction]) -> None:
    found = {name: bits(getattr(scored.breakdown, name)) for name in expected}
    assert found == {name: bits(float(value)) for name, value in expected.items()}
    assert scored.decomposition_error == 0.0
    slots = [name for name in (f"explore_reward_{k}" for k in range(1, scored.breakdown.num_explores + 1))]
    assert [slot.exact for slot in scored.slots] == [expected[name] for name in (*slots, "terminal_reward")]
    assert len(place(scored)) == len(scored.slots)


@settings(deadline=None, max_examples=300)
@given(
    costs=costs,
    ending=st.sampled_from(["right", "wrong", "empty", "silent"]),
    per=st.tuples(prices, prices, prices, prices),
    amounts=st.tuples(prices, prices),
    mode=st.sampled_from(list(ProcessMode)),
    overlong_from=st.integers(1, 60) | st.none(),
    values=worths | st.none(),
)
def test_every_amount_is_the_float_nearest_to_the_fraction(
    costs: list[tuple[Decimal, bool]],
    ending: str,
    per: tuple[Decimal, ...],
    amounts: tuple[Decimal, Decimal],
    mode: ProcessMode,
    overlong_from: int | None,
    values: list[float] | None,
) -> None:
    turns: list[Turn] = [explore(cost=str(cost), shows=2 if shown else 0) for cost, shown in costs]
    turns.append(talk() if ending == "silent" else submit(answer="" if ending == "empty" else "A"))
    reason = TerminalReason.MAX_TURNS if ending == "silent" else TerminalReason.SUBMITTED
    record = episode(*turns, reason=reason)
    grade = {"right": CORRECT, "silent": NO_ANSWER}.get(ending, WRONG)
    config = RewardConfig(
        preset=Preset.CUSTOM,
        per_explore=per[0],
        per_dollar=per[1],
        utility_per_explore=per[2],
        utility_per_dollar=per[3],
        format_score=amounts[0],
        overlong_penalty=amounts[1] if overlong_from else Decimal(0),
        overlong_from_tokens=overlong_from,
        process_mode=mode,
    )
    is_shaped = values is not None and mode is ProcessMode.POTENTIAL
    potential = Table(tuple(values or ())) if is_shaped else ZERO
    scored = score(record, grade, config=shaped(config) if is_shaped else config, potential=potential)
    acc = int(grade.verdict is Verdict.CORRECT)
    phi = (lambda prefix: Fraction((values or [])[prefix])) if is_shaped else (lambda _: Fraction(0))
    check(scored, plain(record, acc, config, phi))


def test_no_amount_is_minus_zero() -> None:
    free = episode(explore(cost="0.000"), explore(cost="-0"), submit())
    for config in (RewardConfig(preset=Preset.DOLLAR_0_1), RewardConfig(process_mode=ProcessMode.TERMINAL)):
        values = score(free, WRONG, config=config).breakdown.model_dump().values()
        assert [value for value in values if isinstance(value, float) and bits(value) == bits(-0.0)] == []


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ("1E+400", r"episode u1_0: breakdown\.objective: Input should be a finite number"),
        ("1E+40", r"reward -1e\+39 is beyond float32"),
    ],
)
def test_a_cost_whose_reward_no_float_can_hold_is_refused(cost: str, said: str) -> None:
    record = episode(explore(cost=cost), submit())
    with pytest.raises(RewardError, match=said):
        place(score(record, WRONG, config=RewardConfig(preset=Preset.DOLLAR_0_1)))


@pytest.mark.parametrize(
    ("costs", "said"), [(("1E+40", "1E-40"), "charged_cost_usd: sum of"), (("1E-70",), "price of")]
)
def test_a_cost_of_too_many_digits_names_the_trajectory(costs: tuple[str, ...], said: str) -> None:
    record = episode(*(explore(cost=cost) for cost in costs), submit())
    prices = RewardConfig(preset=Preset.CUSTOM, per_explore=Decimal(1), per_dollar=Decimal(1))
    with pytest.raises(RewardError, match=f"episode u1_0: {said} .* needs more than 60 digits"):
        score(record, WRONG, config=prices)
