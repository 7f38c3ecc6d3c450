"""Runs cases on one tokenizer: against the compiled grammars, and through the reader."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from atlas_rl.errors import ConfigError, GrammarError
from atlas_rl.grammar.cases import Case, NextIds, RefusedSchema
from atlas_rl.grammar.compiled import CompiledStates
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.reading import read_generation
from atlas_rl.grammar.schema import call_part
from atlas_rl.grammar.tags import StateGrammar
from atlas_rl.grammar.template import ChatTemplate
from atlas_rl.records.vocabulary import EpisodeState, Finish
from atlas_rl.tasks.benchmark import Tool

_MARKS = {"think_begin": "<think>", "think_end": "</think>"}
"""Ids that a tokenizer need not have: without them a model spells the marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """A tool surface on the tokenizer."""

    names: Mapping[str, str]
    """explore and submit to what the tools are called."""
    states: Mapping[EpisodeState, StateGrammar]
    compiled: CompiledStates


class CaseRunner:
    """Runs cases on one tokenizer."""

    def __init__(self, tokenizer: Any, template: ChatTemplate, compiled: CompiledStates) -> None:
        """Know the tokenizer.

        Args:
            tokenizer: Hugging Face fast tokenizer.
            template: Its chat template.
            compiled: Any grammars compiled on it.
        """
        tokens = ProtocolTokens.from_tokenizer(tokenizer)
        framing = {tokens.call_begin_id, tokens.call_end_id, tokens.end_of_turn_id}
        others = [token_id for token_id in tokens.control_ids if token_id not in framing][:1]
        self.tokens = ProtocolTokens.from_tokenizer(tokenizer, extra_stop_ids=others)
        """With a second stop id, if the tokenizer has a control token to spare."""
        self._template = template
        self._compiled = compiled
        added = {str(token): int(token_id) for token_id, token in tokenizer.added_tokens_decoder.items()}
        self._ids = {
            "call_begin": tokens.call_begin_id,
            "call_end": tokens.call_end_id,
            "end_of_turn": tokens.end_of_turn_id,
            **dict(zip(["other_stop"], others, strict=False)),
            **{name: added[mark] for name, mark in _MARKS.items() if mark in added},
        }

    def run(self, case: Case, surface: Surface) -> Iterator[tuple[str, str]]:
        """What was looked at and what is wrong with it (empty: nothing), in every state of a surface.

        Raises:
            ConfigError: the case cannot be written on this tokenizer.
        """
        for state, grammar in surface.states.items():
            ids = self._write(case, surface, grammar)
            is_allowed = surface.names[case.tool] in grammar.allowed_tools
            where = f"{case.id}, state {state}"
            if case.legal is not None:
                wanted = case.legal and is_allowed and self._fits(ids, grammar)
                accepted = surface.compiled.accepts(state, ids)
                yield f"{where}, tokens", "" if accepted == wanted else f"accepted: {accepted}"
            if case.reads is not None:
                yield f"{where}, reading", self._reading_fault(case, ids, grammar, is_allowed=is_allowed)
            if case.next is not None:
                yield (
                    f"{where}, next token",
                    self._next_fault(case.next, ids, surface.compiled, grammar, is_allowed=is_allowed),
                )

    def refuse(self, refused: RefusedSchema) -> str:
        """What is wrong with how a schema is refused; empty: nothing."""
        parameters = {"type": "object", "properties": {"answer": refused.answer}, "required": ["answer"]}
        tool = Tool(name="submit", description="", parameters={**parameters, "additionalProperties": False})
        try:
            call_part(tool, self.tokens)
        except GrammarError as error:
            return "" if refused.say in str(error) else f"refused with: {error}"
        return "not refused"

    def _write(self, case: Case, surface: Surface, grammar: StateGrammar) -> list[int]:
        shortest = dict(zip(grammar.allowed_tools, grammar.shortest_calls, strict=True))
        ids: list[int] = []
        for element in case.write:
            match element:
                case str():
                    ids += self._template.encode_text(element)
                case {"call": "explore" | "submit" as role}:
                    name = surface.names[role]
                    ids += self._framed(shortest.get(name, f'\n{{"name": {json.dumps(name)}, "arguments": {{}}}}\n'))
                case {"call_text": str() as text}:
                    ids += self._framed(text)
                case {"times": int() as times, "text": str() as text}:
                    ids += self._template.encode_text(text) * times
                case {"byte": int() as byte}:
                    ids.append(self._bytes.index(bytes([byte])))
                case {"id": str() as name} if name in self._ids:
                    ids.append(self._ids[name])
                case {"id": str() as name} if name in _MARKS:
                    ids += self._template.encode_text(_MARKS[name])
                case _:
                    raise ConfigError(
                        f"case {case.id!r}: cannot write {element!r} on this tokenizer; see docs/grammar.md"
                    )
        return ids

    def _framed(self, text: str) -> list[int]:
        return [self.tokens.call_begin_id, *self._template.encode_text(text), self.tokens.call_end_id]

    @cached_property
    def _bytes(self) -> list[bytes]:
        """[V] bytes of each token."""
        return list(self._compiled.grammar(EpisodeState.OPEN).tokenizer_info.decoded_vocab)

    def _fits(self, ids: list[int], grammar: StateGrammar) -> bool:
        bound = grammar.max_text_tokens
        return bound is None or self.tokens.call_begin_id in ids[: bound + 1]

    def _reading_fault(self, case: Case, ids: list[int], grammar: StateGrammar, *, is_allowed: bool) -> str:
        finish = Finish.EOS if ids and ids[-1] in self.tokens.stop_ids else Finish.LENGTH
        decode = self._template.decode
        reading = read_generation(ids, tokens=self.tokens, tools=grammar.tools, decode=decode, finish=finish, turn_id=0)
        wanted = "invalid_call" if case.reads == "runs" and not is_allowed else case.reads
        seen = "runs" if reading.terminal is None else str(reading.terminal)
        if seen != wanted:
            return f"reads {seen}, not {wanted}: {reading.call.reason}"
        if case.reason not in reading.call.reason:
            return f"the reason is {reading.call.reason!r}, without {case.reason!r}"
        if wanted == "runs" and case.arguments is not None and reading.call.arguments != case.arguments:
            return f"arguments {reading.call.arguments}, not {case.arguments}"
        return ""

    def _next_fault(
        self, wanted: NextIds, ids: list[int], compiled: CompiledStates, grammar: StateGrammar, *, is_allowed: bool
    ) -> str:
        matcher = compiled.matcher(grammar.state)
        if not all(matcher.accept(token_id) for token_id in ids):
            return "the beginning is not accepted" if is_allowed else ""
        allowed = set(np.flatnonzero(matcher.allowed()).tolist())
        wrong = [name for name in wanted.must_not if self._ids.get(name) in allowed]
        wrong += [name for name in wanted.may if self._ids.get(name) not in allowed]
        if wanted.only is not None:
            wrong += map(str, sorted(allowed.symmetric_difference(self._ids[name] for name in wanted.only))[:4])
        return f"wrong about {', '.join(wrong)}" if wrong else ""
