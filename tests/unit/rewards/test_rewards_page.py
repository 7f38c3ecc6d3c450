import re
from pathlib import Path

import torch
from reward_episodes import CORRECT, episode, explore, submit

from atlas_rl.objective.metrics import advantage_metrics, capmask_metrics
from atlas_rl.records.breakdown import Breakdown
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.rewards.batch_metrics import batch_metrics
from atlas_rl.rewards.config import RewardConfig
from atlas_rl.rewards.invariants import RowErrors
from atlas_rl.rewards.score import score

PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")
KEYS_OF_TABLES = set(re.findall(r"^\| `([a-z0-9_/]+)`", PAGE, flags=re.MULTILINE))


def test_the_page_explains_every_breakdown_key() -> None:
    range_in_page = {f"explore_reward_{k}" for k in range(2, 9)}
    assert set(Breakdown.model_fields) - range_in_page <= KEYS_OF_TABLES


def test_the_page_explains_every_metric() -> None:
    rows = [score(episode(explore(), explore(), submit()), CORRECT, config=RewardConfig()).breakdown]
    ones, no_row = torch.ones(1, 2), torch.zeros(1)
    metrics = batch_metrics(rows, [RowErrors(0.0, 0.0, 0)])
    metrics |= advantage_metrics(ones, ones, ones) | capmask_metrics(ones, no_row, no_row)
    assert {key for key in KEYS_OF_TABLES if "/" in key} == set(metrics)


def test_the_page_numbers_the_terminal_reasons() -> None:
    one_line = " ".join(PAGE.split())
    assert ", ".join(f"{reason.code} {reason.value}" for reason in TerminalReason) in one_line
