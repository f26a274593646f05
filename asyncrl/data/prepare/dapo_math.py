"""
DAPO-Math as a dataset to train on.

It is published in verl's row schema, its instruction (a last line ``Answer: ...``) within the prompts, and each of its
17 thousand prompts about a hundred times. Here each comes once; epochs are what repeats them.

Source:
    Yu et al. 2025, arXiv:2503.14476, section 4.1.
"""

from typing import Any

from asyncrl.data.prepare.published import Chat, Problem, Published
from asyncrl.data.table import Row
from asyncrl.errors import DataError


def _problem(row: Row) -> Problem:
    model, about = row.get("reward_model"), row.get("extra_info")
    answer = model.get("ground_truth") if isinstance(model, dict) else None
    if not isinstance(answer, str | int) or not str(answer).strip():
        raise DataError("'reward_model.ground_truth' is missing, or neither text nor a number")
    found = about.get("index") if isinstance(about, dict) else None
    return Problem(prompt=_chat(row.get("prompt")), answer=str(answer).strip(), extra={"id": str(found or "")})


def _chat(asked: Any) -> Chat:
    if not isinstance(asked, list) or not asked or not all(isinstance(turn, dict) for turn in asked):
        raise DataError("'prompt' is not a chat")
    turns = [{key: turn.get(key) for key in ("role", "content")} for turn in asked]
    if not all(isinstance(value, str) and value for turn in turns for value in turn.values()):
        raise DataError("'prompt' has a message without role or content")
    return turns


DAPO_MATH = Published(data_source="math_dapo", problem=_problem, repeats=True)
