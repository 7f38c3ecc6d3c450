"""The first critic update: the head must move on some rank, the actor on none."""

import pytest

from atlas_rl.errors import TrainingError
from atlas_rl.training.update_check import check_critic_update

HEAD = "base_model.model.score.modules_to_save.default.weight"
ACTOR = [{"q.lora_A": "a"}, {"q.lora_A": "b"}]


def critic(*heads: str) -> list[dict[str, str]]:
    """One rank a head digest."""
    return [{HEAD: head, "q.lora_B": "x"} for head in heads]


def test_a_head_that_moved_on_the_rank_that_holds_it_passes():
    check_critic_update(
        critic_before=critic("old", "empty"), critic_after=critic("new", "empty"), actor_before=ACTOR, actor_after=ACTOR
    )


def test_a_head_that_moved_nowhere_is_frozen():
    with pytest.raises(TrainingError, match="did not change in its first update; it is frozen"):
        check_critic_update(
            critic_before=critic("old", "empty"), critic_after=critic("old", "empty"),
            actor_before=ACTOR, actor_after=ACTOR,
        )  # fmt: skip


def test_a_critic_without_a_trainable_head_is_refused():
    with pytest.raises(TrainingError, match="no trainable value head"):
        check_critic_update(
            critic_before=[{"q.lora_B": "x"}], critic_after=[{"q.lora_B": "y"}], actor_before=ACTOR, actor_after=ACTOR
        )


def test_an_actor_that_moved_on_any_rank_is_refused():
    moved = [ACTOR[0], {"q.lora_A": "c"}]
    with pytest.raises(TrainingError, match="changed the actor"):
        check_critic_update(
            critic_before=critic("old"), critic_after=critic("new"), actor_before=ACTOR, actor_after=moved
        )
