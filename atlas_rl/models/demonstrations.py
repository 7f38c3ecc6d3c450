"""Episodes of a policy that explores too long, played by the runtime so that their tokens are those of RL."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atlas_rl.errors import ConfigError, DataError
from atlas_rl.grammar.arguments import schema_fault
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.episode import Sampling
from atlas_rl.records.vocabulary import TerminalReason
from atlas_rl.runtime.episode import run_episode
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.notes import NOTES
from atlas_rl.tasks.row import Row

_UNSAMPLED = Sampling(temperature=0.0, top_p=1.0, top_k=-1, seed=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class StopConfig:
    """When the demonstrator stops exploring: late as a rule, early now and then so that RL can find it better."""

    late: tuple[int, int] = (5, 8)
    """First and last number of explores of a late stop, each in between equally likely."""
    early: tuple[int, int] = (1, 4)
    """The same for an early stop."""
    early_share: float = 0.1
    """Probability of an early stop, in [0, 1]."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: a range is empty or starts below 1, or the share is no probability.
        """
        for name in ("late", "early"):
            first, last = getattr(self, name)
            if not 1 <= first <= last:
                raise ConfigError(f"stop.{name} must be 1 <= first <= last explores, got {(first, last)}")
        if not 0 <= self.early_share <= 1:
            raise ConfigError(f"stop.early_share must lie in [0, 1], got {self.early_share}")

    def draw(self, rng: random.Random) -> int:
        """A number of explores."""
        return rng.randint(*(self.early if rng.random() < self.early_share else self.late))


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """One played episode. P prompt tokens, T response tokens."""

    question_id: str
    num_explores: int
    answer: str
    prompt_ids: tuple[int, ...]
    """[P]"""
    response_ids: tuple[int, ...]
    """[T]"""
    response_mask: tuple[int, ...]
    """[T] 1 on the demonstrator's tokens."""
    num_answer_tokens: int
    """The last tokens of the response, which follow once submit is chosen: the answer and the end of the call."""


class Protocol:
    """One benchmark on one tokenizer: what the runtime needs to play its episodes, built once."""

    def __init__(self, tokenizer: Any, benchmark: Benchmark) -> None:
        """Cut the tokenizer's chat template and build the grammars.

        Raises:
            GrammarError: the tokenizer cannot carry the protocol.
        """
        self.benchmark = benchmark
        self.tokens = ProtocolTokens.from_tokenizer(tokenizer)
        self.template = ChatTemplate(tokenizer, self.tokens)
        self.grammar = BenchmarkGrammar.from_benchmark(benchmark, self.tokens)
        self._is_submittable: dict[str, bool] = {}

    def call_ids(self, name: str, arguments: dict[str, str]) -> tuple[int, ...]:
        """[N] one whole turn: the call in the grammar's one spelling and the end of the turn."""
        text = "\n" + json.dumps({"name": name, "arguments": arguments}) + "\n"
        return (
            self.tokens.call_begin_id,
            *self.template.encode_text(text),
            self.tokens.call_end_id,
            self.tokens.end_of_turn_id,
        )

    def note_ids(self, history: Sequence[str]) -> tuple[int, ...]:
        """[N] the text before a call once ``history`` is revealed; empty where the benchmark has no notes.

        Raises:
            DataError: the grammar does not leave room for it.
        """
        if self.benchmark.note is None:
            return ()
        ids = tuple(self.template.encode_text(NOTES[self.benchmark.note](history)))
        most = self.benchmark.max_text_tokens
        if most is not None and len(ids) > most:
            raise DataError(
                f"benchmark {self.benchmark.name!r}: the note on {list(history)} has {len(ids)} tokens, "
                f"max_text_tokens={most}; raise it"
            )
        return ids

    def is_submittable(self, answer: str) -> bool:
        """Whether submit's schema takes the answer; an empty one never counts."""
        if answer not in self._is_submittable:
            arguments = {self.benchmark.submission_field: answer}
            self._is_submittable[answer] = bool(answer) and not schema_fault(
                arguments, self.benchmark.submit.parameters, "arguments"
            )
        return self._is_submittable[answer]

    def is_demonstrable(self, row: Row) -> bool:
        """Whether any candidate that may be revealed has an answer to submit."""
        return any(self.is_submittable(candidate.answer) for candidate in row.candidates[: row.max_explores])


