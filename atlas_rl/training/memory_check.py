"""The memory check: the trainer's own phases on synthetic rows of full length, long contexts, then one real step."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import need_reference_policy
from verl.utils.debug import marked_timer

from atlas_rl.errors import EngineError, TrainingError
from atlas_rl.records.episode import Sampling
from atlas_rl.reporting.memory import MemoryReport, ReportHead, Stage, figures_line, memory_report
from atlas_rl.runtime.generate import GenerateRequest
from atlas_rl.training.config import AtlasConfig
from atlas_rl.training.console import RunConsole
from atlas_rl.training.generate import ServerGenerate
from atlas_rl.training.memory_batch import joined, put_question, question_rows
from atlas_rl.training.memory_rows import RowMaker
from atlas_rl.training.memory_stages import BUDGETS, StageRecorder
from atlas_rl.training.rollout import AtlasAgentLoopManager
from atlas_rl.training.trainer import AtlasTrainer

LONG_ANSWER_TOKENS = 16
"""What a long prompt leaves of the engine's context."""


class MemoryTrainer(AtlasTrainer):
    """The trainer with its phases measured, and without a word about synthetic rows in records and metrics."""

    def __init__(self, config: Any, atlas: AtlasConfig, console: RunConsole) -> None:
        self.recorder = StageRecorder(atlas.run.folder, config, console, report_head(config, atlas))
        self.is_synthetic = False
        self._began = time.perf_counter()
        if not atlas.memory_check.rollout:
            # verl's own switch: the actor's role is then without a rollout. It asks for servers elsewhere, of which
            # it starts none.
            self._enable_hybrid_replicas = False
            config.actor_rollout_ref.rollout.nnodes = max(config.actor_rollout_ref.rollout.nnodes, 1)
        super().__init__(config, atlas, console)

    def on_init_end(self) -> None:
        """Measure what the models take, then wake the rollout engine as the trainer does."""
        self.recorder.begin(
            self.actor_rollout_wg,
            {"actor": self.actor_rollout_wg.watch_memory()[0], "critic": self.critic_wg.watch_memory()[0]},
        )
        with self.recorder.measured(Stage.MODELS, None, since=self._began):
            pass
        if self.atlas.memory_check.rollout:
            manager = self.checkpoint_manager
            manager.update_weights = self._measuring(Stage.WEIGHTS, manager.update_weights)
            super().on_init_end()
            if self.probe is not None:
                self.probe.after_delivery = self._measuring(Stage.PROBE, self.probe.after_delivery)  # type: ignore[method-assign]

    def _measuring(self, stage: Stage, call: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **options: Any) -> Any:
            with self.recorder.measured(stage, self.global_steps, is_engine_awake=True):
                return call(*arguments, **options)

        return measured

    def on_step_end(self) -> None:
        """Deliver weights and probe, if there is anyone to deliver them to."""
        if self.atlas.memory_check.rollout:
            super().on_step_end()

    def _report_batch(self, *arguments: Any, **options: Any) -> None:
        if not self.is_synthetic:
            super()._report_batch(*arguments, **options)

    # ------------------------------------------------------------------ stages

    def synthetic_step(self, maker: RowMaker, benchmark_spec: str, step: int) -> None:
        """One step's phases in the order of verl's ``_step_once``, on rows that nobody played."""
        data, rollout = self.config.data, self.config.actor_rollout_ref.rollout
        questions = [
            question_rows(
                maker, step=step, question=question, num_sessions=rollout.n,
                prompt_tokens=data.max_prompt_length, response_tokens=data.max_response_length,
            )
            for question in range(data.train_batch_size)
        ]  # fmt: skip
        self.global_steps, self.is_synthetic = step, True
        # verl's loop sets these two, and its hooks read them.
        self.timing_raw: dict[str, float] = {}
        self.curr_step_profile = False
        metrics: dict[str, Any] = {}
        with self.recorder.measured(Stage.ROWS, step):
            batch = joined(
                [
                    put_question(rows, step=step, question=question, benchmark_spec=benchmark_spec)
                    for question, rows in enumerate(questions)
                ]
            )
            batch.extra_info["temperature"] = rollout.temperature
            self.on_sample_end()
            batch = self._balance_batch(batch, metrics=metrics)
        phases: list[tuple[Stage, Callable[..., KVBatchMeta]]] = [(Stage.OLD_LOG_PROB, self._compute_old_log_prob)]
        if self.use_reference_policy:
            phases.append((Stage.REF_LOG_PROB, self._compute_ref_log_prob))
        phases += [
            (Stage.VALUES, self._compute_values),
            (Stage.ADVANTAGE, self._compute_advantage),
            (Stage.UPDATE_CRITIC, self._update_critic),
            (Stage.UPDATE_ACTOR, self._update_actor),
        ]
        for stage, phase in phases:
            with self.recorder.measured(stage, step):
                batch = phase(batch, metrics=metrics)
        if self.config.trainer.save_freq > 0:
            with self.recorder.measured(Stage.SAVE, step), marked_timer("save_checkpoint", self.timing_raw):
                self._save_checkpoint()
        self.on_step_end()
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        self.is_synthetic = False
        self.console.end_stage()

    def long_contexts(self, maker: RowMaker) -> None:
        """Generations from prompts that leave hardly anything of the engine's context, all at a time.

        Raises:
            EngineError: the engine failed at one, or sampled nothing.
        """
        rollout, data = self.config.actor_rollout_ref.rollout, self.config.data
        context = rollout.max_model_len or data.max_prompt_length + data.max_response_length
        num_tokens = min(LONG_ANSWER_TOKENS, context - 1)
        client = self.get_llm_client()

        async def one(place: int) -> int:
            request = GenerateRequest(
                request_id=f"long{place}",
                prompt_ids=maker.prompt(f"long {place}", context - num_tokens),
                max_tokens=num_tokens,
                structural_tag=None,
                sampling=Sampling(temperature=1.0, top_p=1.0, top_k=-1, seed=place),
            )
            async with ServerGenerate(client, request.request_id) as generate:
                return len((await generate(request)).token_ids)

        async def every() -> list[int]:
            return list(
                await asyncio.gather(*(one(place) for place in range(self.atlas.memory_check.num_long_prompts)))
            )

        with self.recorder.measured(Stage.LONG_CONTEXTS, None, is_engine_awake=True):
            sampled = asyncio.run(every())
        if min(sampled) < 1:
            raise EngineError(
                f"memory check: {sampled.count(0)} of {len(sampled)} prompts of {context - num_tokens} tokens got no "
                "token; look at what the engine said in the run's log"
            )

    def real_step(self, agent_loops: Any) -> None:
        """One step by the normal loop.

        Raises:
            TrainingError: the loop ended before it.
        """
        before = self.global_steps
        with self.recorder.measured(Stage.REAL_STEP, before + 1, is_engine_awake=True):
            self.fit(agent_loops)
        if self.global_steps != before + 2:
            raise TrainingError(
                f"memory check: the normal loop made no step {before + 1}; raise trainer.total_epochs="
                f"{self.config.trainer.total_epochs}, or give more rows in data.train_files"
            )


