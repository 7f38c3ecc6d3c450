"""The control tokens that frame a call and end a turn, read once from the tokenizer.

Calls are found by these ids, never by their spelling: ordinary tokens can spell ``<tool_call>`` too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from atlas_rl.errors import GrammarError

CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"
THINK_MARKS = ("<think>", "</think>")
"""Added tokens that free text may hold: models reason between them."""


class Tokenizer(Protocol):
    """The part of a Hugging Face fast tokenizer that the protocol uses."""

    eos_token_id: Any
    eos_token: Any

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Id to added token; ``str`` of a token is its text."""
        ...

    @property
    def backend_tokenizer(self) -> Any:
        """The ``tokenizers.Tokenizer`` underneath."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages."""
        ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Text of ids."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolTokens:
    """Ids and texts of the tokens that only the protocol may use."""

    call_begin_id: int
    call_end_id: int
    end_of_turn_id: int
    """What the policy samples to end its turn; the tokenizer's end-of-text token."""
    stop_ids: tuple[int, ...]
    """Every id at which the engine stops, ``end_of_turn_id`` first."""
    call_begin_text: str = CALL_BEGIN
    call_end_text: str = CALL_END
    end_of_turn_text: str = "<|im_end|>"
    control_ids: tuple[int, ...] = ()
    """Ascending ids of all added tokens that neither text nor arguments may hold, the ones above included."""
    control_texts: tuple[str, ...] = ()
    """Their texts, in the same order."""

    def __post_init__(self) -> None:
        """Check that the ids can be told apart.

        Raises:
            GrammarError: two roles share an id, or the end of turn is no stop id.
        """
        if len({self.call_begin_id, self.call_end_id, self.end_of_turn_id}) != 3:
            raise GrammarError(
                f"call begin {self.call_begin_id}, call end {self.call_end_id} and end of turn {self.end_of_turn_id} "
                "must be three different token ids"
            )
        if not self.stop_ids or self.stop_ids[0] != self.end_of_turn_id:
            raise GrammarError(f"stop_ids {self.stop_ids} must start with the end of turn {self.end_of_turn_id}")
        if {self.call_begin_id, self.call_end_id} & set(self.stop_ids):
            raise GrammarError(f"stop_ids {self.stop_ids} hold a call token; a call would stop the engine half-written")
        if len(self.control_ids) != len(self.control_texts):
            raise GrammarError(f"{len(self.control_ids)} control ids but {len(self.control_texts)} control texts")

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, extra_stop_ids: Sequence[int] = ()) -> "ProtocolTokens":
        """Read the protocol's tokens from a Hugging Face fast tokenizer.

        Args:
            tokenizer: Its end-of-text token ends a turn, as XGrammar and vLLM read it from there.
            extra_stop_ids: Further ids at which the engine stops (``eos_token_id`` of generation_config.json).

        Raises:
            GrammarError: a call token is not one token, there is no end token, or a stop id is no added token.
        """
        added = {int(token_id): str(token) for token_id, token in tokenizer.added_tokens_decoder.items()}
        ids = {text: token_id for token_id, text in added.items()}
        for text in (CALL_BEGIN, CALL_END):
            if text not in ids:
                raise GrammarError(
                    f"tokenizer has no single token for {text!r}, so ordinary tokens would open a call; "
                    f"add it with tokenizer.add_tokens([{text!r}]) and resize the model's embeddings"
                )
        end_id = tokenizer.eos_token_id
        if not isinstance(end_id, int):
            raise GrammarError(
                f"tokenizer has end-of-text token id {end_id!r}; set tokenizer.eos_token to the token that ends a turn"
            )
        if end_id not in added:
            raise GrammarError(
                f"end-of-text token {tokenizer.eos_token!r} (id {end_id}) is an ordinary token; set "
                "tokenizer.eos_token to an added token"
            )
        control = {i: text for i, text in sorted(added.items()) if text not in THINK_MARKS and text.strip()}
        stop_ids = tuple(dict.fromkeys([end_id, *(int(stop) for stop in extra_stop_ids)]))
        name_of = tokenizer.backend_tokenizer.id_to_token
        unknown = [stop for stop in stop_ids if stop not in control and (stop < 0 or name_of(stop) is None)]
        if unknown:
            raise GrammarError(
                f"stop ids {unknown} are no tokens of the tokenizer; take them out of generation_config.json, or use "
                "the tokenizer that belongs to the model"
            )
        ordinary = [stop for stop in stop_ids if stop not in control]
        if ordinary:
            raise GrammarError(
                f"stop ids {ordinary} are ordinary tokens, so text could end a turn by accident; "
                "declare them as added tokens or take them out of generation_config.json"
            )
        return cls(
            call_begin_id=ids[CALL_BEGIN],
            call_end_id=ids[CALL_END],
            end_of_turn_id=end_id,
            stop_ids=stop_ids,
            end_of_turn_text=added[end_id],
            control_ids=tuple(control),
            control_texts=tuple(control.values()),
        )
