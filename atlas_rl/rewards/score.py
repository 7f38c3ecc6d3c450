"""Episode and grade in, reward out: pure, exact, and taken apart slot by slot.

All sums are made of decimals, and of fractions where a potential joins in; a float appears only when a finished
number is written down.
"""

from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import ValidationError

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import MAX_EXPLORES, Breakdown
from atlas_rl.records.json_text import one_line
from atlas_rl.records.scoring import AnyEpisode
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import CUT_BY_LENGTH_CAP, TerminalReason
from atlas_rl.rewards.config import ProcessMode, RewardConfig
from atlas_rl.rewards.exact import NOTHING, Exact, add_exact, minus, plus, to_float
from atlas_rl.rewards.facts import Facts, read_facts
from atlas_rl.rewards.potentials import ZERO, Potential, ZeroPotential, exact_value

_ONE = Decimal(1)
_REASON_CODES = {reason: reason.code for reason in TerminalReason}
_MODE_CODES = {mode: mode.code for mode in ProcessMode}
_EXPLORE_REWARDS = tuple(f"explore_reward_{k}" for k in range(1, MAX_EXPLORES + 1))
_NO_EXPLORE_REWARDS = dict.fromkeys(_EXPLORE_REWARDS, 0.0)
_OBSERVATION_DROPPED = frozenset(
    {TerminalReason.SUBMITTED_OBSERVATION_DROPPED, TerminalReason.EXPLORE_OBSERVATION_DROPPED}
)


class Slot(NamedTuple):
    """One reward and the token that earned it."""

    event_index: int | None
    """``Event.index`` of the action; None for the terminal reward of a row without submit."""
    offset: int
    """Response offset of the last sampled token of the action, or of the row."""
    exact: Exact


class Scored(NamedTuple):
    """The reward of one episode and the parts that place it."""

    breakdown: Breakdown
    slots: tuple[Slot, ...]
    """One an event, in order, and one more for the terminal reward of a row without submit; none for a row that is
    an infrastructure error or has no sampled token."""
    decomposition_error: float
    """|sum of the slots - (final reward - start potential)|, the two sides added up apart; 0 unless the events
    contradict each other."""
    sampled_spans: tuple[tuple[int, int], ...]
    """[num_turns] half-open response ranges of the sampled tokens."""


class _Amounts(NamedTuple):
    """The exact parts of a final reward; all zero for an infrastructure error."""

    acc: Decimal = NOTHING
    penalty: Decimal = NOTHING
    format_score: Decimal = NOTHING
    overlong_penalty: Decimal = NOTHING
    objective: Decimal = NOTHING
    final_reward: Decimal = NOTHING
    utility: Decimal = NOTHING


class _Worths:
    """The potential of one row's prefixes, each asked for once."""

    def __init__(self, potential: Potential, episode: AnyEpisode) -> None:
        self._potential = potential
        self._episode = episode
        self._known: dict[int, Fraction] = {}

    def __getitem__(self, prefix: int) -> Fraction:
        if prefix not in self._known:
            row = self._episode
            try:
                worth = exact_value(
                    self._potential, row.question_id, row.permutation_id, row.candidate_fingerprint, prefix
                )
            except RewardError as error:
                raise RewardError(f"episode {row.uid}_{row.session_id}: {error}") from error
            self._known[prefix] = worth
        return self._known[prefix]


def score(
    episode: AnyEpisode, grade: Grade, *, config: RewardConfig, potential: Potential = ZERO, subset: str = ""
) -> Scored:
    """Compute the reward of one episode; docs/rewards.md explains every number.

    The result depends on the arguments alone: no clock, no file, no model.

    Args:
        episode: what happened.
        grade: the one verdict on its submitted answer.
        config: the reward definition.
        potential: what ``config.potentials`` stands for, from ``potentials.compose``.
        subset: part of the benchmark the row belongs to, copied into the breakdown.

    Raises:
        RewardError: the episode and the grade contradict each other, the episode says too little to be scored, the
            potential does not know the row, or it is not the one that the config names.
    """
    is_zero = isinstance(potential, ZeroPotential)  # not `is ZERO`: one that travelled to a process is another object
    if bool(config.potentials) == is_zero:
        raise RewardError(
            f"reward.potentials={dict(config.potentials)} but score got {type(potential).__name__}; pass "
            "potentials.compose(config.potentials, ...)"
        )
    facts = read_facts(episode, grade, config)
    try:
        amounts = _Amounts() if facts.is_fault else _amounts(facts, grade, config)
    except RewardError as error:
        raise RewardError(f"episode {episode.uid}_{episode.session_id}: {error}") from error
    is_shaped = config.process_mode is ProcessMode.POTENTIAL and not facts.is_fault
    worths = _Worths(potential, episode) if is_shaped and not is_zero else None
    start: Exact = worths[0] if worths else NOTHING
    stop: Exact = worths[facts.explores[-1].prefix_after if facts.explores else 0] if worths else NOTHING
    sampled_spans = episode.sampled_spans
    slots: tuple[Slot, ...] = ()
    if episode.model_tokens and not facts.is_fault:
        slots = _slots(episode, facts, amounts, config, worths, stop, sampled_spans)
    training_reward = add_exact([slot.exact for slot in slots])
    gap = _difference(training_reward, _difference(amounts.final_reward, start)) if slots else NOTHING
    return Scored(
        breakdown=_breakdown(episode, config, facts, amounts, slots, training_reward, stop, is_shaped, subset),
        slots=slots,
        decomposition_error=abs(to_float(gap)),
        sampled_spans=sampled_spans,
    )


