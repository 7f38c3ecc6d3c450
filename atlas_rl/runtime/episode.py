"""One episode: ask, read, act, append, until one of the terminal reasons holds."""

from collections.abc import Mapping
from dataclasses import dataclass

from atlas_rl.errors import AtlasError, DataError, EngineError, GrammarError, RecordError, ToolError, blame
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import Reading, read_generation
from atlas_rl.grammar.tags import StateGrammar
from atlas_rl.records.episode import Generation, Sampling
from atlas_rl.records.vocabulary import EpisodeState, EventKind, TerminalReason
from atlas_rl.runtime.builder import EpisodeBuilder, EpisodeResult
from atlas_rl.runtime.generate import Generate, GenerateRequest, Sampled
from atlas_rl.runtime.identity import Identity
from atlas_rl.runtime.limits import Limits
from atlas_rl.runtime.ports import Decode, Template
from atlas_rl.runtime.sampled import check_sampled
from atlas_rl.runtime.seeds import generation_seed
from atlas_rl.runtime.tools import explore, submit
from atlas_rl.tasks.benchmark import Benchmark
from atlas_rl.tasks.row import Row
from atlas_rl.tasks.sequential import messages

__all__ = ["EpisodeResult", "Identity", "episode_state", "run_episode"]


def episode_state(num_explores: int, max_explores: int) -> EpisodeState:
    """The state that decides the allowed tools after ``num_explores`` explores."""
    if num_explores >= max_explores:
        return EpisodeState.EXHAUSTED
    return EpisodeState.OPEN if num_explores else EpisodeState.FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What stays the same while an episode runs."""

    row: Row
    benchmark: Benchmark
    grammar: Mapping[EpisodeState, StateGrammar]
    is_constrained: bool
    reserve_call: bool
    tokens: ProtocolTokens
    template: Template
    decode: Decode
    generate: Generate
    limits: Limits
    identity: Identity
    sampling: Sampling
    vocab_size: int | None


async def run_episode(
    *,
    row: Row,
    benchmark: Benchmark,
    grammar: Mapping[EpisodeState, StateGrammar],
    tokens: ProtocolTokens,
    template: Template,
    decode: Decode,
    generate: Generate,
    limits: Limits,
    identity: Identity,
    sampling: Sampling,
    is_constrained: bool = True,
    reserve_call: bool = False,
    vocab_size: int | None = None,
) -> EpisodeResult:
    """Play one row to its end.

    A fault of the engine, a tool or our own code is no exception but an episode that ends in
    ``infrastructure_error`` and names it; what was sampled before it stays in the record. Its last generation may
    lack a proposed call, or its last valid call an event: the step that failed leaves nothing behind.

    Args:
        row: The question and its candidates.
        benchmark: The tools and texts.
        grammar: One grammar a state; it decides the allowed tools too.
        tokens: The ids that delimit calls and turns.
        template: Turns messages into ids.
        decode: Ids to text, for reading calls; nothing decoded is ever encoded again.
        generate: The engine.
        limits: Budgets of prompt, response and turns.
        identity: Which episode this is.
        sampling: Parameters of every generation; its seed is replaced by the generation's own.
        is_constrained: False samples without a grammar; the same tools are allowed and the reading is as strict.
        reserve_call: Bound the text of each generation so that the longest legal call fits into what is left behind
            it: the loosest of the state's rungs that does is sampled under, and the record names it. Where not even
            the rung without text fits, that one is used, and the call may be cut.
        vocab_size: Ids that the engine can sample lie in [0, vocab_size); None: not checked.

    Raises:
        DataError: the prompt is over ``limits.max_prompt_length``; it is never truncated.
        asyncio.CancelledError: the caller gave the episode up.
    """
    setting = _Setting(
        row=row,
        benchmark=benchmark,
        grammar=grammar,
        is_constrained=is_constrained,
        reserve_call=reserve_call,
        tokens=tokens,
        template=template,
        decode=decode,
        generate=generate,
        limits=limits,
        identity=identity,
        sampling=sampling,
        vocab_size=vocab_size,
    )
    builder = EpisodeBuilder(row=row, benchmark=benchmark, limits=limits, identity=identity)
    return await _run(setting, builder)


async def _run(setting: _Setting, builder: EpisodeBuilder) -> EpisodeResult:
    """Open the prompt, play, and turn any fault into the end of the episode."""
    try:
        _append_prompt(setting, builder)
    except AtlasError as fault:
        return _faulted(builder, fault)
    _refuse_long_prompt(builder)
    try:
        with blame(RecordError, "episode"):
            reason = await _play(setting, builder)
    except AtlasError as fault:
        return _faulted(builder, fault)
    return builder.finish(reason)


def _faulted(builder: EpisodeBuilder, fault: AtlasError) -> EpisodeResult:
    message = " ".join(str(fault).split()) or "no message"
    return builder.finish(TerminalReason.INFRASTRUCTURE_ERROR, f"{type(fault).__name__}: {message}")


def _append_prompt(setting: _Setting, builder: EpisodeBuilder) -> None:
    with blame(GrammarError, "prompt"):
        opening = messages(setting.benchmark, setting.row)
        tools = [setting.benchmark.explore.openai, setting.benchmark.submit.openai]
        builder.append_prompt(setting.template.prompt_ids(opening, tools))


def _refuse_long_prompt(builder: EpisodeBuilder) -> None:
    num_tokens, most = len(builder.prompt_ids), builder.limits.max_prompt_length
    if num_tokens > most:
        raise DataError(
            f"row {builder.row.question_id!r}: its prompt has {num_tokens} tokens, limits.max_prompt_length={most}; "
            "raise the limit or drop the row"
        )


async def _play(setting: _Setting, builder: EpisodeBuilder) -> TerminalReason:
    """Take turns until the episode ends; used-up turns are looked at before a used-up budget."""
    for turn_id in range(setting.limits.max_turns):
        if builder.tokens_left == 0:
            return TerminalReason.BUDGET_EXHAUSTED
        state_grammar = setting.grammar[episode_state(builder.num_explores, setting.row.max_explores)]
        if setting.reserve_call:
            state_grammar = state_grammar.within(builder.tokens_left)
        sampled, generation = await _ask(setting, builder, turn_id, state_grammar)
        reading = _read(setting, sampled, generation, state_grammar)
        builder.append_call(reading.call)
        if reading.terminal is not None:
            return reading.terminal
        ended = _act(setting, builder, reading, state_grammar)
        if ended is not None:
            return ended
    return TerminalReason.MAX_TURNS


async def _ask(
    setting: _Setting, builder: EpisodeBuilder, turn_id: int, state_grammar: StateGrammar
) -> tuple[Sampled, Generation]:
    """Sample one turn and append it verbatim."""
    request = GenerateRequest(
        request_id=setting.identity.request_id,
        prompt_ids=(*builder.prompt_ids, *builder.response_ids),
        max_tokens=builder.tokens_left,
        structural_tag=state_grammar.structural_tag if setting.is_constrained else None,
        sampling=setting.sampling.model_copy(update={"seed": _seed(setting.identity, turn_id)}),
    )
    with blame(EngineError, f"generation of turn {turn_id}"):
        sampled = await setting.generate(request)
        finish, finish_source = check_sampled(
            sampled, max_tokens=request.max_tokens, stop_ids=setting.tokens.stop_ids, vocab_size=setting.vocab_size
        )
        generation = builder.append_generation(
            request,
            sampled,
            finish,
            finish_source,
            grammar_hash=state_grammar.sha256 if setting.is_constrained else None,
            allowed_tools=state_grammar.allowed_tools,
        )
    return sampled, generation


def _seed(identity: Identity, turn_id: int) -> int | None:
    if identity.run_seed is None:
        return None
    return generation_seed(identity.run_seed, identity.uid, identity.session_id, turn_id, identity.global_steps)


def _read(setting: _Setting, sampled: Sampled, generation: Generation, state_grammar: StateGrammar) -> Reading:
    with blame(GrammarError, f"reading of turn {generation.turn_id}"):
        return read_generation(
            sampled.token_ids,
            tokens=setting.tokens,
            tools=state_grammar.tools,
            decode=setting.decode,
            finish=generation.finish,
            turn_id=generation.turn_id,
        )


def _act(
    setting: _Setting, builder: EpisodeBuilder, reading: Reading, state_grammar: StateGrammar
) -> TerminalReason | None:
    """Run the call of a turn and append its observation; None: the episode goes on."""
    call, call_start = reading.call, reading.call_start
    with blame(ToolError, f"tool {call.name!r} of turn {call.turn_id}"):
        if call_start is None or call.arguments is None or call.name not in state_grammar.allowed_tools:
            raise GrammarError(
                f"turn {call.turn_id}: the reader lets {call.name!r} run with arguments {call.arguments} at "
                f"{call_start}, but only {state_grammar.allowed_tools} may; reader and grammar disagree"
            )
        if call.name == setting.benchmark.explore.name:
            outcome = explore(setting.benchmark, setting.row, builder.num_explores)
        else:
            outcome = submit(setting.benchmark, call.arguments, builder.num_explores)
        observation_ids = setting.template.observation_ids(outcome.tool_response) if outcome.has_observation else None
        is_kept = builder.append_event(outcome, observation_ids, call_start=call_start)
    if outcome.kind is EventKind.SUBMIT:
        return TerminalReason.SUBMITTED if is_kept else TerminalReason.SUBMITTED_OBSERVATION_DROPPED
    return None if is_kept else TerminalReason.EXPLORE_OBSERVATION_DROPPED
