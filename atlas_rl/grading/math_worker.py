r"""Program of a math grading process: one JSON line {answer, ground_truth} in, one {verdict, detail} out.

The whole submitted answer must be the final answer: unless it stands in `$` or starts with `\boxed`, it is read as if
it stood inside `\boxed{}`, so that no number is picked out of a sentence. The truth is read the same way and comes
first, since math-verify is not symmetric. Numbers agree to six decimal places. An answer that cannot be read is
`wrong`; a truth that cannot be read, and a comparison that fails, give `unjudged`.

Usage: math_worker.py TIME_LIMIT_SECONDS. It imports nothing of atlas_rl, to start fast and to die alone.
"""

import json
import os
import re
import resource
import sys
import time
from typing import Any

MEMORY_BYTES = 4 << 30
"""Address space of the process: an answer such as a tower of powers must not take the machine's memory."""
ORPHAN_SECONDS = 10
"""Processor time past the limit after which the kernel ends a process whose parent is gone and cannot kill it."""

NUMBER_WITH_TAIL = re.compile(r"[-+]?[0-9][0-9,]*(\.[0-9]+)?\s*(\.|%)")
"""What math-verify takes for mere text inside a box, such as `50%` and `18.`; it is read as a plain expression."""


def judge(answer: str, ground_truth: str) -> tuple[str, str]:
    """The verdict on one answer and a line on how it was read."""
    from math_verify import verify

    try:
        gold = _read(ground_truth)
    except Exception as error:
        return "unjudged", f"ground truth {ground_truth[:100]!r} cannot be read as math: {_line(error)}"
    if not gold:
        return "unjudged", f"ground truth {ground_truth[:100]!r} cannot be read as math"
    try:
        target = _read(answer)
    except Exception as error:
        return "wrong", f"answer cannot be read as math: {_line(error)}"
    if not target:
        return "wrong", "answer cannot be read as math"
    try:
        is_equal = verify(gold, target, float_rounding=6, timeout_seconds=None, raise_on_error=True)
    except Exception as error:
        return "unjudged", _line(error)
    return ("correct" if is_equal else "wrong"), f"read as {str(target[-1])[:100]!r}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _read(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    text = text.strip()
    if NUMBER_WITH_TAIL.fullmatch(text):
        return list(parse(text, [ExprExtractionConfig()], parsing_timeout=None, raise_on_error=True))
    is_marked = text.startswith("\\boxed") or (text.startswith("$") and text.endswith("$"))
    whole = text if is_marked else f"\\boxed{{{text}}}"
    return list(parse(whole, [LatexExtractionConfig()], parsing_timeout=None, raise_on_error=True))


def main() -> None:
    """Serve requests until the input ends."""
    limit_seconds = float(sys.argv[1])
    replies = os.dup(1)
    os.dup2(2, 1)  # whatever math-verify prints must not look like a reply
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    _, most_cpu_seconds = resource.getrlimit(resource.RLIMIT_CPU)
    judge("1", "1")
    os.write(replies, b"ready\n")
    for line in sys.stdin:
        request = json.loads(line)
        cpu_seconds = int(time.process_time() + limit_seconds) + ORPHAN_SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, most_cpu_seconds))
        verdict, detail = judge(request["answer"], request["ground_truth"])
        reply = json.dumps({"verdict": verdict, "detail": detail}).encode() + b"\n"
        while reply:
            reply = reply[os.write(replies, reply) :]


if __name__ == "__main__":
    main()
