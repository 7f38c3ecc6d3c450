"""Synthetic rows into the TransferQueue, on the way that the agent-loop workers take."""

import random
from typing import Any

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from atlas_rl.training.loop import AtlasOutput
from atlas_rl.training.memory_rows import RowMaker, SyntheticRow

PARTITION = "train"
"""verl's workers read from it; the rows are cleared before the normal loop looks at it."""


def question_rows(
    maker: RowMaker, *, step: int, question: int, num_sessions: int, prompt_tokens: int, response_tokens: int
) -> list[SyntheticRow]:
    """The rows of one question, all of full length."""
    return [
        maker.row(f"{step} {question} {session}", prompt_tokens, response_tokens) for session in range(num_sessions)
    ]


def put_question(rows: list[SyntheticRow], *, step: int, question: int, benchmark_spec: str) -> KVBatchMeta:
    """Store the rows of one question with their tags.

    Args:
        rows: One a session.
        step: Of the run.
        question: Its place in the batch.
        benchmark_spec: Whose grammar the rows keep.
    """
    uid = f"memory{step}x{question}"  # verl splits keys at underscores
    keys, fields, tags = [], [], []
    for session, row in enumerate(rows):
        keys.append(f"{uid}_{session}_0")
        fields.append(_fields(row, uid, session, step, benchmark_spec))
        num_prompt, num_response = len(row.prompt_ids), len(row.response_ids)
        tags.append(
            {
                "status": "success",
                "prompt_len": num_prompt,
                "response_len": num_response,
                "seq_len": num_prompt + num_response,
                "global_steps": step,
                "min_global_steps": step - 1,
                "max_global_steps": step - 1,
            }
        )
    tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=PARTITION)
    return KVBatchMeta(partition_id=PARTITION, keys=keys, tags=tags)


def joined(parts: list[KVBatchMeta]) -> KVBatchMeta:
    """One batch of several."""
    return KVBatchMeta(
        partition_id=PARTITION,
        keys=[key for part in parts for key in part.keys],
        tags=[tag for part in parts for tag in part.tags],
    )


def _fields(row: SyntheticRow, uid: str, session: int, step: int, benchmark_spec: str) -> dict[str, Any]:
    """What a finished episode would be stored as; it has neither a record nor a breakdown, for nobody played it."""
    rng = random.Random(f"{uid} {session}")
    mask = row.response_mask
    rewards = [0.0] * len(mask)
    rewards[max(place for place, is_sampled in enumerate(mask) if is_sampled)] = rng.gauss(0.0, 1.0)
    fields = AtlasOutput(
        prompt_ids=list(row.prompt_ids),
        response_ids=list(row.response_ids),
        response_mask=mask,
        response_logprobs=[-rng.random() if is_sampled else 0.0 for is_sampled in mask],
        token_rewards=rewards,
        reward_score=sum(rewards),
        num_turns=len(row.generations),
        metrics=AgentLoopMetrics(),
        extra_fields={
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
            "error": None,
            "is_fault": False,
            "is_capped": False,
            "step": step,
            "benchmark_spec": benchmark_spec,
            "generations": list(row.generations),
            "forced_spans": list(row.forced_spans),
        },
    ).as_dict()
    input_ids = torch.cat([fields["prompts"], fields["responses"]])
    return fields | {
        "uid": uid,
        "session_id": session,
        "global_steps": step,
        "data_source": "memory_check",
        "loss_mask": fields["response_mask"],
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "multi_modal_inputs": {},
    }
