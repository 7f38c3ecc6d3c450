"""Cases about rewards that other projects got wrong, by what they mean here."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reward_episodes import NO_ANSWER, episode, explore, submit, talk

from atlas_rl.grading.exact import ExactGrader
from atlas_rl.objective.advantages import gae, turn_gae, whiten
from atlas_rl.records.vocabulary import TerminalReason, Verdict
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.placement import place, token_rewards
from atlas_rl.rewards.score import score
from atlas_rl.training.batch import BatchFacts, loss_inputs

KNOWN = {"rew-01", "rew-03", "rew-04", "rew-06", "rew-08"}


def read(shared: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Input and expectation of a case."""
    lines = map(json.loads, (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines())
    [case] = [line for line in lines if line["id"] == name]
    return case["input"], case["expected"]


def on_tokens(expected: dict[str, float], length: int) -> torch.Tensor:
    """[1, T], 0 where nothing is expected."""
    row = torch.zeros(1, length)
    for token, value in expected.items():
        row[0, int(token)] = value
    return row


def test_no_case_about_rewards_is_without_a_test(shared: Path) -> None:
    lines = map(json.loads, (shared / "cases.jsonl").read_text(encoding="utf-8").splitlines())
    assert {line["id"] for line in lines if line["id"].startswith("rew-")} == KNOWN


def test_rew_01_credit_passes_an_observation_whose_values_do_not_leak(shared: Path) -> None:
    given, expected = read(shared, "rew-01")
    rewards, values, mask = (torch.tensor([given[name]]) for name in ("rewards", "values", "mask"))
    raw, returns = gae(rewards, values, mask, given["gamma"], given["lam"])
    torch.testing.assert_close(raw, on_tokens(expected["advantages_on_mask"], 6))
    torch.testing.assert_close(returns, on_tokens(expected["returns_on_mask"], 6))
    torch.testing.assert_close(gae(rewards, values, mask, 1.0, 0.95).raw_BT, on_tokens(expected["lam_0.95"], 6))
    by_turn = turn_gae(rewards, values, torch.tensor([[0, 0, -1, -1, 1, 1]]), given["gamma"], given["lam"])
    #                                                             explore         submit
    torch.testing.assert_close(by_turn.raw_BT, torch.tensor([[0.4, 0.4, 0.0, 0.0, 0.7, 0.7]]))


@pytest.mark.parametrize("level", ["token", "turn"])
def test_rew_03_a_row_without_a_sampled_token_is_paid_nothing_and_moves_nobody(shared: Path, level: str) -> None:
    given, expected = read(shared, "rew-03")
    told = episode(talk(0), reason=TerminalReason.BUDGET_EXHAUSTED, response_tokens=3)
    empty = score(told, NO_ANSWER, config=RewardConfig())
    assert token_rewards(place(empty), 3) == expected["token_rewards"]
    rewards = torch.zeros(4, 3)  # the peers of the group scored 0
    values = torch.tensor([[given["score"]] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3])
    mask = torch.tensor([given["response_mask"], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    extra = {"is_fault": False, "is_capped": False}
    facts = BatchFacts(
        keys=[f"u_{place}_0" for place in range(4)],
        extra=[extra | {"generations": [(0, int(row.sum()), None)]} for row in mask],
        is_padding=[False] * 4,
    )
    result = loss_inputs(rewards, values, mask, facts, gamma=1.0, lam=1.0, level=level)
    assert not result.policy_mask_BT[0].any()
    assert not result.value_mask_BT[0].any()
    assert result.advantages_BT[1:, -1].tolist() == expected["peer_advantages"]
    assert not result.advantages_BT[0].any()


def test_rew_04_an_observation_ends_no_credit_and_costs_no_discount(shared: Path) -> None:
    given, expected = read(shared, "rew-04")
    rewards, mask = torch.tensor([given["rewards"]]), torch.tensor([given["mask"]])
    wanted = on_tokens(expected["returns_on_mask"], 3)
    assert torch.equal(gae(rewards, torch.zeros(1, 3), mask, given["gamma"], 1.0).returns_BT, wanted)
    by_turn = turn_gae(rewards, torch.zeros(1, 3), torch.tensor([[0, -1, 1]]), given["gamma"], 1.0)
    assert torch.equal(by_turn.returns_BT, wanted)


def test_rew_06_whitening_reads_masked_tokens_alone(shared: Path) -> None:
    given, expected = read(shared, "rew-06")
    advantages, mask = torch.tensor(given["advantages"]).float(), torch.tensor(given["mask"]).bool()
    assert float(advantages[mask].mean()) == pytest.approx(expected["masked_mean"])
    assert float(advantages[mask].var(correction=1)) == pytest.approx(expected["masked_var_unbiased"])
    good, bad = expected["whitened_on_mask"]["pos"], expected["whitened_on_mask"]["neg"]
    wanted = torch.where(advantages > 0, good, bad) * mask
    torch.testing.assert_close(whiten(advantages, mask), wanted, atol=1e-6, rtol=0)
    garbage = torch.where(mask, advantages, torch.full_like(advantages, -1e30))
    assert torch.equal(whiten(garbage, mask), whiten(advantages, mask))


def test_rew_08_text_that_an_explore_revealed_pays_nothing(shared: Path) -> None:
    given, _ = read(shared, "rew-08")
    answer = given["submit"]["answer"]

    def acc(revealed: str) -> tuple[Verdict, float, float]:
        told = episode(explore(answer=revealed), submit(answer=answer))
        grade = asyncio.run(ExactGrader().grade(told.events[-1].payload["answer"], given["gold"]))
        row = score(told, grade, config=RewardConfig()).breakdown
        return grade.verdict, row.acc, row.final_reward

    assert acc(given["observation_of_explore"]) == (Verdict.WRONG, 0.0, -0.01)
    assert acc(given["gold"]) == acc("nothing of the kind") == (Verdict.WRONG, 0.0, -0.01)
