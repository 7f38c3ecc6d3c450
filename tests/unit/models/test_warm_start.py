import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import row_showing, urn, urn_rows

from atlas_rl.errors import ConfigError
from atlas_rl.models.batches import micro_batches, pad, target_logits, target_weights
from atlas_rl.models.checks import check_episodes, measure
from atlas_rl.models.demonstrations import Demonstration, Protocol, StopConfig, demonstrate
from atlas_rl.models.folder import load_model, round_to_stored
from atlas_rl.models.local import local_generate
from atlas_rl.models.supervised import train
from atlas_rl.models.warm_start import WarmStartConfig, warm_start
from atlas_rl.records.episode import Sampling
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled
from atlas_rl.runtime.limits import Limits

LIMITS = Limits(max_prompt_length=512, max_response_length=256)
QUICK = WarmStartConfig(
    primer_steps=2, num_steps=3, batch_episodes=4, num_held_out=4, num_check_episodes=2, rise_steps=1, limits=LIMITS
)


def demonstration(prompt: tuple[int, ...], response: tuple[int, ...], mask: tuple[int, ...]) -> Demonstration:
    return Demonstration(
        question_id="q",
        num_explores=1,
        answer="A",
        prompt_ids=prompt,
        response_ids=response,
        response_mask=mask,
        num_answer_tokens=1,
    )


def demonstrations(protocol: Protocol, count: int) -> list[Demonstration]:
    stops = (1, 2, 3)
    return [asyncio.run(demonstrate(protocol, row, stops[i % 3], LIMITS)) for i, row in enumerate(urn_rows(count))]


def request(
    prompt_ids: tuple[int, ...], *, temperature: float, seed: int | None = 5, **changed: Any
) -> GenerateRequest:
    sampling = Sampling(temperature=temperature, top_p=changed.pop("top_p", 1.0), top_k=-1, seed=seed)
    values = {"max_tokens": 6, "structural_tag": None, **changed}
    return GenerateRequest(request_id="r", prompt_ids=prompt_ids, sampling=sampling, **values)


def ask(generate: Generate, asked: GenerateRequest) -> Sampled:
    async def answer() -> Sampled:
        return await generate(asked)

    return asyncio.run(answer())


# Batches ------------------------------------------------------------------------------------------------------------


def test_episodes_are_padded_on_the_right_and_targets_are_masked_tokens() -> None:
    batch = pad([demonstration((1, 2), (3, 4, 5), (1, 0, 1)), demonstration((6,), (7,), (1,))])
    assert batch.ids_BT.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert batch.is_target_BT.int().tolist() == [[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]]


def test_the_first_token_of_an_answer_has_its_own_weight(protocol: Protocol) -> None:
    played = asyncio.run(demonstrate(protocol, row_showing("ABBCCCDD"), 1, LIMITS))
    #                                                      explore     submit up to the choice, answer, end of call
    assert target_weights([played], 5.0).tolist() == [*[1.0] * 4, *[1.0] * 2, 5.0, *[1.0] * 3]


def test_micro_batches_hold_every_episode_once_within_the_token_bound() -> None:
    episodes = [demonstration((1,) * length, (1,), (1,)) for length in (5, 1, 3, 2)]
    lengths = [[len(e.prompt_ids) + 1 for e in group] for group in micro_batches(episodes, 8)]
    #                  2 x 3 = 6   one of 4   one of 6
    assert lengths == [[2, 3], [4], [6]]


def test_padding_changes_no_target_logit(small_dir: Path, protocol: Protocol) -> None:
    model = load_model(small_dir)
    short, long = sorted(demonstrations(protocol, 2), key=lambda d: len(d.response_ids))
    with torch.inference_mode():
        alone_NV, alone_N = target_logits(model, pad([short]))
        together_NV, together_N = target_logits(model, pad([short, long]))
    assert together_N[: len(alone_N)].tolist() == alone_N.tolist()
    assert torch.allclose(together_NV[: len(alone_N)], alone_NV, atol=1e-5)


def test_the_cut_into_micro_batches_changes_no_update(small_dir: Path, protocol: Protocol) -> None:
    episodes = demonstrations(protocol, 4)
    settings = {"batch_episodes": 4, "learning_rate": 1e-3, "rise_steps": 1}
    whole, cut = load_model(small_dir), load_model(small_dir)
    whole_losses = train(whole, episodes, micro_batch_tokens=100_000, **settings)
    cut_losses = train(cut, episodes, micro_batch_tokens=1, **settings)
    assert cut_losses == pytest.approx(whole_losses, rel=1e-5)
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


# Training -----------------------------------------------------------------------------------------------------------


def test_training_lowers_the_loss_on_the_demonstrators_tokens(small_dir: Path, protocol: Protocol) -> None:
    losses = train(
        load_model(small_dir),
        demonstrations(protocol, 8) * 20,
        batch_episodes=8,
        micro_batch_tokens=100_000,
        learning_rate=1e-2,
        rise_steps=2,
    )
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 2


