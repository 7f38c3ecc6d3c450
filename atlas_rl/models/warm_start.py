"""A short supervised warm start on demonstrations: the policy that RL starts from."""

import asyncio
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import track

from atlas_rl.errors import ConfigError
from atlas_rl.models.checks import Check, check_episodes, measure
from atlas_rl.models.demonstrations import Demonstration, Protocol, StopConfig, demonstrate
from atlas_rl.models.folder import (
    claim_folder,
    load_model,
    load_tokenizer,
    round_to_stored,
    save_model,
    stored_dtype,
)
from atlas_rl.models.supervised import train
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.row import Row

T = TypeVar("T")

REPORT = "warm_start.json"
"""Name of the report inside the written folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """How the warm start runs; the defaults are the tiny model's on urn."""

    stop: StopConfig = field(default_factory=StopConfig)
    """When the demonstrator stops."""
    primer_stop: StopConfig | None = field(
        default_factory=lambda: StopConfig(late=(1, 3), early=(1, 1), early_share=0.0)
    )
    """Its stops in the first steps. Short episodes teach a fresh model to copy an answer far sooner than long ones;
    the steps after them teach when the demonstrator stops. None: no such steps."""
    primer_steps: int = 150
    """Optimizer steps on ``primer_stop``."""
    num_steps: int = 260
    """Optimizer steps on ``stop``."""
    batch_episodes: int = 16
    """Demonstrations a step."""
    most_primer_demonstrations: int = 1600
    """Different demonstrations that the primer steps draw on, in passes of a new order each."""
    most_demonstrations: int = 3200
    """The same for the steps after them. Playing one costs milliseconds, as much as training on it a few times."""
    micro_batch_tokens: int = 16384
    """Most tokens, padding included, in one forward pass."""
    learning_rate: float = 4e-3
    """Peak of AdamW's rate: a linear rise over ``rise_steps``, then a cosine to 0."""
    rise_steps: int = 20
    answer_weight: float = 5.0
    """Weight of a submitted answer's first token in the loss, at least 1. It is one token of some thirty and the one
    that must be right, while the demonstrator's dice (when to stop) make most of the gradient's noise."""
    num_held_out: int = 256
    """Rows at the end of the list that are not trained on but measured on."""
    num_check_episodes: int = 32
    """Of them, rows that the trained model plays itself, at temperature 1 and without a grammar."""
    limits: Limits = field(default_factory=lambda: Limits(max_prompt_length=1024, max_response_length=1024))
    """Budgets of the demonstrations."""
    num_threads: int | None = 1
    """Torch threads while it trains and measures; None leaves them as they are. A second thread saves so small a model
    a tenth of a step at best and makes it ten times slower on busy cores, where the threads wait for each other."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a field is outside its range.
        """
        counts = ("num_steps", "batch_episodes", "most_primer_demonstrations", "most_demonstrations")
        for name in (*counts, "micro_batch_tokens", "rise_steps", "num_held_out"):
            if getattr(self, name) < 1:
                raise ConfigError(f"warm_start.{name} must be at least 1, got {getattr(self, name)}")
        if self.primer_steps < 0 or not 0 <= self.num_check_episodes <= self.num_held_out:
            raise ConfigError(
                f"warm_start.primer_steps must be at least 0 and num_check_episodes lie in 0..num_held_out, got "
                f"{self.primer_steps}, {self.num_check_episodes}"
            )
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"warm_start.num_threads must be at least 1 or None, got {self.num_threads}")
        if not 1 <= self.answer_weight < math.inf:
            raise ConfigError(f"warm_start.answer_weight must be at least 1, got {self.answer_weight}")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"warm_start.learning_rate must be positive, got {self.learning_rate}")


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartReport:
    """What the warm start reached, on rows that it was not trained on."""

    num_steps: int
    num_demonstrations: int
    """Different ones that were trained on."""
    num_rows_left_out: int
    """Rows without a single answer that submit takes; the demonstrator cannot end them."""
    train_loss: float
    """Nats a token, mean over the last ten steps."""
    held_out_loss: float
    """Nats a token; the demonstrator's own dice make up nearly all of it."""
    answer_accuracy: float
    """Share of demonstrated submits whose every token after the decision is the likeliest."""
    answer_probability: float
    """Mean probability of all those tokens together: how often sampling at temperature 1 gives that answer."""
    answer_probability_by_explores: dict[int, float]
    check: Check | None
    """The model's own episodes."""
    demonstration_seconds: float
    train_seconds: float
    wall_seconds: float
    cpu_seconds: float
    """Of this process, all threads."""


