"""vLLM's structured output with remembered masks: the same masks and the same tokens, at a fraction of the time.

vLLM asks XGrammar for every request at every step. ``grammar.walk`` answers from memory what was asked before, and
``training.mask_rows`` carries only what changed. The door is vLLM's own: ``scheduler_cls`` of the engine's arguments
names ``scheduler`` below, which prepares the manager of structured output that every scheduler is given. Tags that this
project did not write, and other kinds of constraint, go vLLM's way untouched.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vllm.utils.torch_utils import PIN_MEMORY
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from atlas_rl.errors import ConfigError, EngineError
from atlas_rl.grammar.walk import MaskTable, Memo, Walk, fill_rows, memo_of
from atlas_rl.training.mask_rows import MaskRing, PackedMasks

SCHEDULER = "scheduler_cls=atlas_rl.training.engine_grammar.scheduler"
MAX_TAGS = 256
"""Tags remembered at a time, the oldest forgotten first; three a benchmark, and a dozen each with a reserve."""


class WalkingGrammar(StructuredOutputGrammar):  # type: ignore[misc]
    """A request's grammar as vLLM wants it, over a walk."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self.walk = Walk(memo)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Step over sampled tokens; False at the first that the grammar forbids."""
        return all(self.walk.accept(token_id) for token_id in tokens)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the mask into a row of a CPU tensor."""
        self.walk.fill(bitmask, batch_index)

    def is_terminated(self) -> bool:
        """The end of turn was sampled."""
        return self.walk.is_complete

    def reset(self) -> None:
        """Stand before the first token again."""
        self.walk = Walk(self._memo)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Only drafts are validated, and ``scheduler`` refuses an engine with drafts.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"asked to validate {len(tokens)} drafts; take out speculative decoding or {SCHEDULER}")

    def rollback(self, num_tokens: int) -> None:
        """Only drafts are rolled back, and ``scheduler`` refuses an engine with drafts.

        Raises:
            EngineError: always.
        """
        raise EngineError(f"asked to roll back {num_tokens} tokens; take out speculative decoding or {SCHEDULER}")


class WalkingBackend(XgrammarBackend):  # type: ignore[misc]
    """vLLM's XGrammar backend that remembers the grammars of this project's tags."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.table = MaskTable(self.vocab_size)
        self._memos: dict[str, Memo] = {}
        self._lock = Lock()  # grammars are compiled in threads

    def remembered(self, request_type: StructuredOutputOptions, grammar_spec: str) -> WalkingGrammar | None:
        """A grammar at its start if the tag was compiled before; None: it was not, or cannot be remembered."""
        memo = self._memos.get(grammar_spec) if request_type == StructuredOutputOptions.STRUCTURAL_TAG else None
        return None if memo is None else WalkingGrammar(memo)

    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> StructuredOutputGrammar:
        """As vLLM, with a memo where there can be one."""
        known = self.remembered(request_type, grammar_spec)
        if known is not None:
            return known
        grammar = super().compile_grammar(request_type, grammar_spec)
        if request_type != StructuredOutputOptions.STRUCTURAL_TAG:
            return grammar
        memo = memo_of(grammar_spec, grammar.ctx, self.table)
        if memo is None:
            return grammar
        with self._lock:
            while len(self._memos) >= MAX_TAGS:
                self._memos.pop(next(iter(self._memos)))
            return WalkingGrammar(self._memos.setdefault(grammar_spec, memo))


