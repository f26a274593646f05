"""Columns are guessed by name and value, and doubt is an error that names the option."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.columns import Columns, guess, guessed
from asyncrl.data.table import JsonRows
from asyncrl.errors import DataError

CHAT = [{"role": "user", "content": "2 + 3?"}]


def columns_of(*rows: dict[str, Any], given: Mapping[str, str] = {}) -> Columns:
    lines = list(enumerate(map(msgspec.json.encode, rows), start=1))
    return guess(JsonRows(Path("train.jsonl"), lines), given, "--{}-column")


def found_in(row: dict[str, Any], **given: str) -> Columns:
    return columns_of(row, given=given)


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
    assert found_in(row) == Columns(prompt, answer)


def test_a_column_of_which_some_values_are_bad_is_found_all_the_same() -> None:
    questions: list[Any] = ["2 + 3?", None, "", "1 + 1?", 17, "4 + 4?", "5 + 1?"]
    rows = [{"input": "x", "question": question, "label": "5"} for question in questions]
    assert columns_of(*rows) == Columns("question", "label")
    assert columns_of(*rows[:3]) == Columns("input", "label")
    assert columns_of({"question": "1 + 1?", "label": None}, rows[1], {"question": 17}).answer == "label"


def test_a_named_column_is_taken() -> None:
    assert found_in({"a": "2 + 3?", "b": "5"}, prompt="a", answer="b") == Columns("a", "b")


@pytest.mark.parametrize(
    ("row", "given", "said"),
    [
        ({"text": 1}, {}, "no column that looks like a prompt: it has text; name it with --prompt-column"),
        ({"prompt": "q", "x": 1}, {}, "looks like a reference answer: it has prompt, x; name it with --answer-column"),
        (
            {"prompt": "q"},
            {"answer": "y"},
            "train.jsonl has no column 'y': it has prompt; name it with --answer-column",
        ),
    ],
)
def test_what_cannot_be_guessed_is_asked_for(row: dict[str, Any], given: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        found_in(row, **given)


def test_columns_that_are_named_or_have_the_default_names_are_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"prompt": "", "question": "2 + 3?", "a": "5", "answer": "6"}\n')
    for data in (Data(train="t"), Data(train="t", answer_column="a")):
        assert guessed(data, str(path), pytest.fail) == data


def test_other_columns_are_guessed_past_a_damaged_line_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "2 + 3?", "solution": "5"}\n{"que\n')
    data = guessed(Data(train="t"), str(path), said.append)
    assert (data.prompt_column, data.answer_column) == ("question", "solution")
    assert said == [f"{path}: prompt from 'question', answer from 'solution'"]


def test_rows_in_verls_form_need_no_answer_column(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "2 + 3?", "reward_model": {"ground_truth": "5"}}\n')
    assert guessed(Data(train="t"), str(path), lambda _: None) == Data(train="t", prompt_column="question")
