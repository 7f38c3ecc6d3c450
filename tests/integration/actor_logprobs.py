"""Builds a tiny actor, samples rows under the grammar at random and holds the engine against a plain model.

Usage: actor_logprobs.py MODEL_DIR PACKED
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils import tensordict_utils as tu

from atlas_rl.cli.composition import compose
from atlas_rl.errors import TrainingError
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.models.tiny import build_tiny_model
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.urn import UrnConfig, make_rows
from atlas_rl.training.chosen_tokens import POLICY_KEY
from atlas_rl.training.standalone import ActorRow, actor_batch, standalone_actor

TEMPERATURE = 0.7
SPEC = "gsm8k"  # its grammar has free text, alternatives and forced tokens


class Walker:
    """Random legal generations."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self.tokens = ProtocolTokens.from_tokenizer(self.tokenizer)
        self.vocab_size = AutoModelForCausalLM.from_pretrained(str(folder)).config.vocab_size
        self.grammar = BenchmarkGrammar.from_benchmark(load_benchmark(SPEC), self.tokens)
        self.compiled = compile_states(self.grammar, self.tokens, self.tokenizer, vocab_size=self.vocab_size)
        self.rng = random.Random(0)

    def generation(self, state: EpisodeState) -> tuple[list[int], list[np.ndarray]]:
        """Ids, and [V] what was legal at each; the text is short."""
        matcher = self.compiled.matcher(state)
        ids: list[int] = []
        legal = []
        while not matcher.is_complete:
            allowed = matcher.allowed()
            wants_call = len(ids) > 3 and allowed[self.tokens.call_begin_id]
            token = self.tokens.call_begin_id if wants_call else self.rng.choice(np.flatnonzero(allowed).tolist())
            assert matcher.accept(token)
            ids.append(token)
            legal.append(allowed)
        return ids, legal

    def row(self, place: int) -> tuple[ActorRow, list[np.ndarray | None]]:
        prompt = [self.rng.randrange(50) for _ in range(5 + place)]
        response: list[int] = []
        mask: list[int] = []
        legal: list[np.ndarray | None] = []
        generations = []
        for state in [EpisodeState.FIRST, EpisodeState.OPEN, EpisodeState.EXHAUSTED][: 1 + place % 3]:
            ids, sets = self.generation(state)
            generations.append((len(response), len(ids), self.grammar[state].sha256))
            response += ids
            mask += [1] * len(ids)
            legal += sets
            observation = [self.rng.randrange(50) for _ in range(3)]
            response += observation
            mask += [0] * 3
            legal += [None] * 3
        row = ActorRow(
            uid=f"row{place}", session_id=0, prompt_ids=prompt, response_ids=response, response_mask=mask,
            benchmark_spec=SPEC, generations=generations,
        )  # fmt: skip
        return row, legal


def settings(batch: Any, mode: str | None, **more: Any) -> Any:
    batch = batch.clone()
    tu.assign_non_tensor(batch, temperature=TEMPERATURE, calculate_entropy=True, compute_loss=False, **more)
    if mode is not None:
        tu.assign_non_tensor(batch, **{POLICY_KEY: {"logprobs": mode, "chunk_tokens": 7}})
    return batch


def plain(model: Any, rows: Sequence[ActorRow], legal: Sequence[list[np.ndarray | None]], masked: bool) -> list[Any]:
    """[T] log-probs and entropies of each row, 0 on unsampled tokens."""
    found = []
    for row, sets in zip(rows, legal, strict=True):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        logits_TV = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1].double() / TEMPERATURE
        if masked:
            for place, allowed in enumerate(sets):
                if allowed is not None:
                    logits_TV[place, torch.from_numpy(~allowed)] = -torch.inf
        log_p_TV = logits_TV.log_softmax(dim=1)
        p_TV = log_p_TV.exp()
        mask = torch.tensor(row.response_mask)
        logp = log_p_TV.gather(1, torch.tensor(row.response_ids)[:, None])[:, 0]
        entropy = -(p_TV * log_p_TV.masked_fill(p_TV == 0, 0.0)).sum(dim=1)
        found.append((torch.where(mask > 0, logp, 0.0), torch.where(mask > 0, entropy, 0.0)))
    return found


def of_responses(output: Any, rows: Sequence[ActorRow], name: str) -> list[torch.Tensor]:
    return [
        values[len(row.prompt_ids) - 1 : -1].double() for values, row in zip(output[name].unbind(), rows, strict=True)
    ]