def warm_start(
    model_dir: Path, out_dir: Path, rows: Sequence[Row], benchmark: Benchmark, config: WarmStartConfig | None = None
) -> WarmStartReport:
    """Train a model folder on demonstrations and write the result, with its report beside it.

    Args:
        model_dir: Folder with a model and a tokenizer that carry the protocol.
        out_dir: A new or empty folder.
        rows: Questions; the last ``num_held_out`` are only measured on.
        benchmark: Their tool surface.
        config: How.

    Raises:
        ConfigError: a folder cannot be used, or there are too few rows.
        DataError: a row cannot be demonstrated.
        GrammarError: the tokenizer cannot carry the protocol.
    """
    settings = config or WarmStartConfig()
    started, started_cpu = time.perf_counter(), time.process_time()
    model, tokenizer = load_model(model_dir), load_tokenizer(model_dir)
    protocol = Protocol(tokenizer, benchmark)
    usable = [row for row in rows if protocol.is_demonstrable(row)]
    if len(usable) <= settings.num_held_out:
        raise ConfigError(
            f"warm start has {len(usable)} usable rows for num_held_out={settings.num_held_out}; give more or hold out "
            "fewer"
        )
    claim_folder(out_dir)
    train_rows, held_out_rows = usable[: -settings.num_held_out], usable[-settings.num_held_out :]
    curriculum, num_demonstrations = asyncio.run(_curriculum(protocol, train_rows, settings))
    held_out = asyncio.run(_play(protocol, held_out_rows, settings.stop, len(held_out_rows), settings, "held out"))
    demonstrated = time.perf_counter()
    with _torch_threads(settings.num_threads):
        losses = _fit(model, curriculum, settings)
        trained = time.perf_counter()
        round_to_stored(model, model_dir)
        measured = measure(model, held_out, settings.micro_batch_tokens)
        check_rows = held_out_rows[: settings.num_check_episodes]
        check = None
        if check_rows:
            check = asyncio.run(check_episodes(model, protocol, check_rows, settings.limits, settings.seed))
    report = WarmStartReport(
        num_steps=len(losses),
        num_demonstrations=num_demonstrations,
        num_rows_left_out=len(rows) - len(usable),
        train_loss=math.fsum(losses[-10:]) / len(losses[-10:]),
        **measured._asdict(),
        check=check,
        demonstration_seconds=demonstrated - started,
        train_seconds=trained - demonstrated,
        wall_seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - started_cpu,
    )
    save_model(model.to(stored_dtype(model_dir)), tokenizer, out_dir)
    (out_dir / REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    return report


@contextmanager
def _torch_threads(num_threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit(model: Any, curriculum: Sequence[Demonstration], settings: WarmStartConfig) -> list[float]:
    return train(
        model,
        curriculum,
        batch_episodes=settings.batch_episodes,
        micro_batch_tokens=settings.micro_batch_tokens,
        learning_rate=settings.learning_rate,
        rise_steps=settings.rise_steps,
        answer_weight=settings.answer_weight,
    )


async def _curriculum(
    protocol: Protocol, rows: Sequence[Row], settings: WarmStartConfig
) -> tuple[list[Demonstration], int]:
    """The demonstrations of all steps in training order, and how many different ones they are."""
    phases = [("steps", settings.stop, settings.num_steps, settings.most_demonstrations)]
    if settings.primer_stop is not None:
        phases.insert(0, ("primer", settings.primer_stop, settings.primer_steps, settings.most_primer_demonstrations))
    curriculum: list[Demonstration] = []
    num_different = 0
    for name, stop, num_steps, most in phases:
        num_slots = num_steps * settings.batch_episodes
        played = await _play(protocol, rows, stop, min(most, num_slots), settings, name)
        num_different += len(played)
        curriculum += _shuffled_passes(played, num_slots, random.Random(f"warm start order {settings.seed} {name}"))
    return curriculum, num_different


async def _play(
    protocol: Protocol, rows: Sequence[Row], stop: StopConfig, count: int, settings: WarmStartConfig, name: str
) -> list[Demonstration]:
    """``count`` demonstrations; rows come again with other stops only after all have come once."""
    rng = random.Random(f"warm start {settings.seed} {name}")
    order = _shuffled_passes(rows, count, rng)
    progress = track(order, description=f"demonstrations, {name}")
    return [await demonstrate(protocol, row, stop.draw(rng), settings.limits) for row in progress]


def _shuffled_passes(items: Sequence[T], count: int, rng: random.Random) -> list[T]:
    """[count] the items in passes of a new order each."""
    passes: list[T] = []
    while len(passes) < count:
        passes += rng.sample(items, len(items))
    return passes[:count]
