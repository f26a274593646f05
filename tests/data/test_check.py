import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.check import bad_row_lines, inspect
from asyncrl.data.dataset import BadRow
from asyncrl.errors import DataError, EngineError
from asyncrl.messages.trajectory import Prompt
from tests.conftest import draw_picture


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return path


def num_words(prompt: Prompt) -> int:
    if prompt.chat:
        raise EngineError("no chat template", retryable=False)
    return len(prompt.text.split())


def test_a_good_dataset_is_described(tmp_path: Path) -> None:
    """Prompts of 1 to 21 characters: the 5 % quantile is the second shortest, the median the eleventh."""
    rows: list[dict[str, Any]] = [
        {"prompt": "x" * n, "answer": "1", "data_source": "b" if n > 3 else "a"} for n in range(1, 22)
    ]
    rows[0]["prompt"] = [{"role": "user", "content": "x"}]
    path = write(tmp_path, *rows)

    inspection = inspect(path)

    inspection.require_usable()
    assert inspection.text() == "\n".join(
        [
            f"{path}: 21 rows",
            "  columns        prompt, answer, data_source",
            "  data sources   b 18   a 3",
            "  prompts        1 chat, 20 text",
            "  prompt chars   min 1   5% 2   median 11   95% 20   max 21",
            "  every row can be used",
        ]
    )


def test_rows_without_an_answer_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "x", "answer": ""}, {"prompt": "y", "answer": "1"})
    assert "  odd            1 of 2 rows have no answer, and the others have one" in inspect(path).text().splitlines()
    path = write(tmp_path, {"prompt": "x", "answer": ""})
    assert "  answers        none of the rows has one" in inspect(path).text().splitlines()


def test_bad_rows_are_counted_by_their_reason(tmp_path: Path) -> None:
    fine, empty = {"prompt": "fine", "answer": "1"}, {"prompt": "", "answer": "1"}
    picture = {"prompt": "<image>?", "answer": "1", "videos": [{"path": "x.mp4"}]}
    path = write(tmp_path, fine, empty, picture, empty, empty)

    inspection = inspect(path)

    assert inspection.text().splitlines()[-3:] == [
        "  4 rows cannot be used",
        f"         3  'prompt' is empty: {path} line 2, ...",
        f"         1  it has videos, but prompts must be text and pictures: {path} line 3",
    ]
    assert [row.place for row in inspection.bad] == [f"{path} line {line}" for line in (2, 3, 4, 5)]
    with pytest.raises(DataError, match=r"^4 of 5 rows cannot be used; the first: .* line 2: 'prompt' is empty$"):
        inspection.require_usable()


def test_texts_that_are_read_as_chats_are_counted_as_the_texts_that_they_are(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "2 + 3?"}]
    path = write(tmp_path, *({"prompt": prompt, "answer": "5"} for prompt in ("1 + 1?", "2 + 2?", chat)))
    read = "1 chat, 2 text, each read as a chat of one message (data.as_chat)"
    assert f"  prompts        {read}\n" in inspect(path, Data(train=str(path), as_chat=True)).text()
    assert "  prompts        1 chat, 2 text\n" in inspect(path).text()


def test_many_reasons_are_counted_after_the_fifth() -> None:
    bad = [BadRow(f"row {number}", f"reason {number}") for number in range(7)]

    lines = bad_row_lines(bad)

    assert lines[0] == "  7 rows cannot be used"
    assert lines[5:] == ["         1  reason 4: row 4", "    and for 2 more reasons"]


def test_a_dataset_without_one_good_row_is_still_described(tmp_path: Path) -> None:
    text = inspect(write(tmp_path, {"prompt": "", "answer": "1"})).text()

    assert "  prompt chars   -" in text
    assert "  1 row cannot be used\n" in text


