"""Grammars compiled with XGrammar, for the check at the start of a run and for replaying sampled ids."""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from atlas_rl.errors import GrammarError, blame
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import read_generation
from atlas_rl.grammar.tags import StateGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState, Finish

_COMPILERS: WeakKeyDictionary[Any, dict[tuple[int, int], Any]] = WeakKeyDictionary()
"""tokenizer -> (vocabulary size, end of turn) -> compiler; a compiler caches what it compiled."""
_CACHE_BYTES = 16 * 2**20
"""What a compiler may keep as XGrammar counts it, the least used going first. Its count is rough: thousands of small
grammars take about eight times as much memory, a long string a tenth."""


class Matcher:
    """The place of one generation in its grammar."""

    def __init__(self, compiled: Any, vocab_size: int) -> None:
        """Start before the first token of a grammar that XGrammar compiled."""
        import xgrammar

        self._vocab_size = vocab_size
        self._last_word = np.array([0xFFFFFFFF >> -vocab_size % 32], dtype=np.uint32).view(np.int32)[0]
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._bitmask = xgrammar.allocate_token_bitmask(1, vocab_size)

    def accept(self, token_id: int) -> bool:
        """Step over one sampled id; False (and no step) if the grammar forbids it."""
        return not self.is_complete and bool(self._matcher.accept_token(token_id))

    @property
    def is_complete(self) -> bool:
        """True once the end of turn was accepted: nothing may follow."""
        return bool(self._matcher.is_terminated())

    def allowed(self) -> NDArray[np.bool_]:
        """[V] True for each id that may come next; all False once complete."""
        words = self.legal_words().view(np.uint8)
        return np.unpackbits(words, bitorder="little")[: self._vocab_size].astype(np.bool_)

    def legal_words(self) -> NDArray[np.int32]:
        """[W] the same, bit v % 32 of word v // 32 for id v; overwritten by the next call."""
        words: NDArray[np.int32] = self._bitmask[0].numpy()
        if self.is_complete:
            words[:] = 0
        else:
            self._matcher.fill_next_token_bitmask(self._bitmask, 0)
            words[-1] &= self._last_word
        return words


class CompiledStates:
    """The compiled grammars of a benchmark's states."""

    def __init__(self, compiled: Mapping[EpisodeState, Any], vocab_size: int) -> None:
        """Hold what ``compile_states`` compiled."""
        self._compiled = dict(compiled)
        self._vocab_size = vocab_size

    def matcher(self, state: EpisodeState) -> Matcher:
        """A fresh matcher for one generation."""
        return Matcher(self._compiled[state], self._vocab_size)

    def grammar(self, state: EpisodeState) -> Any:
        """XGrammar's compiled grammar of a state."""
        return self._compiled[state]

    def accepts(self, state: EpisodeState, token_ids: Sequence[int]) -> bool:
        """True if the ids are exactly one legal generation, end of turn included."""
        matcher = self.matcher(state)
        return all(matcher.accept(token_id) for token_id in token_ids) and matcher.is_complete


def compile_states(
    grammars: Mapping[EpisodeState, StateGrammar], tokens: ProtocolTokens, tokenizer: Any, *, vocab_size: int
) -> CompiledStates:
    """Compile all states as vLLM will; a tokenizer's compiler lives as long as the tokenizer, so a tag compiles once.

    Args:
        grammars: One grammar a state.
        tokens: The tokenizer's protocol tokens.
        tokenizer: Hugging Face fast tokenizer.
        vocab_size: Rows of the model's output head; ids beyond the tokenizer are never legal.

    Raises:
        GrammarError: XGrammar refuses a tag.
    """
    import xgrammar

    compilers = _COMPILERS.setdefault(tokenizer, {})
    key = (vocab_size, tokens.end_of_turn_id)
    if key not in compilers:
        with blame(GrammarError, f"XGrammar cannot read the tokenizer at vocabulary size {vocab_size}"):
            info = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size, stop_token_ids=[tokens.end_of_turn_id]
            )
            compilers[key] = xgrammar.GrammarCompiler(info, cache_limit_bytes=_CACHE_BYTES)
    compiled = {}
    for state, grammar in grammars.items():
        with blame(GrammarError, f"XGrammar cannot compile the tag of state {state}"):
            compiled[state] = compilers[key].compile_structural_tag(grammar.structural_tag)
    return CompiledStates(compiled, vocab_size)


def verify_states(
    grammars: Mapping[EpisodeState, StateGrammar],
    compiled: CompiledStates,
    tokens: ProtocolTokens,
    template: ChatTemplate,
) -> None:
    """Prove on the run's own tokenizer that grammar and reader agree; for the start of a run.

    In each state a shortest call of each tool must be accepted and read back, only the end of turn may follow it, and
    a call of another state's tool must be unreachable. Up to its end no id at which the engine stops and no other
    control token may be legal but the two that frame it.

    Raises:
        GrammarError: any of it does not hold.
    """
    everywhere: dict[str, str] = {}
    for grammar in grammars.values():
        everywhere.update(zip(grammar.allowed_tools, grammar.shortest_calls, strict=True))
    for state, grammar in grammars.items():
        start = compiled.matcher(state).allowed()
        reachable = [i for i in tokens.control_ids if start[i] and i != tokens.call_begin_id]
        if reachable or not start[tokens.call_begin_id]:
            raise GrammarError(
                f"state {state}: control tokens {reachable} may open a generation, call begin allowed: "
                f"{bool(start[tokens.call_begin_id])}; the tokenizer spells its control tokens in an unknown way"
            )
        for name, text in everywhere.items():
            ids = [tokens.call_begin_id, *template.encode_text(text), tokens.call_end_id]
            matcher = compiled.matcher(state)
            accepted = _step_through(state, matcher, ids, tokens)
            if accepted != (name in grammar.allowed_tools):
                raise GrammarError(f"state {state}: call of {name!r} accepted: {accepted}, against the tag's own tools")
            if accepted:
                _verify_call(grammar, matcher, ids, tokens, template)


def _step_through(state: EpisodeState, matcher: Matcher, ids: list[int], tokens: ProtocolTokens) -> bool:
    """Whether a call is accepted."""
    framing = {tokens.call_begin_id, tokens.call_end_id}
    for place, token_id in enumerate(ids):
        allowed = matcher.allowed()
        wrong = [one for one in {*tokens.control_ids, *tokens.stop_ids} - framing if allowed[one]]
        wrong += [one for one in framing if allowed[one] and one != token_id]
        if wrong:
            raise GrammarError(
                f"state {state}: ids {sorted(wrong)[:8]} are legal at token {place} of a call, though they end a turn "
                "or belong to the protocol; declare them as added tokens of the tokenizer"
            )
        if not matcher.accept(token_id):
            return False
    return True


def _verify_call(
    grammar: StateGrammar, matcher: Matcher, ids: list[int], tokens: ProtocolTokens, template: ChatTemplate
) -> None:
    follow = np.flatnonzero(matcher.allowed()).tolist()
    if follow != [tokens.end_of_turn_id]:
        raise GrammarError(f"state {grammar.state}: ids {follow[:8]} may follow a call, not only the end of turn")
    reading = read_generation(
        [*ids, tokens.end_of_turn_id],
        tokens=tokens,
        tools=grammar.tools,
        decode=template.decode,
        finish=Finish.EOS,
        turn_id=0,
    )
    if reading.terminal is not None:
        raise GrammarError(f"state {grammar.state}: a legal call is read as {reading.terminal}: {reading.call.reason}")