class WalkingManager(StructuredOutputManager):  # type: ignore[misc]
    """vLLM's manager of structured output; what ``prepare`` turns an engine's manager into."""

    backend: WalkingBackend
    ring_shape: tuple[int, int, int]
    ring: MaskRing | None
    """None: the model runs in another process, which has its own."""

    def grammar_init(self, request: Any) -> None:
        """Give a request its grammar at once if the tag is known; else compile in a thread, as vLLM does."""
        structured = request.structured_output_request
        known = None if structured is None else self.backend.remembered(*structured.structured_output_key)
        if known is None:
            super().grammar_init(request)
        else:
            structured.grammar = known

    def should_advance(self, request: Any) -> bool:
        """Advance here, and tell the scheduler that nothing is left to do.

        The scheduler asks right after it appended the one sampled token. Its own way to the grammar costs as much
        again as the step itself. A token that is refused here is refused there too, and vLLM ends the request.
        """
        structured = request.structured_output_request
        if structured is None or type(structured._grammar) is not WalkingGrammar:
            return bool(super().should_advance(request))
        return not structured._grammar.walk.accept(request.output_token_ids[-1])

    def grammar_bitmask(
        self,
        requests: dict[str, Any],
        structured_output_request_ids: list[str],
        scheduled_spec_decode_tokens: dict[str, list[int]],
    ) -> NDArray[np.int32] | PackedMasks | None:
        """[num_ids, width] the masks of a step, in the order of the ids."""
        grammars = [requests[name].structured_output_request._grammar for name in structured_output_request_ids]
        if not grammars or any(type(grammar) is not WalkingGrammar for grammar in grammars):
            masks: NDArray[np.int32] | None = super().grammar_bitmask(
                requests, structured_output_request_ids, scheduled_spec_decode_tokens
            )
            return masks
        walks = [grammar.walk for grammar in grammars]
        numbers = [walk.mask for walk in walks]
        if self.ring is None:
            return self._packed(walks, numbers)
        return self.ring.write(numbers, lambda rows, changed: fill_rows([walks[i] for i in changed], rows, changed))

    def _packed(self, walks: Sequence[Walk], numbers: Sequence[int]) -> PackedMasks:
        first: dict[int, int] = {}
        places: list[int] = []
        sources: list[Walk] = []
        for walk, number in zip(walks, numbers, strict=True):
            # An unnumbered mask is no other request's: its key is never looked up again.
            key = number if number >= 0 else -1 - len(sources)
            if key not in first:
                first[key] = len(sources)
                sources.append(walk)
            places.append(first[key])
        distinct = np.empty((len(sources), self.ring_shape[2]), dtype=np.int32)
        fill_rows(sources, distinct, range(len(sources)))
        return PackedMasks(ring_shape=self.ring_shape, numbers=numbers, places=places, distinct=distinct)


def prepare(manager: Any, vllm_config: Any) -> None:
    """Turn an engine's manager of structured output into one that remembers.

    Raises:
        ConfigError: the engine's configuration uses structured output in a way that is not provided for.
    """
    options = vllm_config.structured_outputs_config
    if options.backend != "xgrammar":
        raise ConfigError(f"{SCHEDULER}: structured_outputs_config.backend is {options.backend!r}; set 'xgrammar'")
    if vllm_config.speculative_config is not None or options.reasoning_parser:
        raise ConfigError(
            f"{SCHEDULER}: speculative_config={vllm_config.speculative_config!r} and reasoning_parser="
            f"{options.reasoning_parser!r}; take both out, or leave scheduler_cls to vLLM"
        )
    if getattr(manager, "tokenizer", None) is None:
        raise ConfigError(f"{SCHEDULER}: the engine has no tokenizer; set skip_tokenizer_init=false")
    backend = WalkingBackend(vllm_config, manager.tokenizer, vllm_config.model_config.get_vocab_size())
    manager.__class__ = WalkingManager
    manager.backend = backend
    manager.ring_shape = (
        vllm_config.max_concurrent_batches + 1,
        vllm_config.scheduler_config.max_num_seqs,
        backend.table.width,
    )
    executor = vllm_config.parallel_config.distributed_executor_backend
    is_pinned = PIN_MEMORY and executor == "uni"
    manager.ring = None if executor == "mp" else MaskRing(*manager.ring_shape, is_pinned=is_pinned)


def scheduler(*, vllm_config: Any, structured_output_manager: Any, **arguments: Any) -> Any:
    """The scheduler that vLLM would choose, over remembered masks; for the engine argument ``scheduler_cls``.

    Raises:
        ConfigError: from ``prepare``.
    """
    prepare(structured_output_manager, vllm_config)
    chosen = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    return chosen(vllm_config=vllm_config, structured_output_manager=structured_output_manager, **arguments)
