"""Episode and grade in, reward out: pure, exact, and taken apart slot by slot.

All sums are made of fractions; a float appears only when a finished number is written down.
"""

from fractions import Fraction
from typing import Any, NamedTuple

from atlas_rl.errors import RewardError
from atlas_rl.records.breakdown import MAX_EXPLORES, Breakdown
from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import CUT_BY_LENGTH_CAP, TerminalReason
from atlas_rl.rewards.config import ProcessMode, RewardConfig
from atlas_rl.rewards.exact import add_fractions
from atlas_rl.rewards.facts import Facts, read_facts
from atlas_rl.rewards.potentials import ZERO, Potential, exact_value

_NOTHING = Fraction(0)
_OBSERVATION_DROPPED = frozenset(
    {TerminalReason.SUBMITTED_OBSERVATION_DROPPED, TerminalReason.EXPLORE_OBSERVATION_DROPPED}
)


class Slot(NamedTuple):
    """One reward and the token that earned it."""

    event_index: int | None
    """``Event.index`` of the action; None for the terminal reward of a row without submit."""
    offset: int
    """Response offset of the last sampled token of the action, or of the row."""
    exact: Fraction


_NO_SLOT = Slot(None, 0, _NOTHING)


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

    acc: Fraction = _NOTHING
    penalty: Fraction = _NOTHING
    utility_penalty: Fraction = _NOTHING
    format_score: Fraction = _NOTHING
    overlong_penalty: Fraction = _NOTHING

    @property
    def objective(self) -> Fraction:
        return self.acc - self.penalty

    @property
    def final_reward(self) -> Fraction:
        return self.objective + self.format_score - self.overlong_penalty


def score(
    episode: Episode, grade: Grade, *, config: RewardConfig, potential: Potential = ZERO, subset: str = ""
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
    if bool(config.potentials) != (potential is not ZERO):
        raise RewardError(
            f"reward.potentials={dict(config.potentials)} but score got {type(potential).__name__}; pass "
            "potentials.compose(config.potentials, ...)"
        )
    facts = read_facts(episode, grade, config)
    amounts = _Amounts() if facts.is_fault else _amounts(facts, grade, config)
    is_shaped = config.process_mode is ProcessMode.POTENTIAL and not facts.is_fault
    shaping = potential if is_shaped else ZERO
    start = _worth(shaping, episode, 0)
    stop = _worth(shaping, episode, facts.explores[-1].prefix_after if facts.explores else 0)
    slots: tuple[Slot, ...] = ()
    if episode.model_tokens and not facts.is_fault:
        slots = _slots(episode, facts, amounts, config, shaping, stop)
    training_reward = add_fractions([slot.exact for slot in slots])
    gap = training_reward - (amounts.final_reward - start) if slots else _NOTHING
    return Scored(
        breakdown=_breakdown(episode, grade, config, facts, amounts, slots, training_reward, stop, is_shaped, subset),
        slots=slots,
        decomposition_error=float(abs(gap)),
        sampled_spans=episode.sampled_spans,
    )


def _amounts(facts: Facts, grade: Grade, config: RewardConfig) -> _Amounts:
    num_explores, cost_usd = len(facts.explores), facts.cost_total_usd
    return _Amounts(
        acc=Fraction(grade.acc),
        penalty=config.objective_prices.penalty(num_explores, cost_usd),
        utility_penalty=config.utility_prices.penalty(num_explores, cost_usd),
        format_score=Fraction(config.format_score) if facts.has_answer else _NOTHING,
        overlong_penalty=Fraction(config.overlong_penalty) if facts.is_overlong else _NOTHING,
    )


def _worth(potential: Potential, episode: Episode, prefix: int) -> Fraction:
    if potential is ZERO:
        return _NOTHING
    return exact_value(potential, episode.question_id, episode.permutation_id, episode.candidate_fingerprint, prefix)


def _slots(
    episode: Episode, facts: Facts, amounts: _Amounts, config: RewardConfig, shaping: Potential, stop: Fraction
) -> tuple[Slot, ...]:
    """One slot an event; explores first, because only a submit can follow them and it is the terminal one."""
    slots = []
    for event in facts.explores:
        exact = _NOTHING
        if config.process_mode is ProcessMode.POTENTIAL:
            exact = -config.objective_prices.penalty(1, event.charged_cost_usd)
            if shaping is not ZERO:
                exact += _worth(shaping, episode, event.prefix_after) - _worth(shaping, episode, event.prefix_before)
        slots.append(Slot(event.index, event.action_end_offset - 1, exact))
    terminal = amounts.acc + amounts.format_score - amounts.overlong_penalty - stop
    if config.process_mode is ProcessMode.TERMINAL:
        terminal = amounts.final_reward
    if facts.submit is not None:
        slots.append(Slot(facts.submit.index, facts.submit.action_end_offset - 1, terminal))
    else:
        slots.append(Slot(None, _last_sampled(episode), terminal))
    if slots[-1].offset != episode.terminal_offset:
        raise RewardError(
            f"episode {episode.uid}_{episode.session_id}: its terminal reward belongs on token {slots[-1].offset}, but "
            f"terminal_offset={episode.terminal_offset}; the record is wrong"
        )
    return tuple(slots)


def _last_sampled(episode: Episode) -> int:
    return max(end for start, end in episode.sampled_spans if end > start) - 1


def _breakdown(
    episode: Episode,
    grade: Grade,
    config: RewardConfig,
    facts: Facts,
    amounts: _Amounts,
    slots: tuple[Slot, ...],
    training_reward: Fraction,
    stop: Fraction,
    is_shaped: bool,
    subset: str,
) -> Breakdown:
    did_submit = facts.submit is not None
    found_correct = bool(facts.seen_correct)
    padded = [*slots[:-1], *[_NO_SLOT] * MAX_EXPLORES][:MAX_EXPLORES]
    explore_rewards: dict[str, Any] = {f"explore_reward_{k}": float(slot.exact) for k, slot in enumerate(padded, 1)}
    return Breakdown(
        objective=float(amounts.objective),
        final_reward=float(amounts.final_reward),
        training_reward=float(training_reward),
        utility=float(amounts.acc - amounts.utility_penalty),
        acc=float(amounts.acc),
        num_explores=len(facts.explores),
        cost=facts.cost_usd,
        cost_total=facts.cost_total_usd,
        penalty=float(amounts.penalty),
        overlong=facts.is_overlong,
        overlong_penalty=float(amounts.overlong_penalty),
        format_score=float(amounts.format_score),
        has_answer=facts.has_answer,
        did_submit=did_submit,
        discovery=found_correct,
        integration=found_correct and did_submit and amounts.acc == 1,
        grader_gap=facts.grader_gap,
        subset=subset,
        potential_stop=float(stop),
        potential_defined=is_shaped,
        **explore_rewards,
        terminal_reward=float(slots[-1].exact) if slots else 0.0,
        terminal_reason_code=episode.terminal_reason.code,
        protocol_violations=episode.protocol_violations,
        invalid_call=episode.terminal_reason is TerminalReason.INVALID_CALL,
        length_capped=episode.terminal_reason in CUT_BY_LENGTH_CAP,
        observation_dropped=episode.terminal_reason in _OBSERVATION_DROPPED,
        num_turns=episode.num_turns,
        prompt_tokens=episode.prompt_tokens,
        response_tokens=episode.response_tokens,
        model_tokens=episode.model_tokens,
        first_correct_k=min(facts.seen_correct, default=0),
        found_correct=found_correct,
        submitted_after_correct=did_submit and found_correct,
        process_mode_code=config.process_mode.code,
    )
