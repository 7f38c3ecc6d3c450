"""One structural tag a state: free text, then exactly one call of an allowed tool, then the end of turn.

The tag is JSON for XGrammar (vLLM compiles it), its sha256 names the grammar in records. Call tokens are given by id,
so nothing that ordinary tokens spell opens a call.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlas_rl.errors import GrammarError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.schema import Format, Part, call_part
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
    longest_call_bytes: int | None
    """UTF-8 bytes of the longest text between the call tokens; None: an argument has no bound."""
    max_text_tokens: int | None
    """Bound on the free text in sampled tokens, None: unbounded."""

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
    def max_call_tokens(self) -> int | None:
        """No call with its end of turn has more tokens, however it is cut into tokens; None: no bound."""
        return None if self.longest_call_bytes is None else self.longest_call_bytes + _FRAME_TOKENS

    @property
    def max_generation_tokens(self) -> int | None:
        """No generation has more tokens, free text included; None: no bound."""
        if self.max_call_tokens is None or self.max_text_tokens is None:
            return None
        return self.max_call_tokens + self.max_text_tokens


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
    parts = [call_part(tool, tokens) for tool in tools]
    calls = [_tag(part, tokens) for part in parts]
    call = calls[0] if len(calls) == 1 else {"type": "or", "elements": calls}
    text = _text(max_text_tokens, tokens)
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [text, call]} if text else call}
    bounds = [part.max_bytes for part in parts]
    return StateGrammar(
        state=state,
        tools=tuple(tools),
        structural_tag=json.dumps(tag, separators=(",", ":")),
        shortest_calls=tuple(part.shortest for part in parts),
        longest_call_bytes=None if None in bounds else max(bound for bound in bounds if bound is not None),
        max_text_tokens=max_text_tokens,
    )


def _tag(part: Part, tokens: ProtocolTokens) -> Format:
    formats = list(part.formats)
    return {
        "type": "tag",
        "begin": {"type": "token", "token": tokens.call_begin_id},
        "content": formats[0] if len(formats) == 1 else {"type": "sequence", "elements": formats},
        "end": {"type": "token", "token": tokens.call_end_id},
    }


def _text(max_tokens: int | None, tokens: ProtocolTokens) -> Format | None:
    """Free text in which no control token can stand; of the added tokens only think marks may."""
    if max_tokens is None:
        return {"type": "any_text", "excludes": list(tokens.control_texts)}
    if max_tokens < 0:
        raise GrammarError(f"max_text_tokens must be 0 or more, or null for unbounded text, got {max_tokens}")
    if max_tokens == 0:
        return None
    return {"type": "grammar", "grammar": _at_most(max_tokens, tokens.control_ids)}


def _at_most(max_tokens: int, excluded: Sequence[int]) -> str:
    """XGrammar's EBNF for 0 to ``max_tokens`` tokens, none of them excluded; at least 1.

    XGrammar 0.2.3 ignores the exclusions of a counted token, so all are spelled out. They stand in optional runs of
    half of what is left: every count is a sum of runs, and a matcher follows a handful of runs, not one path a token.
    """
    runs, left = [], max_tokens
    while left:
        runs.append((left + 1) // 2)
        left //= 2
    text = " ".join(f'("" | {" ".join(["any"] * run)})' for run in runs)
    return f"root ::= {text}\nany ::= ExcludeToken({', '.join(map(str, excluded))})\n"


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
    def from_benchmark(cls, benchmark: Benchmark, tokens: ProtocolTokens) -> "BenchmarkGrammar":
        """Write the tags of all states.

        Raises:
            GrammarError: the benchmark's tools cannot be enforced, or submit lacks the benchmark's submission field.
        """
        if benchmark.submission_field not in benchmark.submit.parameters.get("properties", {}):
            raise GrammarError(
                f"benchmark {benchmark.name!r}: submit has no argument {benchmark.submission_field!r}; "
                "add it or correct submission_field"
            )
        both = (benchmark.explore, benchmark.submit)
        allowed = {
            EpisodeState.FIRST: (benchmark.explore,) if benchmark.require_explore_first else both,
            EpisodeState.OPEN: both,
            EpisodeState.EXHAUSTED: (benchmark.submit,),
        }
        return cls(
            {
                state: state_grammar(tools, tokens, benchmark.max_text_tokens, state=state)
                for state, tools in allowed.items()
            }
        )

    def __getitem__(self, state: EpisodeState) -> StateGrammar:
        """The grammar of one state."""
        return self._states[state]

    def __iter__(self) -> Iterator[EpisodeState]:
        """The three states."""
        return iter(self._states)

    def __len__(self) -> int:
        """3."""
        return len(self._states)

    def min_call_tokens(self, encode: Callable[[str], Sequence[int]]) -> int:
        """Tokens that let a turn in any state write some call: the largest of the states' shortest."""
        return max(grammar.min_call_tokens(encode) for grammar in self._states.values())