def report_head(config: Any, atlas: AtlasConfig) -> ReportHead:
    """What the report says of a run whose models are not built yet."""
    return ReportHead(
        run_id=atlas.run.id,
        world_size=config.trainer.nnodes * config.trainer.n_gpus_per_node,
        models={},
        budgets={key: OmegaConf.select(config, key) for key in BUDGETS},
        num_steps=atlas.memory_check.num_steps,
        num_rows=config.data.train_batch_size * config.actor_rollout_ref.rollout.n,
        prompt_tokens=config.data.max_prompt_length,
        response_tokens=config.data.max_response_length,
        expected=expected_stages(
            atlas, has_reference=need_reference_policy(config), saves=config.trainer.save_freq > 0
        ),
    )


def expected_stages(atlas: AtlasConfig, *, has_reference: bool, saves: bool) -> tuple[str, ...]:
    """Names of the stages that a whole check has.

    Args:
        atlas: Its ``memory_check`` and ``probe`` say which.
        has_reference: Whether reference log-probabilities are computed.
        saves: Whether steps are saved.
    """
    check = atlas.memory_check
    probes = check.rollout and atlas.probe.num_prompts > 0
    in_step = [Stage.ROWS, Stage.OLD_LOG_PROB, *([Stage.REF_LOG_PROB] if has_reference else []), Stage.VALUES]
    in_step += [Stage.ADVANTAGE, Stage.UPDATE_CRITIC, Stage.UPDATE_ACTOR, *([Stage.SAVE] if saves else [])]
    in_step += [*([Stage.WEIGHTS] if check.rollout else []), *([Stage.PROBE] if probes else [])]
    names = [str(Stage.MODELS), *([f"{Stage.WEIGHTS}/0"] if check.rollout else [])]
    names += [f"{stage}/{step}" for step in range(1, check.num_steps + 1) for stage in in_step]
    if check.rollout:
        names += [str(Stage.LONG_CONTEXTS)] if check.num_long_prompts else []
        names += [f"{Stage.REAL_STEP}/{check.num_steps + 1}"]
    return tuple(names)


def check_memory(config: Any, atlas: AtlasConfig, console: RunConsole) -> None:
    """Run the check; Ray and the TransferQueue are there.

    Args:
        config: Of the run; the number of its steps is set here.
        atlas: Its ``atlas`` node.
        console: For a line a stage and the last one.

    Raises:
        TrainingError: a rank ran out of memory, a stage is missing, or the margin is below 0.
    """
    check = atlas.memory_check
    config.trainer.total_training_steps = check.num_steps + 1
    config.trainer.val_before_train, config.trainer.test_freq = False, -1  # the real step is a step, not a validation
    trainer = MemoryTrainer(config, atlas, console)
    recorder = trainer.recorder
    try:
        trainer.init()
        console.line(f"models and engine ready after {console.seconds():.0f} s")
        _stages(trainer)
        trainer.close()
    except Exception as error:
        explained = recorder.explained(error)
        recorder.write(str(explained or error).strip().split("\n")[-1])
        if explained is None:
            raise
        raise explained from error
    report = memory_report(recorder.head, recorder.stages)
    console.line(figures_line(report))
    refuse_thin(report, 0.0)


def _stages(trainer: MemoryTrainer) -> None:
    atlas = trainer.atlas
    check = atlas.memory_check
    benchmark_spec = trainer.train_dataset[0]["extra_info"]["benchmark_spec"]
    maker = RowMaker(
        trainer.tokenizer,
        benchmark_spec=benchmark_spec,
        max_turns=atlas.runtime.max_turns,
        is_constrained=atlas.runtime.grammar,
        max_text_tokens=atlas.runtime.max_text_tokens,
        seed=check.seed,
    )
    for step in range(1, check.num_steps + 1):
        trainer.synthetic_step(maker, benchmark_spec, step)
    if check.rollout:
        if check.num_long_prompts:
            trainer.long_contexts(maker)
        trainer.real_step(
            AtlasAgentLoopManager.create(
                config=trainer.config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
        )


def refuse_thin(report: MemoryReport, min_margin_gib: float) -> None:
    """Nothing, if the check is whole and leaves enough room.

    Raises:
        TrainingError: as said, in one line.
    """
    faults = report.faults(min_margin_gib)
    if faults:
        raise TrainingError(f"memory check: {'; '.join(faults)}")
