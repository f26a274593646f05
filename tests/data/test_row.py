import json
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.row import read_row, remarks, require_columns, to_prompt
from asyncrl.data.table import Rows, open_rows
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt

DATA = Data(train="rows.jsonl")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 = ?"}]


def read_prompt(rows: Rows, row: int, data: Data) -> Prompt:
    return read_row(rows, row, data)[1]


def rows_of(folder: Path, *rows: dict[str, Any]) -> Rows:
    path = folder / "rows.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return open_rows(path)


def test_text_and_chat_are_both_prompts(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, {"prompt": "2 + 3 = ?", "answer": "5", "data_source": "sums"}, {"prompt": CHAT, "answer": 5}
    )

    assert read_prompt(rows, 0, DATA) == Prompt(text="2 + 3 = ?", answer="5", data_source="sums")
    assert read_prompt(rows, 1, DATA) == Prompt(chat=CHAT, answer="5")


def test_columns_go_by_the_names_the_config_gives_them(tmp_path: Path) -> None:
    data = Data(train="x", prompt_column="q", answer_column="a", data_source_column="from")
    rows = rows_of(tmp_path, {"q": "2 + 3 = ?", "a": "5", "from": "sums", "prompt": 1, "answer": 2})

    assert read_prompt(rows, 0, data) == Prompt(
        text="2 + 3 = ?", answer="5", data_source="sums", extra={"a": "5", "prompt": 1, "answer": 2}
    )


def test_further_columns_and_the_answer_by_the_name_of_its_column_reach_the_reward() -> None:
    data = Data(train="x", prompt_column="task", answer_column="solution")
    row = {
        "task": "2 + 3 = ?",
        "solution": 5,
        "kind": "sum",
        "level": None,
        "images": [],
        "reward_model": {"style": ""},
    }
    assert to_prompt(row, data).extra == {"solution": 5, "kind": "sum", "level": None}


def test_extra_info_goes_before_a_column_of_the_same_name() -> None:
    row = {"prompt": "?", "answer": "5", "kind": "column", "level": 1, "extra_info": {"kind": "info"}}
    assert to_prompt(row, DATA).extra == {"kind": "info", "level": 1}


def test_a_row_as_verl_writes_it_is_a_prompt(tmp_path: Path) -> None:
    """Through parquet, where every message of a column has the same keys and nulls fill the gaps."""
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "user", "content": "2 + 3 = ?", "name": None},
            {"role": "user", "content": "!", "name": "x"},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 7, "split": "train", "ratio": 0.5, "need_tools_kwargs": False, "tools": {"a": 1}},
    }
    path = tmp_path / "verl.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    rows = open_rows(path)

    require_columns(rows, DATA)
    assert read_prompt(rows, 0, DATA) == Prompt(
        chat=[{"role": "user", "content": "2 + 3 = ?"}, {"role": "user", "content": "!", "name": "x"}],
        answer="5",
        data_source="openai/gsm8k",
        extra={"ability": "math", "index": 7, "split": "train", "ratio": 0.5, "need_tools_kwargs": False},
    )