def test_keys_that_do_not_reach_the_verifier_are_counted(tmp_path: Path) -> None:
    row = {"prompt": "?", "answer": "1", "extra_info": {"index": 1, "tools": {"a": 1}}}
    path = write(tmp_path, row, row | {"extra_info": {"tools": {}, "tags": []}}, row | {"extra_info": None})

    inspection = inspect(path)

    tools, tags = inspection.odd[-2:]
    assert tools.startswith("2 of 3 rows have 'extra_info.tools', which reaches neither the reward nor the environment")
    assert tags.startswith("1 of 3 rows have 'extra_info.tags', ")
    assert [clause.rpartition("; the first: ")[2] for clause in (tools, tags)] == [f"{path} line 1", f"{path} line 2"]
    assert f"  odd            {tools}" in inspection.text()


def test_rows_of_chats_that_spell_control_tokens_are_counted(tmp_path: Path) -> None:
    texts = ("a<|end|>b<|end|>", "<|end|>", "<|start|>", "a")
    rows = ({"prompt": [{"role": "user", "content": text}], "answer": "1"} for text in texts)
    path = write(tmp_path, *rows)

    inspection = inspect(path, find_spelled=lambda prompt: re.findall(r"<\|\w+\|>", prompt.chat[0]["content"]))

    assert inspection.spelled == {"<|end|>": 2, "<|start|>": 1}
    assert "  spelled        <|end|> 2   <|start|> 1" in inspection.text()


def test_tokens_are_counted_by_the_function_given(tmp_path: Path) -> None:
    path = write(tmp_path, *({"prompt": "w " * n, "answer": "1"} for n in (1, 2, 3)))

    inspection = inspect(path, count_tokens=num_words)

    assert inspection.prompt_tokens == {"min": 1, "5%": 1, "median": 2, "95%": 3, "max": 3}
    assert "  prompt tokens  min 1 " in inspection.text()
    inspection.require_usable()


def test_a_prompt_that_is_too_long_or_cannot_be_encoded_is_unusable(tmp_path: Path) -> None:
    chat = {"prompt": [{"role": "user", "content": "?"}], "answer": "1"}
    path = write(tmp_path, {"prompt": "one two three", "answer": "1"}, {"prompt": "one", "answer": "1"}, chat)

    inspection = inspect(path, count_tokens=num_words, max_tokens=2)

    assert [row.reason for row in inspection.bad] == ["no chat template", "it has more than 2 tokens"]


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, {"bad", "long"}),
        ({"on_bad_row": "skip"}, {"long"}),
        ({"filter_overlong_prompts": True}, {"bad"}),
        ({"on_bad_row": "skip", "filter_overlong_prompts": True}, set()),
    ],
)
def test_rows_that_the_configuration_leaves_out_are_listed_and_not_refused(
    tmp_path: Path, settings: dict[str, Any], refused: set[str]
) -> None:
    path = write(tmp_path, {"prompt": "", "answer": "bad"}, {"prompt": "one two", "answer": "long"})

    inspection = inspect(path, Data(train="", **settings), count_tokens=num_words, max_tokens=1)

    assert len(inspection.bad) == 2
    assert {"long" if "more than" in row.reason else "bad" for row in inspection.refused} == refused


def test_columns_go_by_the_names_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"q": "?", "a": "5"})

    inspect(path, Data(train="", prompt_column="q", answer_column="a")).require_usable()
    with pytest.raises(DataError, match="has no column 'prompt': it has q, a"):
        inspect(path)


def test_pictures_are_counted_with_the_size_of_the_largest_and_the_bytes_of_the_distinct(tmp_path: Path) -> None:
    large, small = draw_picture(24, 16), draw_picture(8, 8)
    for name, content in (("large.png", large), ("small.png", small)):
        (tmp_path / name).write_bytes(content)
    names = ("small.png", "large.png", "small.png")
    path = write(tmp_path, *({"prompt": "<image>?", "answer": "1", "images": [name]} for name in names))

    inspection = inspect(path)

    size = f"{(len(large) + len(small)) / 1e6:.1f} MB"
    assert f"  pictures       3   largest 24 x 16   {size}" in inspection.text().splitlines()
