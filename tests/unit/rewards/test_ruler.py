"""Which token carries what, drawn token by token: rewards as placed, advantages and returns at both levels."""

from inspect import cleandoc
from typing import Any

import torch
from reward_episodes import CORRECT, NO_ANSWER, Turn, episode, explore, submit, talk

from atlas_rl.records.episode import Episode
from atlas_rl.records.trajectory import Grade
from atlas_rl.records.vocabulary import CUT_BY_LENGTH_CAP, TerminalReason
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.placement import place, token_rewards
from atlas_rl.rewards.score import score
from atlas_rl.training.batch import BatchFacts, LossInputs, loss_inputs

PRICE = RewardConfig.from_mapping({"preset": "custom", "per_explore": 0.25, "per_dollar": 0})


def facts_of(told: Episode) -> dict[str, Any]:
    return {
        "is_fault": told.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR,
        "is_capped": told.terminal_reason in CUT_BY_LENGTH_CAP,
        "generations": [(g.response_offset, g.num_sampled, g.grammar_hash) for g in told.generations],
    }


def labels(told: Episode, *turns: Turn) -> list[str]:
    """[T] what each token is part of."""
    names = ["observation"] * told.response_tokens
    for (start, end), turn in zip(told.sampled_spans, turns, strict=True):
        names[start:end] = [turn.kind.value if turn.kind else "talk"] * (end - start)
    return names


def ruler(*turns: Turn, grade: Grade, values: list[float], gamma: float, lam: float, **ending: Any) -> str:
    """One line a token: its place, turn, mask, reward, value, and of both levels the advantage, return and target.

    A target is a return that the critic learns; an advantage in brackets is one that the policy does not.
    """
    told = episode(*turns, **ending)
    rewards = token_rewards(place(score(told, grade, config=PRICE)), told.response_tokens)
    mask = [0] * told.response_tokens
    for start, end in told.sampled_spans:
        mask[start:end] = [1] * (end - start)
    if told.terminal_reason is TerminalReason.INFRASTRUCTURE_ERROR:
        mask = [0] * told.response_tokens  # as the agent loop hands it over
    facts = BatchFacts(keys=["u1_0_0"], extra=[facts_of(told)], is_padding=[False])
    levels = [
        loss_inputs(
            torch.tensor([rewards]), torch.tensor([values]), torch.tensor([mask]), facts,
            gamma=gamma, lam=lam, level=level,
        )
        for level in ("token", "turn")
    ]  # fmt: skip
    lines = ["at mask reward  value | token: adv  return | turn: adv  return   part of"]
    for at, name in enumerate(labels(told, *turns)):
        reward = f"{rewards[at]:+.2f}" if rewards[at] else "."
        cells = [credit(level, at) if mask[at] else f"{'.':>7} {'.':>7} " for level in levels]
        lines.append(
            f"{at:>2} {mask[at]:>4} {reward:>6} {values[at]:>6.2f} | {cells[0]:>17} | {cells[1]:>16}   {name}".rstrip()
        )
    return "\n".join(lines)


def credit(level: LossInputs, at: int) -> str:
    raw = f"{float(level.raw_BT[0, at]):+.2f}"
    target = "*" if level.value_mask_BT[0, at] else " "
    return f"{raw if level.policy_mask_BT[0, at] else f'({raw})':>7} {float(level.returns_BT[0, at]):>+7.2f}{target}"


