"""One structural tag a state: free text, then exactly one call of an allowed tool, then the end of turn.

The tag is JSON for XGrammar (vLLM compiles it), its sha256 names the grammar in records. Call tokens are given by id,
so nothing that ordinary tokens spell opens a call.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.parts import Format, Part
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.schema import call_part
from atlas_rl.grammar.text import MAX_TEXT_TOKENS, text_format, tighter_bounds
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Benchmark, Tool

_FRAME_TOKENS = 3
"""Call begin, call end and end of turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGrammar:
    """What a policy may sample in one state."""

    state: EpisodeState
    tools: tuple[Tool, ...]
    """The allowed tools, in the order of the tag."""
    structural_tag: str
    """JSON of the tag, as the engine takes it."""
    shortest_calls: tuple[str, ...]
    """[num_tools] a shortest text between the call tokens, one a tool."""
    longest_call_bytes: int
    """UTF-8 bytes of the longest text between the call tokens."""
    max_text_tokens: int | None
    """Bound on the free text in sampled tokens, None: unbounded."""
    rungs: tuple["StateGrammar", ...] = ()
    """The same calls behind less and less text, the last one without any; empty if there is no text to lessen."""

    @property
    def sha256(self) -> str:
        """Hex digest of the tag: the ``grammar_hash`` of records."""
        return hashlib.sha256(self.structural_tag.encode()).hexdigest()

    @property
    def allowed_tools(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(tool.name for tool in self.tools)

    def min_call_tokens(self, encode: Callable[[str], Sequence[int]]) -> int:
        """Tokens of a shortest generation as the tokenizer writes it: no text, one call, end of turn."""
        return min(len(encode(text)) for text in self.shortest_calls) + _FRAME_TOKENS

    @property
    def max_call_tokens(self) -> int:
        """No call with its end of turn has more tokens, however it is cut into tokens."""
        return self.longest_call_bytes + _FRAME_TOKENS

    @property
    def max_generation_tokens(self) -> int | None:
        """No generation has more tokens, free text included; None: no bound."""
        return None if self.max_text_tokens is None else self.max_call_tokens + self.max_text_tokens

    def within(self, num_tokens: int) -> "StateGrammar":
        """The loosest of it and its rungs of which every generation fits ``num_tokens``; if none does, the last one."""
        fitting = (one for one in (self, *self.rungs) if one.fits(num_tokens))
        return next(fitting, self.rungs[-1] if self.rungs else self)

    def fits(self, num_tokens: int) -> bool:
        """Whether no generation takes more than ``num_tokens``."""
        return self.max_generation_tokens is not None and self.max_generation_tokens <= num_tokens


def state_grammar(
    tools: Sequence[Tool], tokens: ProtocolTokens, max_text_tokens: int | None, *, state: EpisodeState
) -> StateGrammar:
    """Write the structural tag of one state.

    Args:
        tools: The allowed tools, in order.
        tokens: The tokenizer's protocol tokens.
        max_text_tokens: Bound on the text before the call in tokens; 0: none, None: unbounded.
        state: The state, for the record.

    Raises:
        GrammarError: a tool's schema cannot be enforced, names repeat, or there is no tool.
    """
    names = [tool.name for tool in tools]
    if not names or len(set(names)) != len(names):
        raise GrammarError(f"state {state}: needs at least one tool, each with its own name, got {names}")
    if not tokens.control_texts:
        raise GrammarError(f"state {state}: protocol tokens list no control tokens; make them with from_tokenizer")
    if max_text_tokens is not None and not 0 <= max_text_tokens <= MAX_TEXT_TOKENS:
        raise GrammarError(
            f"state {state}: max_text_tokens is {max_text_tokens}; write 0 to {MAX_TEXT_TOKENS}, or null for text "
            "without a bound"
        )
    parts = [call_part(tool, tokens) for tool in tools]
    calls = [_tag(part, tokens) for part in parts]
    call = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}

    def bounded(bound: int | None, rungs: tuple[StateGrammar, ...]) -> StateGrammar:
        text = text_format(bound, tokens)
        tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [text, call]} if text else call}
        return StateGrammar(
            state=state,
            tools=tuple(tools),
            structural_tag=json.dumps(tag, separators=(",", ":")),
            shortest_calls=tuple(part.shortest for part in parts),
            longest_call_bytes=max(part.max_bytes for part in parts),
            max_text_tokens=bound,
            rungs=rungs,
        )

    return bounded(max_text_tokens, tuple(bounded(bound, ()) for bound in tighter_bounds(max_text_tokens)))