@pytest.mark.parametrize(("answer", "text"), [("5", "5"), (5, "5"), (5.0, "5"), (-0.25, "-0.25"), ("", "")])
def test_an_answer_is_text_and_a_whole_number_has_no_decimals(tmp_path: Path, answer: Any, text: str) -> None:
    assert read_prompt(rows_of(tmp_path, {"prompt": "?", "answer": answer}), 0, DATA).answer == text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        pytest.param({"prompt": None, "answer": "5"}, "'prompt' is null or missing", id="null prompt"),
        pytest.param({"answer": "5"}, "'prompt' is null or missing", id="missing prompt"),
        pytest.param({"prompt": "", "answer": "5"}, "'prompt' is empty", id="empty prompt"),
        pytest.param({"prompt": [], "answer": "5"}, "'prompt' is empty", id="empty chat"),
        pytest.param(
            {"prompt": 7, "answer": "5"}, "'prompt' is neither text nor a list of chat messages, but int 7", id="number"
        ),
        pytest.param(
            {"prompt": ["hello"], "answer": "5"},
            "prompt[0] is not a chat message {role, content}, but str 'hello'",
            id="list of text",
        ),
        pytest.param(
            {"prompt": [CHAT[0], {"role": "user"}], "answer": "5"},
            "prompt[1].content must be text, got null",
            id="message without content",
        ),
        pytest.param(
            {"prompt": [{"role": "user", "content": "?", "tool_calls": [1]}], "answer": "5"},
            "prompt[0].tool_calls must be text, got list [1]",
            id="tool calls",
        ),
        pytest.param({"prompt": "?", "answer": None}, "'answer' must be text or a number, got null", id="null answer"),
        pytest.param({"prompt": "?", "answer": True}, "'answer' must be text or a number, got bool True", id="boolean"),
        pytest.param({"prompt": "?", "answer": ["5"]}, "'answer' must be text or a number, got list ['5']", id="list"),
        pytest.param(
            {"prompt": "?", "reward_model": {"style": "rule"}},
            "'reward_model.ground_truth' must be text or a number, got null",
            id="verl row without ground truth",
        ),
        pytest.param(
            {"prompt": "?", "answer": "5", "data_source": 3}, "'data_source' must be text, got int 3", id="data source"
        ),
        pytest.param(
            {"prompt": "<image>?", "answer": "5", "videos": ["x"]},
            "it has videos, but prompts must be text and pictures",
            id="videos",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    rows = rows_of(tmp_path, {"prompt": "fine", "answer": "1"}, row)

    with pytest.raises(DataError) as caught:
        read_prompt(rows, 1, DATA)

    assert str(caught.value) == f"{rows.path} line 2: {reason}"


def test_an_answer_that_is_not_a_number_after_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["?"], "answer": [float("nan")]}), path)

    with pytest.raises(DataError, match="row 0: 'answer' is nan, not a number"):
        read_prompt(open_rows(path), 0, DATA)


def test_the_answer_column_may_be_replaced_by_verls_and_nothing_else(tmp_path: Path) -> None:
    require_columns(rows_of(tmp_path, {"prompt": "?", "reward_model": {"ground_truth": "5"}}), DATA)
    with pytest.raises(DataError, match="has no column 'answer'"):
        require_columns(rows_of(tmp_path, {"prompt": "?", "solution": "5"}), DATA)


def test_a_data_source_column_somebody_named_must_exist(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {"prompt": "?", "answer": "5"})

    require_columns(rows, DATA)
    with pytest.raises(DataError, match="has no column 'origin'"):
        require_columns(rows, Data(train="x", data_source_column="origin"))


@pytest.mark.parametrize("space", ["", "\n  "])
def test_a_chat_may_be_json_text(tmp_path: Path, space: str) -> None:
    text = space + msgspec.json.encode(CHAT).decode()
    assert read_prompt(rows_of(tmp_path, {"prompt": text, "answer": "5"}), 0, DATA) == Prompt(chat=CHAT, answer="5")


@pytest.mark.parametrize(
    "text", ["[1, 2] is what?", '["role", "content"]', '[{"role": "user"}]', '[{"role": "user", "content": "cut', "[]"]
)
def test_text_that_only_looks_like_a_chat_is_a_plain_prompt(tmp_path: Path, text: str) -> None:
    assert read_prompt(rows_of(tmp_path, {"prompt": text, "answer": "5"}), 0, DATA).text == text


def test_values_that_are_nested_or_no_json_or_large_are_dropped_and_told() -> None:
    row: dict[str, Any] = {
        "kind": "sum",
        "none": None,
        "extra_info": {"index": 7, "tools": {"a": 1}, "none": None, "tags": ["x"]},
    }
    left = {"picture": b"PNG", "day": date(2026, 1, 1), "steps": ["a"], "base64": "x" * 100_000, "id": 1 << 70}
    row |= {"prompt": "?", "answer": "5"} | left
    assert dropped(row) == [*left, "extra_info.tools", "extra_info.tags"]
    assert to_prompt(row, DATA).extra == {"kind": "sum", "none": None, "index": 7}
    assert dropped({"prompt": "?", "answer": "5", "extra_info": None}) == []
    assert dropped({"prompt": "?", "answer": "5", "extra_info": '{"index": 7}'}) == ["extra_info"]
    nested = {"problem": {"text": "?", "id": 3, "hint": None}, "answer": "5"}
    assert dropped(nested, Data(train="x", prompt_column="problem.text")) == ["problem.id"]


