"""The legal set of every sampled token of a batch, rebuilt in the training worker by replaying the grammars.

The rollout's word is not taken for it: the worker compiles the grammars that the records name and steps over the ids
itself, so a token that could not have been sampled stops the run before it is trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu

from atlas_rl.errors import GrammarError, TrainingError
from atlas_rl.grammar.protocol import ProtocolTokens
from atlas_rl.grammar.replay import GrammarBook, LegalSetTable
from atlas_rl.grammar.tags import BenchmarkGrammar
from atlas_rl.tasks.benchmark import load_benchmark

UNSAMPLED = -2
"""Where no token was sampled, or none that the batch's mask asks for."""


class ReplayedSets:
    """Legal sets by place in a table; rows are replayed once a step, whichever passes ask for them."""

    def __init__(self, tokenizer: Any, vocab_size: int, max_text_tokens: int | None = None) -> None:
        """Know no grammar and no row yet.

        Args:
            tokenizer: The run's.
            vocab_size: Rows of the model's output head.
            max_text_tokens: The run's bound on the text before a call; None: each benchmark's own.
        """
        self._max_text_tokens = max_text_tokens
        self._vocab_size = vocab_size
        self._tokens = ProtocolTokens.from_tokenizer(tokenizer)
        self._book = GrammarBook(self._tokens, tokenizer, vocab_size=vocab_size)
        self._known: set[str] = set()
        self._step: int | None = None
        self._rows: dict[tuple[str, int], NDArray[np.int32]] = {}
        self._table = LegalSetTable(vocab_size)
        self._words_DW: Tensor | None = None

    def places(self, batch: TensorDict) -> list[NDArray[np.int32]]:
        """[T] a row: place in the table, ``replay.FORCED``, or ``UNSAMPLED`` where the batch's response mask is 0.

        Args:
            batch: Rows of a micro-batch with ``responses``, ``response_mask`` and what the rollout said of them.

        Raises:
            TrainingError: a sampled token is not legal under the grammar that its record names.
        """
        facts: Sequence[Mapping[str, Any]] = tu.get(batch, "extra_fields")
        uids, sessions = tu.get(batch, "uid"), tu.get(batch, "session_id")
        self._start_step(max(int(fact["step"]) for fact in facts))
        found = []
        for row, (responses, mask) in enumerate(
            zip(batch["responses"].unbind(), batch["response_mask"].unbind(), strict=True)
        ):
            is_asked = mask.bool().cpu().numpy()
            places = np.full(len(is_asked), UNSAMPLED, dtype=np.int32)
            if is_asked.any():
                key = (str(uids[row]), int(sessions[row]))
                if key not in self._rows:
                    self._rows[key] = self._replay(key, responses.tolist(), facts[row])
                places[is_asked] = self._rows[key][is_asked]
            found.append(places)
        return found

    def words_DW(self, device: torch.device) -> Tensor:
        """int32 table on the device; sets found since the last call are added to it."""
        have = 0 if self._words_DW is None else self._words_DW.shape[0]
        if self._words_DW is None or have < len(self._table):
            more = torch.from_numpy(self._table.words(have)).to(device)
            self._words_DW = more if self._words_DW is None else torch.cat([self._words_DW, more])
        return self._words_DW

    def _start_step(self, step: int) -> None:
        if step != self._step:
            self._step, self._rows = step, {}
            self._table, self._words_DW = LegalSetTable(self._vocab_size), None

    def _replay(self, key: tuple[str, int], response_ids: list[int], facts: Mapping[str, Any]) -> NDArray[np.int32]:
        """[T] of one row, ``UNSAMPLED`` on observations."""
        where = f"trajectory {key[0]}_{key[1]}"
        self._learn(facts["benchmark_spec"])
        places = np.full(len(response_ids), UNSAMPLED, dtype=np.int32)
        for offset, num_sampled, grammar_hash in facts["generations"]:
            sampled = response_ids[offset : offset + num_sampled]
            if grammar_hash is None:
                raise TrainingError(
                    f"{where}: the generation at offset {offset} was sampled without a grammar, but "
                    "atlas.policy.logprobs=grammar; set atlas.runtime.grammar=true"
                )
            try:
                places[offset : offset + num_sampled] = self._table.replay(
                    self._book.walk(grammar_hash), sampled, offset=offset
                )
            except GrammarError as error:
                raise TrainingError(f"{where}: {error}, under grammar {grammar_hash}") from error
        return places

    def _learn(self, benchmark_spec: str) -> None:
        if benchmark_spec not in self._known:
            grammar = BenchmarkGrammar.from_benchmark(
                load_benchmark(benchmark_spec), self._tokens, max_text_tokens=self._max_text_tokens
            )
            self._book.add(list(grammar.by_name(rungs=True).values()))
            self._known.add(benchmark_spec)
