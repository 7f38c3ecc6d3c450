"""The reward of one trajectory, taken apart."""

from pydantic import Field

from atlas_rl.records.base import Record, Usd

MAX_EXPLORES = 8
"""Most explores an episode may have: the breakdown names one reward for each."""


class Breakdown(Record):
    """Everything `score` says about a trajectory; docs/rewards.md explains each field."""

    objective: float
    final_reward: float
    training_reward: float
    utility: float
    acc: float
    num_explores: int = Field(ge=0)
    cost: Usd
    cost_total: Usd
    penalty: float
    overlong: bool
    overlong_penalty: float
    format_score: float
    has_answer: bool
    did_submit: bool
    discovery: bool
    integration: bool
    grader_gap: bool
    subset: str
    potential_stop: float
    potential_defined: bool
    explore_reward_1: float
    explore_reward_2: float
    explore_reward_3: float
    explore_reward_4: float
    explore_reward_5: float
    explore_reward_6: float
    explore_reward_7: float
    explore_reward_8: float
    terminal_reward: float
    terminal_reason_code: int
    protocol_violations: int = Field(ge=0)
    invalid_call: bool
    length_capped: bool
    observation_dropped: bool
    num_turns: int = Field(ge=0)
    prompt_tokens: int = Field(ge=0)
    response_tokens: int = Field(ge=0)
    model_tokens: int = Field(ge=0)
    first_correct_k: int = Field(ge=0)
    """1 for the first explore; 0 if no revealed candidate is correct."""
    found_correct: bool
    submitted_after_correct: bool
    process_mode_code: int