def dropped(row: dict[str, Any], data: Data = DATA) -> list[str]:
    """Names in the remarks on a row, all of which are about what does not travel."""
    found = [re.fullmatch(r"have '(.+)', which reaches neither .*", each) for each in told(row, data)]
    return [match[1] for match in found if match]


def told(row: dict[str, Any], data: Data = DATA) -> list[str]:
    return remarks(row, to_prompt(row, data), data)


ASKED, ANSWERED = {"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}


@pytest.mark.parametrize("chat", [[ASKED, ANSWERED], [ANSWERED]])
@pytest.mark.parametrize("form", [list, lambda chat: msgspec.json.encode(chat).decode()])
def test_a_chat_that_ends_with_its_answer_is_told(chat: list[dict[str, str]], form: Callable[[Any], Any]) -> None:
    (clause,) = told({"prompt": form(chat), "answer": "5"})
    assert clause.startswith("end with a message of the assistant in 'prompt', which the policy reads")
    assert told({"prompt": form([*chat, ASKED]), "answer": "5"}) == []


WRITTEN: list[Any] = [[ASKED], ASKED, [{"from": "human", "value": "2 + 3?"}], {"messages": [ASKED]}]


@pytest.mark.parametrize("value", WRITTEN)
@pytest.mark.parametrize("write", [repr, lambda value: f"array({value!r}, dtype=object)", json.dumps])
@pytest.mark.parametrize("as_chat", [False, True])
def test_a_prompt_that_is_the_text_of_an_object_is_told(value: Any, write: Callable[[Any], str], as_chat: bool) -> None:
    data, text = Data(train="x", as_chat=as_chat), write(value)
    is_read = write is json.dumps and value == [ASKED]  # the one form that becomes a chat
    clauses = told({"prompt": text, "answer": "5"}, data)
    assert [clause.partition(" in ")[0] for clause in clauses] == ["have the text of an object of JSON or Python"] * (
        not is_read
    )


@pytest.mark.parametrize(
    "text", ["2 + 3?", "{1, 2} has how many?", "[1, 2]", '{"a": 1} is what?', "[user]: hi", "{" * 9999]
)
def test_a_prompt_that_only_begins_like_an_object_is_not_told(text: str) -> None:
    assert told({"prompt": text, "answer": "5"}) == []


@pytest.mark.parametrize("field", ["prompt", "answer", "extra_info"])
def test_a_row_that_no_lease_can_carry_is_named_with_its_largest_field(tmp_path: Path, field: str) -> None:
    huge = "x" * 20_000_000
    row = {"prompt": "2 + 3 = ?", "answer": "5"} | {field: {"note": huge} if field == "extra_info" else huge}
    rows = rows_of(tmp_path, {"prompt": "a", "answer": "1"}, row)
    name = {"prompt": "text", "extra_info": "extra"}.get(field, field)

    with pytest.raises(DataError) as refused:
        read_prompt(rows, 1, DATA)

    assert str(refused.value).startswith(f"{rows.place(1)}: it has 20,000,0")
    assert f"in {name!r}), more than the 1,048,576 that may travel with every lease; shorten it" in str(refused.value)


def test_a_large_field_that_does_not_travel_is_no_matter(tmp_path: Path) -> None:
    nested = {"prompt": "a", "answer": "1", "image": "x" * 2_000_000, "extra_info": {"trace": ["y" * 2_000_000]}}
    assert read_prompt(rows_of(tmp_path, nested), 0, DATA) == Prompt(text="a", answer="1")


def test_a_number_that_no_message_can_carry_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "answer": "1", "extra_info": {"id": 123456789012345678901234567890}}')
    with pytest.raises(DataError, match=r"line 1: it cannot be sent: .*; extra_info has such a value"):
        read_prompt(open_rows(path), 0, DATA)


def test_a_text_is_one_message_of_the_user_if_wanted_and_a_chat_stays_as_it_is() -> None:
    data = Data(train="x", as_chat=True)
    assert to_prompt({"prompt": "2 + 3?", "answer": 5}, data).chat == [{"role": "user", "content": "2 + 3?"}]
    assert to_prompt({"prompt": "2 + 3?", "answer": 5}, data).text == ""
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 3?"}]
    for prompt in (chat, msgspec.json.encode(chat).decode()):
        assert to_prompt({"prompt": prompt, "answer": 5}, data).chat == chat
