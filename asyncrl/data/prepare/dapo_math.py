"""
DAPO-Math.

It is published in verl's row schema, with its instruction (a last line ``Answer: ...``) in the prompts, and each of its
17 thousand prompts about a hundred times. Here each prompt is kept once; epochs repeat them.

Source:
    Yu et al. 2025, arXiv:2503.14476, section 4.1.
"""

from typing import Any

from asyncrl.data.prepare.published import Chat, Problem, PublishedDataset
from asyncrl.data.table import Row
from asyncrl.errors import DataError


def _problem(row: Row) -> Problem:
    model, info = row.get("reward_model"), row.get("extra_info")
    answer = model.get("ground_truth") if isinstance(model, dict) else None
    if not isinstance(answer, str | int) or not str(answer).strip():
        raise DataError("'reward_model.ground_truth' is missing, or neither text nor a number")
    index = info.get("index") if isinstance(info, dict) else None
    return Problem(prompt=_chat(row.get("prompt")), answer=str(answer).strip(), extra={"id": str(index or "")})


def _chat(prompt: Any) -> Chat:
    if not isinstance(prompt, list) or not prompt or not all(isinstance(turn, dict) for turn in prompt):
        raise DataError("'prompt' is not a chat")
    turns = [{key: turn.get(key) for key in ("role", "content")} for turn in prompt]
    if not all(isinstance(value, str) and value for turn in turns for value in turn.values()):
        raise DataError("'prompt' has a message without role or content")
    return turns


DAPO_MATH = PublishedDataset(data_source="math_dapo", problem=_problem, repeats=True)
