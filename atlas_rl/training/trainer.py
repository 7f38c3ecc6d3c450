"""verl's synchronous PPO trainer with this project's rows, masks, advantages, checks and validation."""

import hashlib
import json
import logging
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer
from verl.workers.utils.padding import response_to_nested

from atlas_rl.errors import TrainingError
from atlas_rl.objective.metrics import value_metrics
from atlas_rl.reporting.manifest import write_atomically
from atlas_rl.reporting.metrics import MetricsLog
from atlas_rl.training.batch import (
    BatchFacts,
    LossInputs,
    forced_tokens,
    loss_inputs,
    row_tensors,
    step_manifest,
)
from atlas_rl.training.batch_report import batch_report, kl_penalised
from atlas_rl.training.checkpoints import Checkpoints
from atlas_rl.training.chosen_tokens import POLICY_KEY
from atlas_rl.training.config import AtlasConfig
from atlas_rl.training.console import RunConsole
from atlas_rl.training.critic_batching import critic_batching
from atlas_rl.training.delivery import deliver_within
from atlas_rl.training.heartbeat import Heartbeat
from atlas_rl.training.packed_rows import check_packed_rows
from atlas_rl.training.probe import WeightSyncProbe
from atlas_rl.training.update_check import check_critic_update
from atlas_rl.training.updates import plan_update, put, put_masks
from atlas_rl.training.validation import Validation
from atlas_rl.training.workers import AtlasActorWorker, AtlasTrainingWorker

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""How often the trainer looks for finished episodes; verl's 2 s would be a floor under every short step."""

_NO_VIOLATION = "protocol/violations_in_batch"

_ZERO_REQUIRED = (
    "reward/mapping_sum_error_max",
    "reward/decomposition_error_max",
    "reward/mapped_slots_minus_events_max",
)


