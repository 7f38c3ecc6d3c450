import math

import torch

from atlas_rl.objective.advantages import whiten
from atlas_rl.objective.metrics import advantage_metrics, capmask_metrics, mismatch_metrics, value_metrics

NO, YES = False, True


def test_advantage_figures_are_over_the_policy_mask_alone() -> None:
    raw = torch.tensor([[1.0, 1.0, 50.0, 1.0], [-1.0, -1.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    metrics = advantage_metrics(raw, whiten(raw, mask), mask)
    assert abs(metrics["adv/raw_mean_policy_mask"] - 0.2) < 1e-7
    assert abs(metrics["adv/whitened_var_policy_mask"] - 1.0) < 1e-6


def test_whitening_over_a_wrong_mask_shows_in_the_variance() -> None:
    raw = torch.tensor([[1.0, 1.0, 50.0, 1.0], [-1.0, -1.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0]])
    assert advantage_metrics(raw, whiten(raw, torch.ones(2, 4)), mask)["adv/whitened_var_policy_mask"] < 0.01


def test_a_figure_without_enough_tokens_has_no_key() -> None:
    one_token = torch.tensor([[1, 0]])
    assert advantage_metrics(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2)) == {}
    assert advantage_metrics(torch.ones(1, 2), torch.zeros(1, 2), one_token) == {"adv/raw_mean_policy_mask": 1.0}


def test_the_cap_share_is_over_real_rows_without_a_fault() -> None:
    response = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    #                      plain cap  fault+cap plain  padding copied from a capped row
    capped = torch.tensor([NO, YES, YES, NO, YES])
    fault = torch.tensor([NO, NO, YES, NO, NO])
    assert capmask_metrics(response, capped, fault) == {
        "capmask/policy_tokens": 5.0,
        "capmask/capped_row_fraction": 1 / 3,
    }


def test_a_batch_of_faults_has_no_cap_share() -> None:
    assert capmask_metrics(torch.ones(2, 3), torch.tensor([YES, NO]), torch.tensor([YES, YES])) == {
        "capmask/policy_tokens": 0.0
    }


def test_policy_tokens_are_counted_without_forced_ones() -> None:
    response, forced = torch.tensor([[1, 1, 0, 1]]), torch.tensor([[NO, YES, YES, NO]])
    metrics = capmask_metrics(response, torch.tensor([NO]), torch.tensor([NO]), forced)
    assert metrics["capmask/policy_tokens"] == 2.0


def test_mismatch_is_split_into_forced_and_free_tokens() -> None:
    sampled = torch.tensor([[1, 1, 1, 0]])
    engine = torch.tensor([[-1.0, 0.0, -2.0, 99.0]])
    trainer = torch.tensor([[-1.5, -8.0, -1.0, 0.0]])
    metrics = mismatch_metrics(engine, trainer, sampled, torch.tensor([[NO, YES, NO, YES]]))
    assert metrics["mismatch/forced_token_fraction"] == torch.tensor(1 / 3).item()
    assert metrics["mismatch/forced/logprob_difference_max"] == 8.0
    assert metrics["mismatch/free/logprob_difference_mean"] == 0.75
    assert metrics["mismatch/free/logprob_difference_max"] == 1.0
    expected = ((math.exp(-0.5) + 0.5 - 1) + (math.exp(1.0) - 1.0 - 1)) / 2
    assert abs(metrics["mismatch/free/kl_k3"] - expected) < 1e-12


def test_a_kind_without_a_token_has_no_mismatch() -> None:
    one = torch.ones(1, 2)
    metrics = mismatch_metrics(one, one, one, torch.zeros(1, 2, dtype=torch.bool))
    assert not [name for name in metrics if name.startswith("mismatch/forced/")]
    assert metrics["mismatch/free/kl_k3"] == 0.0


def test_mismatch_of_a_batch_without_a_sampled_token_has_no_figure() -> None:
    nothing = torch.zeros(1, 3)
    assert mismatch_metrics(nothing, nothing, nothing, nothing.bool()) == {}


def test_figures_of_the_critic_are_over_the_tokens_that_it_learns() -> None:
    values, returns = torch.tensor([[0.0, 9.0, 1.0, -9.0]]), torch.tensor([[0.5, 0.5, 2.5, 2.5]])
    metrics = value_metrics(values, returns, torch.tensor([[1, 0, 1, 0]]))
    assert metrics == {
        "critic/values/mean": 0.5, "critic/values/max": 1.0, "critic/values/min": 0.0,
        "critic/returns/mean": 1.5, "critic/returns/max": 2.5, "critic/returns/min": 0.5,
        "critic/vf_explained_var": 1 - 0.5 / (2.0 + 1e-5),
    }  # fmt: skip


def test_figures_of_a_critic_that_learns_too_few_tokens_have_no_key() -> None:
    zeros = torch.zeros(1, 2)
    assert value_metrics(zeros, zeros, zeros) == {}
    assert "critic/vf_explained_var" not in value_metrics(zeros, zeros, torch.tensor([[1, 0]]))
