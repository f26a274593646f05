"""Columns are guessed by name and value, and doubt is an error that names the option."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.table import Columns, JsonRows, guess, guessed, open_rows, require_column
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
        ({"question": "2 + 3?", "gold": "5"}, "question", "gold"),
        ({"problem_text": "2 + 3?", "my_solution": "5"}, "problem_text", "my_solution"),
        ({"prompt": 17, "question": "2 + 3?", "answer": None, "target": "5"}, "question", "target"),
        ({"level": ["x"], "task": CHAT, "solution": 5}, "task", "solution"),
        ({"task": CHAT, "question": "2 + 3?", "solution": 5}, "question", "solution"),
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
        ({"answer": 1}, {}, "no column that looks like a prompt: it has answer; name it with --prompt-column"),
        (
            {"text": 1},
            {},
            "no column that looks like a prompt or a reference answer: it has text; name it with --prompt-column "
            "--answer-column",
        ),
        ({"prompt": "q", "x": 1}, {}, "looks like a reference answer: it has prompt, x; name it with --answer-column"),
        (
            {"prompt": "q"},
            {"answer": "y"},
            "train.jsonl has no column 'y': it has prompt; name it with --answer-column",
        ),
        (
            {"text": "q", "label": 1},
            {"prompt": "x", "answer": "y"},
            "no column 'x': it has text, label; name it with --prompt-column",
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


# ── test table ────────────────────────────────────────────────────────────────────────────────


def jsonl(folder: Path, text: str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_parquet_and_jsonl_give_the_same_rows(tmp_path: Path) -> None:
    wanted = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    parquet = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(wanted), parquet, row_group_size=1)
    lines = jsonl(tmp_path, '{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "2"}\n')

    for rows in (open_rows(parquet), open_rows(lines)):
        assert rows.columns == ["prompt", "answer"]
        assert [rows[row] for row in range(len(rows))] == wanted


def test_the_content_decides_the_format_not_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    pq.write_table(pa.table({"prompt": ["a"]}), path)

    assert open_rows(path)[0] == {"prompt": "a"}


def test_blank_lines_do_not_shift_the_line_a_row_is_named_by(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '\n{"a": 1}\r\n\n{"a": 2}')
    rows = open_rows(path)

    assert len(rows) == 2
    assert rows[1] == {"a": 2}
    assert rows.place(1) == f"{path} line 4"


def test_a_line_that_is_not_an_object_is_named(tmp_path: Path) -> None:
    rows = open_rows(jsonl(tmp_path, '{"a": 1}\n[2]\n{"a": \n'))

    with pytest.raises(DataError, match=r"rows\.jsonl line 2: it is not a JSON object: Expected `object`"):
        rows[1]
    with pytest.raises(DataError, match=r"rows\.jsonl line 3: it is not a JSON object: Input data was truncated"):
        rows[2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "is empty: it has no rows", id="no bytes"),
        pytest.param(b"\n \n", "is empty: it has no rows", id="blank lines"),
        pytest.param(b'[{"a": 1}]', "is one JSON array: write one object per line", id="a JSON array"),
        pytest.param(b"prompt,answer\n", "is neither parquet nor JSONL: it starts with b'prompt,answe'", id="CSV"),
        pytest.param(b"PAR1 and then nothing", "starts like parquet, but is damaged", id="cut parquet"),
        pytest.param(b'{"a": "\xff"}', "line 1: it is not a JSON object", id="not UTF-8"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)

    with pytest.raises(DataError) as caught:
        open_rows(path)

    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_csv_file_is_answered_with_the_command_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,answer\n")
    with pytest.raises(DataError, match=rf"is CSV: .* `asyncrl data prepare csv {path} -o {tmp_path}/rows\.parquet`$"):
        open_rows(path)


def test_parquet_without_rows_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)

    with pytest.raises(DataError, match="is empty: it has no rows"):
        open_rows(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such dataset: .*nowhere"):
        open_rows(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"dataset .* cannot be read: it is a folder"):
        open_rows(tmp_path)


def test_a_missing_column_is_named_with_those_present_and_the_closest(tmp_path: Path) -> None:
    rows = open_rows(jsonl(tmp_path, '{"promt": "a", "answer": "1"}'))

    require_column(rows, "answer", "x.y")
    with pytest.raises(
        DataError, match=r"has no column 'prompt': it has promt, answer; did you mean 'promt'\? Name it with x\.y$"
    ):
        require_column(rows, "prompt", "x.y")
    with pytest.raises(DataError, match=r"has no column 'zzz': it has promt, answer; name it with x.y$"):
        require_column(rows, "zzz", "x.y")


def test_a_column_name_that_is_there_twice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = [pa.array(["a"]), pa.array(["1"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["prompt", "answer", "prompt"]), path)

    with pytest.raises(DataError) as refused:
        open_rows(path)

    assert str(refused.value) == (
        f"dataset {path} has 1 column name twice, 'prompt': write it again with different names"
    )


def test_a_missing_file_is_named_with_its_setting_and_the_closest_file_beside_it(tmp_path: Path) -> None:
    jsonl(tmp_path, '{"a": 1}')
    (existing,) = tmp_path.iterdir()
    wrong = existing.with_stem(f"{existing.stem}n")
    with pytest.raises(DataError, match=rf"^no such dataset: {wrong} \(data\.train\); did you mean {existing}\?$"):
        open_rows(wrong, setting="data.train")
    with pytest.raises(DataError, match=r"/zebra/x$"):
        open_rows(tmp_path / "zebra" / "x")


def test_a_key_of_a_column_is_named_with_a_dot_and_a_column_of_that_name_goes_first(tmp_path: Path) -> None:
    rows = [{"problem": {"text": "2 + 3?", "hint": {"short": "5"}}}, {"problem": {"text": None}}, {"problem": "2 + 3?"}]
    nested = open_rows(jsonl(tmp_path, "\n".join(msgspec.json.encode(row).decode() for row in rows)))
    assert [list(nested.column(name)) for name in ("problem.text", "problem.hint.short", "problem.x")] == [
        ["2 + 3?", None, None],
        ["5", None, None],
        [None, None, None],
    ]
    for wanted, column in {"2": {"b": {"c": "2"}}, "3": {"b": {"c": "2"}, "b.c": "3"}}.items():
        path = tmp_path / f"{wanted}.parquet"
        pq.write_table(pa.Table.from_pylist([column]), path)
        assert list(open_rows(path).column("b.c")) == [wanted]
        require_column(open_rows(path), "b.c", "x.y")


def test_a_key_is_looked_for_in_every_column_that_its_name_begins_with(tmp_path: Path) -> None:
    row = {"b": {"x": 1}, "b.c": {"d": "4"}}
    parquet, lines = tmp_path / "rows.parquet", jsonl(tmp_path, msgspec.json.encode(row).decode())
    pq.write_table(pa.Table.from_pylist([row]), parquet)
    for path in (parquet, lines):
        assert list(open_rows(path).column("b.c.d")) == ["4"]
        require_column(open_rows(path), "b.c.d", "x.y")
        with pytest.raises(
            DataError, match=r"no column 'b\.c\.e': it has b, b\.c, b\.x, b\.c\.d; did you mean 'b\.c\.d'"
        ):
            require_column(open_rows(path), "b.c.e", "x.y")


def test_a_key_that_no_row_has_is_named_with_those_present_and_the_row_that_cannot_be_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path, '{"problem": {"txt": "a"}, "n": 1}\n{"problem": {"id": 1}}\n{"problem": \n')
    with pytest.raises(DataError) as refused:
        require_column(open_rows(path), "problem.text", "--prompt-column NAME")
    assert str(refused.value) == (
        f"dataset {path} has no column 'problem.text': it has problem, n, problem.txt, problem.id; did you mean "
        f"'problem.txt'? Name it with --prompt-column NAME. Besides, {path} line 3: it is not a JSON object: Input "
        f"data was truncated"
    )


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"answer": "1"}\n')
    assert [open_rows(path)[row] for row in range(2)] == [
        {"prompt": "a", "answer": None},
        {"prompt": None, "answer": "1"},
    ]
    path.write_bytes('{"prompt": "a"}\n'.encode("utf-16"))
    with pytest.raises(DataError, match=r"rows\.jsonl is UTF-16: save it as UTF-8$"):
        open_rows(path)


def test_keys_that_an_object_has_twice_are_told(tmp_path: Path) -> None:
    rows = open_rows(jsonl(tmp_path, '{"a": 1, "a": 2, "b": [{"c": 1, "c": 1}]}\n{"a": 1}\n[2]\n{"a": \n'))
    assert [list(rows.repeated(row)) for row in range(4)] == [["c", "a"], [], [], []]


def test_a_file_whose_keys_are_data_is_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path, "\n".join(f'{{"user {number}": 1}}' for number in range(1001)))
    with pytest.raises(DataError, match=r"has 1,001 names over all rows, expected at most 1,000; write an object"):
        open_rows(path)
