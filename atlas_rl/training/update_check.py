"""What one critic update may and must change, told from digests of every trainable tensor."""

from collections.abc import Sequence

from atlas_rl.adapters.settings import VALUE_HEAD
from atlas_rl.errors import TrainingError

Digests = Sequence[dict[str, str]]
"""[ranks] parameter name to sha256 of that rank's part."""


def check_critic_update(
    *, critic_before: Digests, critic_after: Digests, actor_before: Digests, actor_after: Digests
) -> None:
    """Refuse a critic update that left the value head as it was, or that touched the actor.

    A rank may hold no row of so small a layer; the head counts as changed if any rank's part changed.

    Raises:
        TrainingError: there is no trainable head, a tensor of it did not change, or the actor changed.
    """
    heads = [name for name in critic_before[0] if f".{VALUE_HEAD}." in f".{name}"]
    if not heads:
        raise TrainingError("critic: no trainable value head; a frozen head cannot fit returns")
    frozen = [
        name
        for name in heads
        if all(before[name] == after[name] for before, after in zip(critic_before, critic_after, strict=True))
    ]
    if frozen:
        raise TrainingError(f"critic: {frozen} of its value head did not change in its first update; it is frozen")
    if list(actor_before) != list(actor_after):
        raise TrainingError("critic: its first update changed the actor's trainable tensors")
