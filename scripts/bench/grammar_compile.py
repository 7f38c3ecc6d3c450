"""Two thousand grammars in one process: what compiling costs, and whether the memory that it takes is bounded.

    python scripts/bench/grammar_compile.py --model DIR [--num 2000] [--share 4] [--cache-mib 6]

Each grammar is a state of a benchmark with a submit of its own: an enum, a pattern, a short or a long string, in turn,
no two alike. One in --share also follows a generation to its end. The compiler is that of ``compile_states``, which
keeps at most ``compiled._CACHE_BYTES``; vLLM's own keeps VLLM_XGRAMMAR_CACHE_MB, 512 by default.
"""

import argparse
import gc
import statistics
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from atlas_rl.cli.prompts import load_protocol
from atlas_rl.grammar import compiled as compiled_module
from atlas_rl.grammar.compiled import compile_states
from atlas_rl.grammar.tags import state_grammar
from atlas_rl.records.vocabulary import EpisodeState
from atlas_rl.tasks.benchmark import Tool

REPORT_EVERY = 500
STATE = EpisodeState.OPEN


def schema(index: int) -> dict[str, Any]:
    """The argument of grammar ``index``; no two indices give the same."""
    match index % 4:
        case 0:
            return {"enum": [f"{letter}{index}" for letter in "ABCD"]}
        case 1:
            return {"type": "string", "pattern": rf"^{index}[0-9]{{1,{1 + index % 64}}}$"}
        case 2:
            return {"type": "string", "maxLength": 8 + index}
        case _:
            return {"type": "string", "minLength": 1, "maxLength": 1024 + 7 * index}


def tool(name: str, **properties: Any) -> Tool:
    """A tool whose arguments are all required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name=name, description="", parameters={**parameters, "additionalProperties": False})


def resident_mib() -> float:
    """Memory of this process in MiB, after a collection."""
    gc.collect()
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    """Compile, and print one line every 500 grammars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--num", type=int, default=2000)
    parser.add_argument("--share", type=int, default=4)
    parser.add_argument("--cache-mib", type=int, help="keep less, to see where memory stops growing")
    given = parser.parse_args()
    if given.cache_mib is not None:
        compiled_module._CACHE_BYTES = given.cache_mib * 2**20
    protocol = load_protocol(OmegaConf.create({}), given.model, enable_thinking=False)
    tokens, tokenizer = protocol.tokens, protocol.tokenizer
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    compile_states({}, tokens, tokenizer, vocab_size=vocab_size)
    (compiler,) = compiled_module._COMPILERS[tokenizer].values()
    milliseconds: list[float] = []
    by_kind: list[list[float]] = [[], [], [], []]
    resident = [resident_mib()]
    print(f"{given.model}: {vocab_size} tokens; 0 grammars, {resident[0]:.0f} MiB resident")
    for index in range(given.num):
        text = (0, 16, 128, None)[index // 4 % 4]
        grammar = state_grammar([tool("explore"), tool("submit", answer=schema(index))], tokens, text, state=STATE)
        started = time.perf_counter()
        states = compile_states({STATE: grammar}, tokens, tokenizer, vocab_size=vocab_size)
        milliseconds.append(1000 * (time.perf_counter() - started))
        by_kind[index % 4].append(milliseconds[-1])
        if index % given.share == 0:
            ids = [tokens.call_begin_id, *protocol.template.encode_text(grammar.shortest_calls[1]), tokens.call_end_id]
            if not states.accepts(STATE, [*ids, tokens.end_of_turn_id]):
                raise SystemExit(f"grammar {index} refuses its own shortest call")
        if (index + 1) % REPORT_EVERY == 0:
            resident.append(resident_mib())
            held = compiler.get_cache_size_bytes() / 2**20
            print(
                f"{index + 1} grammars: {resident[-1]:.0f} MiB resident, {held:.0f} MiB held as XGrammar counts it, "
                f"p50 {_percentile(milliseconds, 50):.1f} ms, p99 {_percentile(milliseconds, 99):.1f} ms, "
                f"max {max(milliseconds):.0f} ms"
            )
    for kind, times in zip(("enum", "pattern", "short string", "long string"), by_kind, strict=True):
        print(
            f"{kind}: p50 {_percentile(times, 50):.1f} ms, p99 {_percentile(times, 99):.1f} ms, max {max(times):.0f} ms"
        )
    grown = resident[-1] - resident[len(resident) // 2]
    print(f"grammars: {given.num} resident_mib={resident[-1]:.0f} grown_in_second_half_mib={grown:.0f}")


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


if __name__ == "__main__":
    main()
