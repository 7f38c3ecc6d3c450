"""The weight-sync probe: ask the real rollout servers a fixed set of prompts after every delivery of weights."""

import asyncio
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from atlas_rl.data.parquet import row_from_extra_info
from atlas_rl.errors import EngineError, TrainingError, blame
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.episode import Sampling
from atlas_rl.reporting.manifest import same_machine
from atlas_rl.reporting.weight_sync import (
    Answer,
    Delivery,
    ProbeReading,
    ReplicaReading,
    compare,
    digest_of,
    judge,
    read_readings,
    write_reading,
)
from atlas_rl.runtime.generate import GenerateRequest
from atlas_rl.tasks.benchmark import load_benchmark
from atlas_rl.tasks.sequential import messages
from atlas_rl.training.generate import sampling_params

if TYPE_CHECKING:
    from atlas_rl.training.trainer import AtlasTrainer

_GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=-1, seed=None)
_ADAPTERS_SECONDS = 60.0
_LONG_PROMPT_TOKENS = 512


class WeightSyncProbe:
    """Takes readings, compares each with the one before, and stops the run if the rollout lacks the weights."""

    def __init__(self, trainer: "AtlasTrainer") -> None:
        self._trainer = trainer
        self._prompts = _prompts(trainer)
        self._long_prompt = _long_prompt(self._prompts, trainer.config.data)
        self._before: ProbeReading | None = None
        self._digests: tuple[tuple[int, int], tuple[str, str]] | None = None

    def after_delivery(self, name: str, *, must_move: bool = False) -> dict[str, float]:
        """Take the reading ``name`` right after weights were delivered; metrics of it.

        Args:
            name: init or after_step_N.
            must_move: Whether the actor had an update with a gradient and a rate since the last reading.

        Raises:
            TrainingError: the rollout does not hold the actor's weights, or an update did not move the actor.
            EngineError: a replica did not answer.
        """
        if must_move and self._before is not None and self._before.actor_sha256 == self._model_digests()[0]:
            raise TrainingError(
                f"step {self._trainer.global_steps}: the actor had an update with a gradient and a rate, but no bit of "
                "it changed; its optimizer holds other tensors than the engine trains"
            )
        return self._take(name, follows_sync=True)

    def before_validation(self) -> dict[str, float]:
        """Take the reading before a validation, which must find what the last delivery left.

        Raises:
            TrainingError: the rollout does not hold the actor's weights.
            EngineError: a replica did not answer.
        """
        return self._take(f"before_validation_{self._trainer.global_steps}", follows_sync=False)

    def after_resume(self) -> dict[str, float]:
        """Take the reading after a restore, and compare it with that of the step which was saved.

        Raises:
            TrainingError: the restored actor or the rollout's answers are not those of the saved step.
            EngineError: a replica did not answer.
        """
        step = self._trainer.global_steps
        readings = [one for one in read_readings(self._folder) if one.name == f"after_step_{step}"]
        saved = readings[-1] if readings else None
        if saved is not None:
            if saved.actor_sha256 != self._model_digests()[0]:
                raise TrainingError(
                    f"step {step}: the restored actor is not the one that weight_sync/{saved.stem}.json saw when the "
                    "step was saved; the checkpoint is of another run, or loading it is broken"
                )
            # Other cards, versions or prompts give other bits of the same weights.
            is_alike = saved.prompts_sha256 == digest_of(self._prompts) and same_machine(
                self._folder, saved.attempt_id, self._trainer.atlas.run.attempt_id
            )
            self._before = saved if is_alike and saved.num_tokens == self._num_tokens else None
        return self._take(f"resume_{step}", follows_sync=True)

    @property
    def _num_tokens(self) -> int:
        """Of all answers of all replicas."""
        num_replicas = len(self._trainer.llm_server_manager.get_replicas())
        return num_replicas * len(self._prompts) * int(self._trainer.atlas.probe.num_tokens)

    @property
    def _folder(self) -> Path:
        return self._trainer.atlas.run.folder

    def _take(self, name: str, *, follows_sync: bool) -> dict[str, float]:
        trainer, started = self._trainer, time.monotonic()
        actor_sha256, critic_sha256 = self._model_digests()
        replicas = tuple(asyncio.run(self._ask_all()))
        reading = ProbeReading(
            run_id=trainer.atlas.run.id,
            attempt_id=trainer.atlas.run.attempt_id,
            name=name,
            global_steps=trainer.global_steps,
            follows_sync=follows_sync,
            delivery=_delivery(trainer.config),
            actor_updates=trainer.actor_updates,
            critic_updates=trainer.critic_updates,
            actor_sha256=actor_sha256,
            critic_sha256=critic_sha256,
            prompts_sha256=digest_of(self._prompts),
            seconds=time.monotonic() - started,
            replicas=replicas,
            comparison=None,
        )
        if self._before is not None:
            reading = reading.model_copy(update={"comparison": compare(reading, self._before)})
        write_reading(self._folder, reading)
        judge(reading, self._before, trainer.atlas.probe.tolerance_nats)
        self._before = reading
        return _metrics(reading)

    def _model_digests(self) -> tuple[str, str]:
        """Of actor and critic; reading them again is only worth its while after an update."""
        updates = (self._trainer.actor_updates, self._trainer.critic_updates)
        if self._digests is None or self._digests[0] != updates:
            digests = tuple(
                digest_of([sorted(rank.items()) for rank in group.trainable_digests()])
                for group in (self._trainer.actor_rollout_wg, self._trainer.critic_wg)
            )
            self._digests = (updates, (digests[0], digests[1]))
        return self._digests[1]

    async def _ask_all(self) -> list[ReplicaReading]:
        replicas = self._trainer.llm_server_manager.get_replicas()
        return list(await asyncio.gather(*(self._ask(place, one) for place, one in enumerate(replicas))))

    async def _ask(self, place: int, replica: Any) -> ReplicaReading:
        """Ask one replica.

        A long prompt is asked as things are, to see whether its prefix is cached; the others from an empty cache, where
        equal weights give equal bits; then the long one again, so that the next delivery has something to drop.
        """
        server = replica.server_handle
        with blame(EngineError, f"weight-sync probe, rollout replica {place}"):
            as_it_is = await self._generate(server, self._long_prompt, 1)
            await self._within(server.clear_kv_cache.remote())
            num_tokens = self._trainer.atlas.probe.num_tokens
            outputs = [await self._generate(server, prompt, num_tokens) for prompt in self._prompts]
            await self._generate(server, self._long_prompt, 1)
            adapter_ids = await self._within(server.__ray_call__.remote(_adapter_ids))
            return ReplicaReading(
                replica=place,
                weight_version=int(as_it_is.extra_fields["global_steps"]),
                adapter_ids=tuple(adapter_ids),
                num_cached_tokens=as_it_is.extra_fields.get("num_cached_tokens"),
                answers=tuple(Answer(token_ids=tuple(one.token_ids), logprobs=tuple(one.log_probs)) for one in outputs),
            )

    async def _generate(self, server: Any, prompt: tuple[int, ...], num_tokens: int) -> Any:
        request = GenerateRequest(
            request_id="probe", prompt_ids=prompt, max_tokens=num_tokens, structural_tag=None, sampling=_GREEDY
        )
        # vLLM wants a name of its own for each request.
        name = f"probe-{time.monotonic_ns()}"
        params = {**sampling_params(request), "ignore_eos": True}
        return await self._within(
            server.generate.remote(request_id=name, prompt_ids=list(prompt), sampling_params=params)
        )

    async def _within(self, answer: Any) -> Any:
        """The answer, or the end of waiting for it."""
        seconds = self._trainer.atlas.run.delivery_timeout_seconds
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise EngineError(
                f"weight-sync probe: no answer from the rollout within {seconds:g} s "
                "(atlas.run.delivery_timeout_seconds); what it is stuck in is in the run's log"
            ) from None


