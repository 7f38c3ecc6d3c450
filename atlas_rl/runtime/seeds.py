"""One sampling seed a generation, so that an episode can be drawn again whatever ran beside it."""

import hashlib
import json


def generation_seed(run_seed: int, uid: str, session_id: int, turn_id: int, step: int) -> int:
    """Derive the seed of one generation, in [0, 2**31).

    The attempt is left out on purpose: a resumed run draws what the uninterrupted run would have drawn.

    Args:
        run_seed: Root of all seeds of the run.
        uid: The drawn question.
        session_id: Which of its episodes, from 0.
        turn_id: Which generation of the episode, from 0.
        step: Training step that asked for the episode.
    """
    # JSON keeps the parts apart: uid "a1" with session 2 and uid "a" with session 12 are other texts.
    parts = json.dumps([run_seed, uid, session_id, turn_id, step], ensure_ascii=True)
    return int.from_bytes(hashlib.sha256(parts.encode()).digest()[:4], "big") >> 1