def test_two_actions_and_the_observation_between_them() -> None:
    drawn = ruler(
        explore(3, shows=2), submit(2), grade=CORRECT, gamma=1.0, lam=1.0, values=[0.5, 0.6, 0.7, 9.0, 9.0, 0.8, 0.9]
    )
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    1      .   0.50 |    +0.25   +0.75* |   +0.25   +0.75*   explore
         1    1      .   0.60 |    +0.15   +0.75* |   +0.25   +0.75    explore
         2    1  -0.25   0.70 |    +0.05   +0.75* |   +0.25   +0.75    explore
         3    0      .   9.00 |        .       .  |       .       .    observation
         4    0      .   9.00 |        .       .  |       .       .    observation
         5    1      .   0.80 |    +0.20   +1.00* |   +0.20   +1.00*   submit
         6    1  +1.00   0.90 |    +0.10   +1.00* |   +0.20   +1.00    submit
    """)


def test_a_discount_is_one_step_a_token_or_one_step_an_action() -> None:
    drawn = ruler(explore(3, shows=2), submit(2), grade=CORRECT, gamma=0.5, lam=1.0, values=[0.0] * 7)
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    1      .   0.00 |    +0.00   +0.00* |   +0.25   +0.25*   explore
         1    1      .   0.00 |    +0.00   +0.00* |   +0.25   +0.25    explore
         2    1  -0.25   0.00 |    +0.00   +0.00* |   +0.25   +0.25    explore
         3    0      .   0.00 |        .       .  |       .       .    observation
         4    0      .   0.00 |        .       .  |       .       .    observation
         5    1      .   0.00 |    +0.50   +0.50* |   +1.00   +1.00*   submit
         6    1  +1.00   0.00 |    +1.00   +1.00* |   +1.00   +1.00    submit
    """)


def test_a_decay_of_0_looks_no_further_than_the_next_value() -> None:
    drawn = ruler(
        explore(2, shows=1), submit(2), grade=CORRECT, gamma=1.0, lam=0.0, values=[0.5, 0.75, 9.0, 0.875, 0.9375]
    )
    #  token 0 sees 0.75 of token 1; the explore at turn level sees 0.875 of the submit, past its own second token
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    1      .   0.50 |    +0.25   +0.75* |   +0.12   +0.62*   explore
         1    1  -0.25   0.75 |    -0.12   +0.62* |   +0.12   +0.62    explore
         2    0      .   9.00 |        .       .  |       .       .    observation
         3    1      .   0.88 |    +0.06   +0.94* |   +0.12   +1.00*   submit
         4    1  +1.00   0.94 |    +0.06   +1.00* |   +0.12   +1.00    submit
    """)


def test_a_row_cut_by_the_cap_teaches_the_critic_alone() -> None:
    drawn = ruler(
        explore(2, shows=1), explore(2, shows=0), grade=NO_ANSWER, gamma=1.0, lam=1.0, values=[0.0] * 5,
        reason=TerminalReason.EXPLORE_OBSERVATION_DROPPED,
    )  # fmt: skip
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    1      .   0.00 |  (-0.50)   -0.50* | (-0.50)   -0.50*   explore
         1    1  -0.25   0.00 |  (-0.50)   -0.50* | (-0.50)   -0.50    explore
         2    0      .   0.00 |        .       .  |       .       .    observation
         3    1      .   0.00 |  (-0.25)   -0.25* | (-0.25)   -0.25*   explore
         4    1  -0.25   0.00 |  (-0.25)   -0.25* | (-0.25)   -0.25    explore
    """)


def test_a_row_without_an_event_is_one_action_that_earned_nothing() -> None:
    drawn = ruler(talk(3), grade=NO_ANSWER, gamma=1.0, lam=1.0, values=[0.2, 0.1, 0.0], reason=TerminalReason.NO_CALL)
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    1      .   0.20 |    -0.20   +0.00* |   -0.20   +0.00*   talk
         1    1      .   0.10 |    -0.10   +0.00* |   -0.20   +0.00    talk
         2    1      .   0.00 |    +0.00   +0.00* |   -0.20   +0.00    talk
    """)


def test_a_fault_carries_nothing() -> None:
    drawn = ruler(
        explore(2, shows=1), talk(1), grade=NO_ANSWER, gamma=1.0, lam=1.0, values=[9.0] * 4,
        reason=TerminalReason.INFRASTRUCTURE_ERROR,
    )  # fmt: skip
    assert drawn == cleandoc("""
        at mask reward  value | token: adv  return | turn: adv  return   part of
         0    0      .   9.00 |        .       .  |       .       .    explore
         1    0      .   9.00 |        .       .  |       .       .    explore
         2    0      .   9.00 |        .       .  |       .       .    observation
         3    0      .   9.00 |        .       .  |       .       .    talk
    """)