def _adapter_ids(server: Any) -> list[int]:
    """Adapters that the engine of a replica holds; runs in the replica's process.

    verl's server has no method for it. Ray runs a closure in a thread beside the event loop that the engine lives in.
    """
    if not server.lora_as_adapter:
        return []
    loop = server.engine.output_handler.get_loop()
    return sorted(asyncio.run_coroutine_threadsafe(server.engine.list_loras(), loop).result(_ADAPTERS_SECONDS))


def _prompts(trainer: "AtlasTrainer") -> list[tuple[int, ...]]:
    """[num_prompts] token ids of the first validation questions, as an episode opens with them."""
    tokens = ProtocolTokens.from_tokenizer(trainer.tokenizer)
    template = ChatTemplate(
        trainer.tokenizer, tokens, template_kwargs={"enable_thinking": trainer.atlas.runtime.enable_thinking}
    )
    prompts = []
    for place in range(min(trainer.atlas.probe.num_prompts, len(trainer.val_dataset))):
        item = trainer.val_dataset[place]
        row = row_from_extra_info(item["extra_info"], item["reward_model"], item["data_source"])
        benchmark = load_benchmark(item["extra_info"]["benchmark_spec"])
        tools = [benchmark.explore.openai, benchmark.submit.openai]
        prompts.append(tuple(template.prompt_ids(messages(benchmark, row), tools)))
    return prompts


def _long_prompt(prompts: list[tuple[int, ...]], data: Any) -> tuple[int, ...]:
    """The prompts over and over, as many tokens as the engine takes: caches hold whole blocks, on a CPU of 128."""
    length = min(_LONG_PROMPT_TOKENS, data.max_prompt_length + data.max_response_length - 1)
    return tuple(itertools.islice(itertools.cycle(itertools.chain.from_iterable(prompts)), length))


def _delivery(config: Any) -> Delivery:
    model = config.actor_rollout_ref.model
    if model.lora_rank <= 0:
        return Delivery.FULL
    return Delivery.MERGED if OmegaConf.select(model, "lora.merge") else Delivery.ADAPTER


def _metrics(reading: ProbeReading) -> dict[str, float]:
    metrics = {"weight_sync/seconds": reading.seconds}
    if reading.comparison is not None:
        metrics["weight_sync/changed_token_fraction"] = (
            reading.comparison.num_changed_tokens / reading.comparison.num_tokens
        )
        metrics["weight_sync/max_difference_nats"] = reading.comparison.max_difference_nats
    return metrics