def plurality_answer(protocol: Protocol, row: Row, num_explores: int) -> str | None:
    """The most frequent submittable answer revealed; of answers that tie, the one seen first; None: there is none."""
    revealed = (candidate.answer for candidate in row.candidates[:num_explores])
    counts = Counter(answer for answer in revealed if protocol.is_submittable(answer))
    return counts.most_common(1)[0][0] if counts else None


def demonstrator(protocol: Protocol, history: Sequence[str], answer: str) -> Generate:
    """A scripted policy that explores until ``history`` is revealed, then submits ``answer``; it refuses to go on.

    Where the benchmark has notes, each turn opens with the note on what is revealed by then.
    """
    benchmark = protocol.benchmark
    explore = protocol.call_ids(benchmark.explore.name, {})
    submit = protocol.call_ids(benchmark.submit.name, {benchmark.submission_field: answer})
    calls = [*[explore] * len(history), submit]
    turns = iter([(*protocol.note_ids(history[:k]), *call) for k, call in enumerate(calls)])

    async def generate(request: GenerateRequest) -> Sampled:
        ids = next(turns)
        return Sampled(token_ids=ids, logprobs=(0.0,) * len(ids), weight_version=0, num_cached_tokens=None)

    return generate


async def demonstrate(protocol: Protocol, row: Row, num_explores: int, limits: Limits) -> Demonstration:
    """Play one row: explore, then submit the plurality answer, with a note before each call if the benchmark has them.

    Args:
        protocol: The benchmark on the tokenizer.
        row: The question.
        num_explores: When to stop; the demonstrator goes on while nothing that it has seen can be submitted.
        limits: Budgets.

    Raises:
        DataError: the row cannot be demonstrated: too few candidates, no answer, or a note or the episode does not fit.
    """
    if num_explores > row.max_explores:
        raise DataError(
            f"row {row.question_id!r}: {num_explores} explores, max_explores={row.max_explores}; lower the stop range"
        )
    answer = plurality_answer(protocol, row, num_explores)
    while answer is None and num_explores < row.max_explores:
        num_explores += 1
        answer = plurality_answer(protocol, row, num_explores)
    if answer is None:
        raise DataError(f"row {row.question_id!r}: no candidate has an answer that submit takes; leave the row out")
    result = await run_episode(
        row=row,
        benchmark=protocol.benchmark,
        grammar=protocol.grammar,
        tokens=protocol.tokens,
        template=protocol.template,
        decode=protocol.template.decode,
        generate=demonstrator(protocol, [candidate.answer for candidate in row.candidates[:num_explores]], answer),
        limits=limits,
        identity=Identity(
            run_id="demonstrations", uid=row.question_id, session_id=0, attempt_id=0, global_steps=0, run_seed=None
        ),
        sampling=_UNSAMPLED,
    )
    episode = result.episode
    if episode.terminal_reason is not TerminalReason.SUBMITTED:
        raise DataError(
            f"row {row.question_id!r}: demonstration of {num_explores} explores ended in {episode.terminal_reason} "
            f"({episode.error or episode.proposed_calls[-1].reason or 'no reason'}); raise limits.max_response_length"
        )
    return Demonstration(
        question_id=row.question_id,
        num_explores=num_explores,
        answer=answer,
        prompt_ids=result.prompt_ids,
        response_ids=result.response_ids,
        response_mask=result.response_mask,
        num_answer_tokens=_num_answer_tokens(protocol, answer),
    )


def _num_answer_tokens(protocol: Protocol, answer: str) -> int:
    """Tokens of the submit turn after the first one in which it differs from an explore."""
    benchmark = protocol.benchmark
    explore = protocol.call_ids(benchmark.explore.name, {})
    submit = protocol.call_ids(benchmark.submit.name, {benchmark.submission_field: answer})
    decision = next(place for place, (one, other) in enumerate(zip(explore, submit, strict=False)) if one != other)
    return len(submit) - decision - 1