class AtlasTrainer(PPOTrainerSync):  # type: ignore[misc]
    """One process that drives rollout, critic and actor; ``trainer.v1.trainer_mode`` stays ``sync``."""

    def __init__(self, config: Any, atlas: AtlasConfig, console: RunConsole) -> None:
        self.atlas = atlas
        self.console = console
        self.metrics_log = MetricsLog(atlas.run.folder / "metrics.jsonl")
        self.actor_updates = 0
        self.critic_updates = 0
        self._head_is_checked = False
        self._value_figures: dict[str, float] = {}
        self._heartbeat: Heartbeat | None = None
        self.checkpoints: Checkpoints | None = None
        self.probe: WeightSyncProbe | None = None
        self._must_move = False
        self._drawn: tuple[tuple[str, int], int] = (("", -1), 0)
        super().__init__(config)

    # ------------------------------------------------------------------ set-up

    def _setup(self) -> None:
        with critic_batching(self.config.critic):
            super()._setup()
        deliver_within(self.checkpoint_manager, self.atlas.run.delivery_timeout_seconds)
        models = [self.actor_rollout_wg, *([self.critic_wg] if self.use_critic else [])]
        self.console.line(check_packed_rows(models, self.atlas.run.folder))

    def _load_checkpoint(self) -> None:
        """Go on from the newest step of a run that is resumed; verl's own checkpoints are not used."""
        self.checkpoints = Checkpoints(self) if self.config.trainer.save_freq > 0 or self.atlas.run.resume else None
        self.global_steps = 0
        if self.checkpoints is not None and self.atlas.run.resume:
            self.global_steps = self.checkpoints.restore()
            self.console.line(f"resumed from step {self.global_steps}")

    def _save_checkpoint(self) -> None:
        if self.checkpoints is not None:
            self.metrics_log.write(self.global_steps, self.checkpoints.save())

    def on_init_end(self) -> None:
        """Deliver the first weights and see that the rollout has them."""
        super().on_init_end()
        if self.atlas.probe.num_prompts > 0:
            self.probe = WeightSyncProbe(self)
            is_resumed = self.atlas.run.resume and self.global_steps > 0
            taken = self.probe.after_resume() if is_resumed else self.probe.after_delivery("init")
            self.metrics_log.write(self.global_steps, taken)

    def on_step_end(self) -> None:
        """Deliver a step's weights and see that the rollout has them."""
        super().on_step_end()
        if self.probe is not None:
            with marked_timer("probe", self.timing_raw):
                taken = self.probe.after_delivery(f"after_step_{self.global_steps}", must_move=self._must_move)
            self._pending_sync_metrics = taken  # verl puts them into the step's metrics
        self._must_move = False

    def on_validate_begin(self) -> None:
        """See that a validation will sample from the weights that it is said to judge."""
        super().on_validate_begin()
        if self.probe is not None:
            self.metrics_log.write(self.global_steps, self.probe.before_validation())

    def close(self) -> None:
        """Wait for what is still being written.

        Raises:
            TrainingError: the last step could not be written.
        """
        if self.checkpoints is not None:
            self.checkpoints.close()

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = POLL_SECONDS
        wait = buffer._wait_for_next_poll

        def watched(partition_id: str, last_debug_time: float) -> float:
            done = len(buffer.finished_keys[partition_id]) + len(buffer.failure_keys[partition_id])
            left = len(buffer.pending_keys[partition_id]) + len(buffer.running_keys[partition_id])
            self.console.stage("generate" if partition_id == "train" else "validate", done=done, total=done + left)
            if self._heartbeat is None:
                self._heartbeat = Heartbeat(self.agent_loop_manager.agent_loop_workers, "an agent-loop worker")
            self._heartbeat.check()
            seen: float = wait(partition_id, last_debug_time)
            return seen

        # The buffer offers no other place to look on while it waits.
        buffer._wait_for_next_poll = watched
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            plain = AtlasTrainingWorker if role is Role.Critic else AtlasActorWorker
            self.role_worker_mapping[role] = ray.remote(plain)

    def uids(self, partition: str, question_ids: list[str]) -> np.ndarray[Any, Any]:
        """[len(question_ids)] one name a drawn question, reproducible from the run's seed.

        Episode seeds derive from it. No underscore: verl splits keys there. Places go on over all draws of a step, so
        that a question drawn twice gets two names.
        """
        drawn = (partition, self.global_steps)
        if self._drawn[0] != drawn:
            self._drawn = (drawn, 0)
        first = self._drawn[1]
        self._drawn = (drawn, first + len(question_ids))
        names = [
            hashlib.sha256(f"{self.atlas.run.seed} {partition} {self.global_steps} {place} {name}".encode()).hexdigest()
            for place, name in enumerate(question_ids, first)
        ]
        return np.array([name[:32] for name in names], dtype=object)

    def _fetch_one_gen_batch(self) -> Any:
        batch = super()._fetch_one_gen_batch()
        question_ids = [info["question_id"] for info in tu.get(batch, "extra_info")]
        tu.assign_non_tensor_stack(batch, "uid", list(self.uids("train", question_ids)))
        return batch

    # ------------------------------------------------------------------ one step

    def _balance_batch(self, batch: KVBatchMeta, *arguments: Any, **options: Any) -> KVBatchMeta:
        """Rows come in the order in which they finished; in that of their names a resumed run adds up the same sums."""
        batch.reorder(sorted(range(len(batch.keys)), key=lambda place: batch.keys[place]))
        return super()._balance_batch(batch, *arguments, **options)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._require_whole_batch(batch)
        self._require_an_episode(self._facts(batch))
        self.console.update_stage("log-probs")
        self._choose_logprobs(batch)
        return super()._compute_old_log_prob(batch, metrics)

    def _choose_logprobs(self, batch: KVBatchMeta) -> None:
        """Say in the batch how its log-probabilities are computed; every pass of the actor and reference reads it."""
        policy = self.atlas.policy
        if policy.head_chunk_tokens is not None:
            batch.extra_info[POLICY_KEY] = {
                "logprobs": policy.logprobs,
                "chunk_tokens": policy.head_chunk_tokens,
                "max_text_tokens": self.atlas.runtime.max_text_tokens,
            }

    def _require_whole_batch(self, batch: KVBatchMeta) -> None:
        """verl trains on what is left of a group whose session raised; here that is a bug, so the run stops."""
        expected = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        found = sum(not tag.get("is_padding", False) for tag in batch.tags)
        if found != expected:
            raise TrainingError(
                f"step {self.global_steps}: {found} of {expected} episodes arrived; an episode raised instead of "
                "recording its fault: its traceback is in the run's log"
            )

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self._choose_logprobs(batch)
        batch = super()._compute_ref_log_prob(batch, metrics)
        # verl leaves the switch in the batch, and the critic would then compute values without its adapter and head.
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_values(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.console.update_stage("values")
        return super()._compute_values(batch, metrics)

    def _facts(self, batch: KVBatchMeta) -> BatchFacts:
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        return BatchFacts(
            keys=list(batch.keys),
            extra=list(tu.get(fields, "extra_fields")),
            is_padding=[bool(tag.get("is_padding", False)) for tag in batch.tags],
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.console.update_stage("advantage")
        facts = self._facts(batch)
        wanted = ["response_mask", "rm_scores", "values", "entropy"]
        wanted += ["old_log_probs", "rollout_log_probs", "ref_log_prob"]
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        nested_mask = fields["response_mask"]
        padded = fields.to_padded_tensor()
        rewards = padded["rm_scores"]
        if self.config.algorithm.use_kl_in_reward:
            penalty = self.config.algorithm.kl_penalty
            rewards, kl_metrics = kl_penalised(padded, facts.real, self.kl_ctrl_in_reward, penalty)
            metrics.update(kl_metrics)
        forced_BT = forced_tokens(facts, padded["response_mask"])
        result = loss_inputs(
            rewards, padded["values"].float(), padded["response_mask"], facts,
            gamma=self.config.algorithm.gamma, lam=self.config.algorithm.lam, level=self.atlas.advantage.level,
            forced_BT=None if self.atlas.policy.trains_forced_tokens else forced_BT,
        )  # fmt: skip
        sampled = {"advantages": result.advantages_BT, "returns": result.returns_BT}
        sampled["policy_mask"] = result.policy_mask_BT.to(padded["response_mask"].dtype)
        if self._is_turn_level:
            sampled["value_mask"] = result.value_mask_BT.to(padded["response_mask"].dtype)
        if self.config.algorithm.use_kl_in_reward:
            sampled["token_level_rewards"] = rewards
        nested = {name: response_to_nested(tensor, nested_mask) for name, tensor in sampled.items()}
        nested["sampled_mask"] = nested_mask
        self._report_batch(facts, padded, forced_BT, result, nested_mask, metrics)
        return put(batch, nested)

    def _require_an_episode(self, facts: BatchFacts) -> None:
        """A batch of nothing but faults has nothing to learn from, and the next one would hardly be better."""
        if not facts.real:
            rows = zip(facts.extra, facts.is_padding, strict=True)
            errors = [extra["error"] for extra, is_padding in rows if not is_padding]
            raise TrainingError(
                f"step {self.global_steps}: all {len(errors)} episodes ended in infrastructure_error; the first: "
                f"{errors[0] if errors else 'unknown'}"
            )

    def _report_batch(
        self,
        facts: BatchFacts,
        padded: TensorDict,
        forced_BT: torch.Tensor,
        result: LossInputs,
        nested_mask: Any,
        metrics: dict[str, Any],
    ) -> None:
        own = batch_report(
            facts, padded, forced_BT, result,
            trains_forced_tokens=self.atlas.policy.trains_forced_tokens, step=self.global_steps,
        )  # fmt: skip
        if self._is_turn_level:
            self._value_figures = value_metrics(padded["values"], result.returns_BT, result.value_mask_BT)
        metrics.update(own)
        lengths = nested_mask.offsets().diff().tolist()
        folder = self.atlas.run.folder / "train" / f"step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "tensors.npz", **row_tensors(facts, padded["values"], result, lengths))
        manifest = step_manifest(facts, self.global_steps)
        write_atomically(folder / "manifest.json", json.dumps(manifest, indent=1).encode())
        required = (*_ZERO_REQUIRED, *([_NO_VIOLATION] if self.atlas.runtime.grammar else []))
        wrong = {name: own[name] for name in required if own[name] != 0}
        if wrong:
            self.metrics_log.write(self.global_steps, own)
            raise TrainingError(
                f"step {self.global_steps}: {wrong} must be exactly 0: what ran is not what the grammar allows, or the "
                f"rewards on the tokens are not those that the records earned; the step's records are in {folder}"
            )

    # ------------------------------------------------------------------ updates

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.console.update_stage("critic")
        # A warm-up of the rate makes the first update one of rate 0: then the second is the first that can change.
        is_checked = self._head_is_checked or (self.critic_updates == 0 and _has_warm_up(self.config.critic.optim))
        before = None if is_checked else (self._digests("critic"), self._digests("actor"))
        if self._is_turn_level:
            batch = put_masks(batch, "value_mask")
        rows_per_question = self.config.actor_rollout_ref.rollout.n
        update = plan_update(batch, self.critic_wg, "train", self.config.critic, rows_per_question)
        if update.num_planned:
            super()._update_critic(update.batch, metrics)
        if self._is_turn_level:
            batch = put_masks(batch, "sampled_mask")
        made = update.count("critic", metrics, self.global_steps)
        self.critic_updates += made
        # Values of exactly 0 that earned exactly 0 have no gradient: then the next update is the first that can change.
        if before is not None and made and metrics["critic/grad_norm"] > 0:
            check_critic_update(
                critic_before=before[0],
                critic_after=self._digests("critic"),
                actor_before=before[1],
                actor_after=self._digests("actor"),
            )
            self._head_is_checked = True
        return batch

    @property
    def _is_turn_level(self) -> bool:
        return self.atlas.advantage.level == "turn"

    def _digests(self, model: str) -> list[dict[str, str]]:
        group = self.critic_wg if model == "critic" else self.actor_rollout_wg
        digests: list[dict[str, str]] = group.trainable_digests()
        return digests

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Update on policy tokens only: while the actor reads the batch, its masks are the policy's."""
        self.console.update_stage("actor")
        batch = put_masks(batch, "policy_mask")
        self._choose_logprobs(batch)
        rows_per_question = self.config.actor_rollout_ref.rollout.n
        actor = self.config.actor_rollout_ref.actor
        update = plan_update(batch, self.actor_rollout_wg, "actor", actor, rows_per_question)
        if update.num_planned:
            super()._update_actor(update.batch, metrics)
            # A warm-up of the rate makes the first update one of rate 0; the rate reported is that of the next one.
            is_still = self.actor_updates == 0 and _has_warm_up(self.config.actor_rollout_ref.actor.optim)
            self._must_move = not is_still and metrics["actor/grad_norm"] > 0 and metrics["actor/lr"] > 0
        batch = put_masks(batch, "sampled_mask")
        self.actor_updates += update.count("actor", metrics, self.global_steps)
        self.console.update_stage("weights")
        return batch

    # ------------------------------------------------------------------ reports

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        facts = self._facts(batch)
        real = facts.real
        # verl's means are over the rows it is given: faults stay out of them.
        rows = KVBatchMeta(
            partition_id=batch.partition_id, keys=[batch.keys[i] for i in real], tags=[batch.tags[i] for i in real]
        )
        if real:
            super()._compute_metrics(rows, metrics, timing_raw, global_steps, epoch)
            metrics.update(self._value_figures)  # verl's are over all sampled tokens
        breakdowns = [facts.extra[i]["breakdown"] for i in real]
        metrics["training/actor_updates"] = self.actor_updates
        metrics["training/critic_updates"] = self.critic_updates
        metrics["train/infrastructure_errors"] = metrics["protocol/infrastructure_errors_in_batch"]
        metrics["train/utility_mean"] = _mean(row["utility"] for row in breakdowns)
        metrics["train/acc_mean"] = _mean(row["acc"] for row in breakdowns)
        metrics["train/explores_mean"] = _mean(row["num_explores"] for row in breakdowns)
        self.metrics_log.write(global_steps, metrics)
        self.console.step(global_steps, self.total_training_steps, metrics, timing_raw)

    def _validate(self) -> dict[str, float]:
        metrics = Validation(self).run()
        self.console.validation(self.global_steps, metrics)
        self.metrics_log.write(self.global_steps, metrics)
        return metrics


def _has_warm_up(optim: Any) -> bool:
    return bool(optim.lr_warmup_steps > 0 or optim.lr_warmup_steps_ratio > 0)


def _mean(values: Any) -> float:
    known = list(values)
    return float(np.mean(known)) if known else float("nan")