def _amounts(facts: Facts, grade: Grade, config: RewardConfig) -> _Amounts:
    num_explores, cost_usd = len(facts.explores), facts.cost_total_usd
    acc = _ONE if grade.acc else NOTHING
    penalty = config.objective_prices.penalty(num_explores, cost_usd)
    format_score = config.format_score if facts.has_answer else NOTHING
    overlong_penalty = config.overlong_penalty if facts.is_overlong else NOTHING
    objective = minus(acc, penalty)
    return _Amounts(
        acc=acc,
        penalty=penalty,
        format_score=format_score,
        overlong_penalty=overlong_penalty,
        objective=objective,
        final_reward=minus(plus(objective, format_score), overlong_penalty),
        utility=minus(acc, config.utility_prices.penalty(num_explores, cost_usd)),
    )


def _difference(left: Exact, right: Exact) -> Exact:
    """Left less right; of a decimal and a fraction, a fraction."""
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return minus(left, right)
    return Fraction(left) - Fraction(right)


def _slots(
    episode: AnyEpisode,
    facts: Facts,
    amounts: _Amounts,
    config: RewardConfig,
    worths: _Worths | None,
    stop: Exact,
    sampled_spans: tuple[tuple[int, int], ...],
) -> tuple[Slot, ...]:
    """One slot an event; explores first, because only a submit can follow them and it is the terminal one."""
    slots = []
    is_terminal = config.process_mode is ProcessMode.TERMINAL
    prices = config.objective_prices
    for event in facts.explores:
        exact: Exact = NOTHING if is_terminal else minus(NOTHING, prices.penalty(1, event.charged_cost_usd))
        if worths is not None:
            exact = Fraction(exact) + worths[event.prefix_after] - worths[event.prefix_before]
        slots.append(Slot(event.index, event.action_end_offset - 1, exact))
    if is_terminal:
        terminal: Exact = amounts.final_reward
    else:
        terminal = _difference(minus(plus(amounts.acc, amounts.format_score), amounts.overlong_penalty), stop)
    if facts.submit is not None:
        slots.append(Slot(facts.submit.index, facts.submit.action_end_offset - 1, terminal))
    else:
        slots.append(Slot(None, max(end for start, end in sampled_spans if end > start) - 1, terminal))
    if slots[-1].offset != episode.terminal_offset:
        raise RewardError(
            f"episode {episode.uid}_{episode.session_id}: its terminal reward belongs on token {slots[-1].offset}, but "
            f"terminal_offset={episode.terminal_offset}; the record is wrong"
        )
    return tuple(slots)


def _breakdown(
    episode: AnyEpisode,
    config: RewardConfig,
    facts: Facts,
    amounts: _Amounts,
    slots: tuple[Slot, ...],
    training_reward: Exact,
    stop: Exact,
    is_shaped: bool,
    subset: str,
) -> Breakdown:
    did_submit = facts.submit is not None
    found_correct = bool(facts.seen_correct)
    reason = episode.terminal_reason
    values: dict[str, Any] = {
        "objective": to_float(amounts.objective),
        "final_reward": to_float(amounts.final_reward),
        "training_reward": to_float(training_reward),
        "utility": to_float(amounts.utility),
        "acc": to_float(amounts.acc),
        "num_explores": len(facts.explores),
        "cost": facts.cost_usd,
        "cost_total": facts.cost_total_usd,
        "penalty": to_float(amounts.penalty),
        "overlong": facts.is_overlong,
        "overlong_penalty": to_float(amounts.overlong_penalty),
        "format_score": to_float(amounts.format_score),
        "has_answer": facts.has_answer,
        "did_submit": did_submit,
        "discovery": found_correct,
        "integration": found_correct and did_submit and amounts.acc == _ONE,
        "grader_gap": facts.grader_gap,
        "subset": subset,
        "potential_stop": to_float(stop),
        "potential_defined": is_shaped,
        **_NO_EXPLORE_REWARDS,
        "terminal_reward": to_float(slots[-1].exact) if slots else 0.0,
        "terminal_reason_code": _REASON_CODES[reason],
        "protocol_violations": episode.protocol_violations,
        "invalid_call": reason is TerminalReason.INVALID_CALL,
        "length_capped": reason in CUT_BY_LENGTH_CAP,
        "observation_dropped": reason in _OBSERVATION_DROPPED,
        "num_turns": episode.num_turns,
        "prompt_tokens": episode.prompt_tokens,
        "response_tokens": episode.response_tokens,
        "model_tokens": episode.model_tokens,
        "first_correct_k": min(facts.seen_correct, default=0),
        "found_correct": found_correct,
        "submitted_after_correct": did_submit and found_correct,
        "process_mode_code": _MODE_CODES[config.process_mode],
    }
    for name, slot in zip(_EXPLORE_REWARDS, slots[:-1], strict=False):
        values[name] = to_float(slot.exact)
    try:
        return Breakdown.model_validate(values)
    except ValidationError as error:
        raise RewardError(
            f"episode {episode.uid}_{episode.session_id}: breakdown.{one_line(error)}; lower the prices or the costs"
        ) from error