def main() -> None:
    folder, packed = Path(sys.argv[1]), sys.argv[2]
    build_tiny_model(folder, benchmark=load_benchmark("urn"), rows=make_rows(UrnConfig(), 8, 0, "q"))
    walker = Walker(folder)
    rows, legal = zip(*(walker.row(place) for place in range(6)), strict=True)
    [config] = compose(
        [
            "experiment=urn_demo", f"actor_rollout_ref.model.path={folder}", "data.train_files=x", "data.val_files=x",
            "atlas.run.id=actor", f"actor_rollout_ref.model.use_remove_padding={packed}",
            "actor_rollout_ref.actor.optim.total_training_steps=4",
        ]
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    with standalone_actor(config) as actor:
        batch = actor_batch(rows)
        for mode in ("full_vocab", "grammar"):
            output = actor.compute_log_prob(settings(batch, mode))
            expected = plain(model, rows, legal, mode == "grammar")
            for name, column in (("log_probs", 0), ("entropy", 1)):
                ours = of_responses(output, rows, name)
                for one, other in zip(ours, expected, strict=True):
                    torch.testing.assert_close(one, other[column], atol=2e-5, rtol=1e-5)
        verls = of_responses(actor.compute_log_prob(settings(batch, None)), rows, "log_probs")
        for one, row, ours in zip(verls, rows, plain(model, rows, legal, False), strict=True):
            torch.testing.assert_close(one * torch.tensor(row.response_mask), ours[0], atol=2e-5, rtol=1e-5)

        old = of_responses(actor.compute_log_prob(settings(batch, "grammar")), rows, "log_probs")
        is_forced = [torch.tensor([s is not None and s.sum() == 1 for s in sets]) for sets in legal]
        assert sum(int(forced.sum()) for forced in is_forced) > 10
        check_gradients(actor, rows, old, is_forced)
        check_a_broken_row(actor, rows)
    print("actor log-probs: all agree")


def check_gradients(actor: Any, rows: Any, old: Any, is_forced: Any) -> None:
    """The first mini-batch has KL and clip fraction 0; a batch of forced tokens alone has no gradient at all."""

    def update(masks: list[torch.Tensor]) -> dict[str, Any]:
        advantages = [torch.ones(len(mask)) for mask in masks]
        batch = actor_batch(
            rows, {"old_log_probs": [logp.float() for logp in old], "advantages": advantages, "response_mask": masks}
        )
        batch["loss_mask"] = batch["response_mask"]
        more = {
            "global_batch_size": len(rows), "mini_batch_size": len(rows), "epochs": 1, "seed": 1,
            "dataloader_kwargs": {"shuffle": False},
        }  # fmt: skip
        metrics: dict[str, Any] = tu.get(actor.update_actor(settings(batch, "grammar", **more)), "metrics")
        return metrics

    def mean(value: Any) -> float:
        return float(np.mean([getattr(v, "value", v) for v in (value if isinstance(value, list) else [value])]))

    sampled = [torch.tensor(row.response_mask) for row in rows]
    forced = update([mask * only.long() for mask, only in zip(sampled, is_forced, strict=True)])
    assert mean(forced["grad_norm"]) == 0.0, forced
    free = update([mask * (~only).long() for mask, only in zip(sampled, is_forced, strict=True)])
    assert mean(free["grad_norm"]) > 0.0, free
    assert abs(mean(free["actor/ppo_kl"])) == 0.0, free
    assert mean(free["actor/pg_clipfrac"]) == 0.0, free


def check_a_broken_row(actor: Any, rows: Any) -> None:
    """A sampled id that the grammar forbids stops the pass and is named."""
    broken = list(rows[1].response_ids)
    offset = sum(rows[1].generations[1][:2]) - 1  # its end of turn, after which and instead of which nothing is legal
    broken[offset] = 0
    ids = dict(zip(ActorRow.__slots__, (getattr(rows[1], name) for name in ActorRow.__slots__), strict=True))
    batch = actor_batch([ActorRow(**{**ids, "response_ids": broken, "uid": "broken", "step": 1})])
    with pytest.raises(TrainingError, match=f"trajectory broken_0: token 0 at response offset {offset} is not legal"):
        actor.compute_log_prob(settings(batch, "grammar"))


if __name__ == "__main__":
    main()
