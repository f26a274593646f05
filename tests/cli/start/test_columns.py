"""Columns are guessed by name and value, and doubt is an error that names the option."""

from typing import Any

import pytest

from asyncrl.cli.start.columns import Columns, guess
from asyncrl.errors import DataError

CHAT = [{"role": "user", "content": "2 + 3?"}]


def guessed(row: dict[str, Any], **given: str) -> Columns:
    return guess([row], list(row), given, "train.parquet")


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "2 + 3?", "answer": "5"}, "prompt", "answer"),
        ({"level": 2, "Question": "2 + 3?", "final_answer": 5}, "Question", "final_answer"),
        ({"messages": CHAT, "ground_truth": "5"}, "messages", "ground_truth"),
        ({"prompt": CHAT, "reward_model": {"ground_truth": "5"}}, "prompt", ""),
        ({"problem_text": "2 + 3?", "my_solution": "5"}, "problem_text", "my_solution"),
        ({"prompt": 17, "question": "2 + 3?", "answer": None, "target": "5"}, "question", "target"),
    ],
)
def test_columns_are_found_by_their_names_and_values(row: dict[str, Any], prompt: str, answer: str) -> None:
    assert guessed(row) == Columns(prompt, answer)


def test_a_named_column_is_taken() -> None:
    assert guessed({"a": "2 + 3?", "b": "5"}, prompt="a", answer="b") == Columns("a", "b")


@pytest.mark.parametrize(
    ("row", "given", "said"),
    [
        ({"text": 1}, {}, "no column of train.parquet looks like a prompt: it has text; name it with --prompt-column"),
        ({"prompt": "q", "x": 1}, {}, "looks like a reference answer: it has prompt, x; name it with --answer-column"),
        ({"prompt": "q"}, {"answer": "y"}, "train.parquet has no column 'y': it has prompt"),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(row: dict[str, Any], given: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        guessed(row, **given)
