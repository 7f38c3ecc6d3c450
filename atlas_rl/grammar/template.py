"""Token ids of prompts and observations, such that no content can ever become a control token.

A chat template is rendered with a slot in place of each content and cut at the slots. Control tokens are recognised
only in what the template itself wrote; the text between two of them, contents included, is encoded as one piece
without control tokens. The ids are those of the plain rendering wherever no content spells a control token. Nothing
that the policy sampled is ever rendered, decoded or encoded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas_rl.errors import GrammarError, blame
from atlas_rl.grammar.protocol import ProtocolTokens, Tokenizer

_PROBE = 'A b\n\n  {"c": [1, "d"]}\t-2.5\n'


def _slot(index: int) -> str:
    return f"@@slot-{index}@@"


@dataclass(frozen=True, slots=True)
class _Glue:
    """What the template wrote between two contents: text, then control tokens each followed by text."""

    head: str
    tail: tuple[tuple[int, str], ...]


class ChatTemplate:
    """A tokenizer's chat template, cut into control tokens and text."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: ProtocolTokens, *, template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        """Find the glue between a sampled turn and the next by rendering a sentinel conversation once.

        Args:
            tokenizer: Hugging Face fast tokenizer, byte-level, with a chat template that has the tool role.
            tokens: Its protocol tokens.
            template_kwargs: Variables of the template, such as ``{"enable_thinking": False}``.

        Raises:
            GrammarError: the tokenizer or its template cannot keep content and control apart.
        """
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._kwargs = dict(template_kwargs or {})
        self._control = frozenset(tokens.control_ids)
        self._added = _added_tokens(tokenizer)
        self._cut = re.compile("(" + "|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) + ")")
        self._plain = _without_added_tokens(tokenizer.backend_tokenizer)
        if self._plain.decode(self.encode_text(_PROBE), skip_special_tokens=False) != _PROBE:
            raise GrammarError(
                f"tokenizer does not give back {_PROBE!r}; text is joined as ids, so use a byte-level tokenizer "
                "without prefix space"
            )
        self._before, self._after = self._find_glue()
        self._prompt_glue: dict[str, list[_Glue]] = {}
        """By roles and tools: rendering takes far longer than encoding, and all rows of a benchmark share it."""

    def _find_glue(self) -> tuple[_Glue, _Glue]:
        messages = [
            {"role": "user", "content": _slot(0)},
            {"role": "assistant", "content": _slot(1)},
            {"role": "tool", "content": _slot(2)},
        ]
        pieces = self._render(messages, [])
        end = self._tokens.end_of_turn_text
        if not pieces[2].startswith(end):
            raise GrammarError(
                f"chat template ends an assistant turn with {pieces[2][:24]!r} but the end of turn is {end!r}; "
                "set tokenizer.eos_token to what the template writes"
            )
        return self._glue(pieces[2].removeprefix(end)), self._glue(pieces[3])

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[str]:
        """[num_messages + 1] what the template writes around the contents, given slots as contents."""
        with blame(GrammarError, "chat template"):
            options = {**self._kwargs, "add_generation_prompt": True, "tokenize": False}
            text = str(self._tokenizer.apply_chat_template(list(messages), tools=list(tools) or None, **options))
        pieces = []
        for index, message in enumerate(messages):
            before, slot, text = text.partition(_slot(index))
            if not slot or _slot(index) in text:
                raise GrammarError(
                    f"chat template does not write the content of message {index} ({message['role']!r}) exactly once "
                    "and in order; use a template that supports this role, as Qwen3's does"
                )
            pieces.append(before)
        return [*pieces, text]

    def _glue(self, text: str) -> _Glue:
        head, *rest = self._cut.split(text)
        return _Glue(head, tuple((self._added[rest[i]], rest[i + 1]) for i in range(0, len(rest), 2)))

    def _join(self, contents: Sequence[str], glues: Sequence[_Glue]) -> list[int]:
        """Ids of glue, content, glue, ... , glue: one more glue than contents."""
        ids: list[int] = []
        text = ""
        for glue, content in zip(glues, [*contents, ""], strict=True):
            text += glue.head
            for control_id, following in glue.tail:
                ids += [*self.encode_text(text), control_id]
                text = following
            text += content
        return ids + self.encode_text(text)

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text; what spells a control token becomes ordinary tokens.

        Raises:
            GrammarError: the tokenizer's own vocabulary turns the text into a control token, or it is no Unicode text.
        """
        with blame(GrammarError, f"text {text[:40]!r} cannot be encoded"):
            ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        hits = self._control.intersection(ids)
        if hits:
            raise GrammarError(
                f"text {text[:40]!r} encodes to control tokens {sorted(hits)} without added tokens; the tokenizer's "
                "vocabulary must not merge into them"
            )
        return ids

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """[P] ids of a conversation up to and including the generation prompt.

        Args:
            messages: ``role`` and ``content`` each.
            tools: In the OpenAI form, ``Tool.openai``.

        Raises:
            GrammarError: the template leaves a message out or repeats it.
        """
        slots = [{**message, "content": _slot(index)} for index, message in enumerate(messages)]
        key = json.dumps([slots, list(tools)])
        if key not in self._prompt_glue:
            self._prompt_glue[key] = [self._glue(piece) for piece in self._render(slots, tools)]
        return self._join([message["content"] for message in messages], self._prompt_glue[key])

    def observation_ids(self, text: str) -> list[int]:
        """[N] ids that follow a sampled end of turn: glue, ``text`` as a tool message, glue up to the next turn."""
        return self._join([text], [self._before, self._after])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of sampled ids, control tokens spelled out; for reading only, never encoded again."""
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


def _added_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Text to id of every added token.

    Raises:
        GrammarError: one of them swallows the blanks beside it, so that it cannot be cut out of a text.
    """
    added = tokenizer.added_tokens_decoder
    greedy = [str(token) for token in added.values() if getattr(token, "lstrip", 0) or getattr(token, "rstrip", 0)]
    if greedy:
        raise GrammarError(f"added tokens {greedy[:4]} strip the text beside them; add them with lstrip=rstrip=False")
    return {str(token): int(token_id) for token_id, token in added.items()}


def _without_added_tokens(full: Any) -> Any:
    """A copy of a ``tokenizers.Tokenizer`` that recognises no added token and adds none."""
    with blame(GrammarError, "tokenizer is not a fast byte-level one"):
        state = json.loads(full.to_str())
        state["added_tokens"] = []
        state["post_processor"] = state["truncation"] = state["padding"] = None
        return type(full).from_str(json.dumps(state))