def _tag(part: Part, tokens: ProtocolTokens) -> Format:
    formats = list(part.formats)
    return {
        "type": "tag",
        "begin": {"type": "token", "token": tokens.call_begin_id},
        "content": formats[0] if len(formats) == 1 else {"type": "sequence", "elements": formats},
        "end": {"type": "token", "token": tokens.call_end_id},
    }


class BenchmarkGrammar(Mapping[EpisodeState, StateGrammar]):
    """The grammars of a benchmark's three states."""

    def __init__(self, states: Mapping[EpisodeState, StateGrammar]) -> None:
        """Hold one grammar for each state.

        Raises:
            GrammarError: a state is missing.
        """
        missing = [state for state in EpisodeState if state not in states]
        if missing:
            raise GrammarError(f"no grammar for states {missing}; write all of {list(EpisodeState)}")
        self._states = dict(states)

    @classmethod
    def from_benchmark(
        cls, benchmark: Benchmark, tokens: ProtocolTokens, *, max_text_tokens: int | None = None
    ) -> "BenchmarkGrammar":
        """Write the tags of all states.

        Args:
            benchmark: Its tools and its bound on the text before a call.
            tokens: The tokenizer's protocol tokens.
            max_text_tokens: A bound on the text in place of the benchmark's own; None: the benchmark's.

        Raises:
            GrammarError: the benchmark's tools cannot be enforced, or submit lacks the benchmark's submission field.
        """
        if benchmark.submission_field not in benchmark.submit.parameters.get("properties", {}):
            raise GrammarError(
                f"benchmark {benchmark.name!r}: submit has no argument {benchmark.submission_field!r}; "
                "add it or correct submission_field"
            )
        bound = benchmark.max_text_tokens if max_text_tokens is None else max_text_tokens
        both = (benchmark.explore, benchmark.submit)
        allowed = {
            EpisodeState.FIRST: (benchmark.explore,) if benchmark.require_explore_first else both,
            EpisodeState.OPEN: both,
            EpisodeState.EXHAUSTED: (benchmark.submit,),
        }
        return cls({state: state_grammar(tools, tokens, bound, state=state) for state, tools in allowed.items()})

    def __getitem__(self, state: EpisodeState) -> StateGrammar:
        """The grammar of one state."""
        return self._states[state]

    def __iter__(self) -> Iterator[EpisodeState]:
        """The three states."""
        return iter(self._states)

    def __len__(self) -> int:
        """3."""
        return len(self._states)

    def by_name(self, *, rungs: bool) -> dict[str, StateGrammar]:
        """Grammars by ``STATE``; with ``rungs`` also those of tighter texts, by ``STATE/text_N``."""
        named: dict[str, StateGrammar] = {}
        for state, grammar in self._states.items():
            named[str(state)] = grammar
            named.update({f"{state}/text_{rung.max_text_tokens}": rung for rung in grammar.rungs if rungs})
        return named

    def tightened(self) -> Iterator["BenchmarkGrammar"]:
        """The same grammars behind less and less text: their rungs, those of one bound together."""
        for rungs in zip(*(grammar.rungs for grammar in self._states.values()), strict=True):
            yield BenchmarkGrammar(dict(zip(self._states, rungs, strict=True)))

    @property
    def max_call_tokens(self) -> int:
        """No call of any state has more tokens, its end of turn included."""
        return max(grammar.max_call_tokens for grammar in self._states.values())

    def min_call_tokens(self, encode: Callable[[str], Sequence[int]]) -> int:
        """Tokens that let a turn in any state write some call: the largest of the states' shortest."""
        return max(grammar.min_call_tokens(encode) for grammar in self._states.values())