def test_measuring_tells_the_loss_and_the_answers_apart(small_dir: Path, protocol: Protocol) -> None:
    measured = measure(load_model(small_dir), demonstrations(protocol, 6), 100_000)
    assert measured.held_out_loss > 3
    assert sorted(measured.answer_probability_by_explores) == [1, 2, 3]
    assert 0 <= measured.answer_probability < 0.01


def test_weights_are_rounded_to_the_dtype_that_the_folder_stores(small_dir: Path, tmp_path: Path) -> None:
    model = load_model(small_dir)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    half_dir, model = tmp_path, load_model(small_dir)
    round_to_stored(model, half_dir)
    weight = model.get_input_embeddings().weight
    assert weight.dtype is torch.float32
    assert torch.equal(weight, load_model(half_dir).get_input_embeddings().weight)


# The whole warm start -----------------------------------------------------------------------------------------------


def test_a_warm_start_writes_a_model_folder_and_its_report(small_dir: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    report = warm_start(small_dir, tmp_path / "warm", urn_rows(20), urn(), QUICK)
    assert torch.get_num_threads() == threads
    assert (report.num_steps, report.num_demonstrations) == (5, 2 * 4 + 3 * 4)
    stored = json.loads((tmp_path / "warm" / "warm_start.json").read_text())
    assert stored["train_loss"] == report.train_loss
    assert stored["check"]["num_episodes"] == 2
    before, after = load_model(small_dir), load_model(tmp_path / "warm")
    assert not torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight)
    assert (tmp_path / "warm" / "tokenizer.json").read_bytes() == (small_dir / "tokenizer.json").read_bytes()


def test_rows_that_cannot_be_demonstrated_are_left_out_and_counted(small_dir: Path, tmp_path: Path) -> None:
    report = warm_start(small_dir, tmp_path / "warm", [row_showing([""] * 8), *urn_rows(20)], urn(), QUICK)
    assert report.num_rows_left_out == 1


def test_the_same_seed_gives_the_same_losses(small_dir: Path, tmp_path: Path) -> None:
    first = warm_start(small_dir, tmp_path / "first", urn_rows(20), urn(), QUICK)
    second = warm_start(small_dir, tmp_path / "second", urn_rows(20), urn(), QUICK)
    assert second.train_loss == pytest.approx(first.train_loss, rel=1e-6)


def test_rows_that_are_all_held_out_leave_nothing_to_train_on(small_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="4 usable rows for num_held_out=4"):
        warm_start(small_dir, tmp_path / "warm", urn_rows(4), urn(), QUICK)


@pytest.mark.parametrize(
    "wrong",
    [{"num_steps": 0}, {"num_threads": 0}, {"answer_weight": 0.5}, {"primer_steps": -1}, {"learning_rate": 0.0}],
)
def test_an_impossible_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"warm_start.{next(iter(wrong))}"):
        WarmStartConfig(**wrong)


def test_settings_name_the_documented_stop_rule() -> None:
    assert WarmStartConfig().stop == StopConfig(late=(5, 8), early=(1, 4), early_share=0.1)


# The model's own play -----------------------------------------------------------------------------------------------


def test_sampling_is_repeatable_and_ends_at_its_budget(small_dir: Path) -> None:
    generate = local_generate(load_model(small_dir), stop_ids=())
    first, second = (ask(generate, request((1, 2, 3), temperature=1.0)) for _ in range(2))
    assert first == second
    assert len(first.token_ids) == len(first.logprobs) == 6
    assert ask(generate, request((1, 2, 3), temperature=1.0, seed=6)) != first


def test_sampled_logprobs_are_those_of_one_forward_pass(small_dir: Path) -> None:
    model = load_model(small_dir)
    sampled = ask(local_generate(model, stop_ids=()), request((1, 2, 3), temperature=0.5))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 2, 3, *sampled.token_ids]])).logits[0, 2:-1]
    expected = torch.log_softmax(logits / 0.5, dim=-1).gather(1, torch.tensor(sampled.token_ids)[:, None])[:, 0]
    assert sampled.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_sampling_stops_on_a_stop_token(small_dir: Path) -> None:
    model = load_model(small_dir)
    greedy = ask(local_generate(model, stop_ids=()), request((1, 2, 3), temperature=0.0))
    stopped = ask(local_generate(model, stop_ids=greedy.token_ids[:1]), request((1, 2, 3), temperature=0.0))
    assert stopped.token_ids == greedy.token_ids[:1]


def test_an_untrained_model_plays_no_submit_and_that_is_said(small_dir: Path, protocol: Protocol) -> None:
    check = asyncio.run(check_episodes(load_model(small_dir), protocol, [row_showing("ABBCCCDD")], LIMITS, seed=0))
    assert (check.num_episodes, check.submitted_share, check.plurality_share) == (1, 0.0, 0.0)
