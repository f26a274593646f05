"""What every published dataset goes through: a problem of each row, verl's row of it, and parquet."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.dataset import BadRow
from asyncrl.data.prepare.published import PrepareResult, Problem, PublishedDataset, prepare, text_of
from asyncrl.data.prompts import train_stream
from asyncrl.data.table import Row, open_rows
from asyncrl.errors import ConfigError, DataError

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "why?"}]


def problem(row: Row) -> Problem:
    if "chat" in row:
        return Problem(prompt=row["chat"], answer="because")
    question, answer = text_of(row, "q", "a")
    return Problem(prompt=question, answer=answer, extra={"level": len(question)})


TOY = PublishedDataset(data_source="toy", problem=problem, instruction="Answer in one word.")


def toy(folder: Path, *lines: str) -> Path:
    path = folder / "train.jsonl"
    path.write_text("\n".join(lines))
    return path


def first(folder: Path, line: str, published: PublishedDataset = TOY, **choices: Any) -> dict[str, Any]:
    prepare(published, toy(folder, line), folder / "out.parquet", **choices)
    return open_rows(folder / "out.parquet")[0]


def test_a_problem_becomes_a_row_of_verls(tmp_path: Path) -> None:
    assert first(tmp_path, '{"q": "who?", "a": "you"}') == {
        "data_source": "toy",
        "prompt": [{"role": "user", "content": "who? Answer in one word."}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "you"},
        "extra_info": {"split": "train", "index": 0, "level": 4},
    }


def test_what_is_written_can_be_trained_on(tmp_path: Path) -> None:
    first(tmp_path, '{"q": "who?", "a": "you"}', split="mine")

    prompt = train_stream(Data(train=str(tmp_path / "out.parquet")), seed=0).at(0).prompt

    assert prompt.chat == [{"role": "user", "content": "who? Answer in one word."}]
    assert (prompt.answer, prompt.data_source) == ("you", "toy")
    assert prompt.extra == {"split": "mine", "index": 0, "level": 4}


@pytest.mark.parametrize(
    ("choices", "prompt"),
    [
        ({"instruction": "Be brief."}, [{"role": "user", "content": "who? Be brief."}]),
        ({"instruction": ""}, [{"role": "user", "content": "who?"}]),
        ({"is_chat": False}, "who? Answer in one word."),
        ({"is_chat": False, "instruction": ""}, "who?"),
    ],
)
def test_form_and_instruction_can_be_chosen(tmp_path: Path, choices: dict[str, Any], prompt: Any) -> None:
    assert first(tmp_path, '{"q": "who?", "a": "you"}', **choices)["prompt"] == prompt


def test_an_instruction_goes_behind_the_last_message_of_a_chat(tmp_path: Path) -> None:
    line = '{"chat": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "why?"}]}'

    assert first(tmp_path, line)["prompt"] == [TURNS[0], {"role": "user", "content": "why? Answer in one word."}]
    with pytest.raises(DataError, match="line 1: a chat of 2 messages cannot be plain text"):
        first(tmp_path, line, is_chat=False)


# ── rows that cannot be used ────────────────────────────────────────────────────────────────


BAD = ['{"q": "who?", "a": "you"}', '{"q": " ", "a": "x"}', '{"q":', '{"q": "me?", "a": 7}', '{"q": "us?", "a": "we"}']


def test_bad_rows_are_an_error_and_nothing_is_written(tmp_path: Path) -> None:
    path = toy(tmp_path, *BAD)

    with pytest.raises(DataError, match=r"^3 of 5 rows cannot be used, and nothing was written: .* line 2: 'q' is"):
        prepare(TOY, path, tmp_path / "out.parquet")

    assert list(tmp_path.iterdir()) == [path]


def test_or_they_are_left_out_and_listed(tmp_path: Path) -> None:
    path = toy(tmp_path, *BAD)

    prepared = prepare(TOY, path, tmp_path / "out.parquet", skip_bad=True)

    assert (prepared.num_read, prepared.num_rows, prepared.num_repeated) == (5, 2, 0)
    assert [row.place for row in prepared.bad] == [f"{path} line {number}" for number in (2, 3, 4)]
    assert prepared.bad[0] == BadRow(f"{path} line 2", "'q' is missing, or not text")
    rows = open_rows(tmp_path / "out.parquet")
    assert [rows[n]["extra_info"]["index"] for n in range(2)] == [0, 4], "the rows they were"


def test_many_bad_rows_are_counted_after_the_fifth(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^12 of 12 .* line 5: [^;]*; and 7 more$"):
        prepare(TOY, toy(tmp_path, *['{"q": ""}'] * 12), tmp_path / "out.parquet")


def test_a_dataset_of_bad_rows_alone_is_not_written_even_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 1 rows cannot be used"):
        prepare(TOY, toy(tmp_path, '{"q": ""}'), tmp_path / "out.parquet", skip_bad=True)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*taken"):
        prepare(TOY, toy(tmp_path, BAD[0]), tmp_path / "taken")


# ── prompts that come several times ─────────────────────────────────────────────────────────


def repeating(folder: Path, **choices: Any) -> PrepareResult:
    one, two, other = '{"q": "who?", "a": "you"}', '{"q": "why?", "a": "so"}', '{"q": "who?", "a": "me"}'
    published = PublishedDataset(data_source="toy", problem=problem, repeats=True)
    return prepare(published, toy(folder, one, two, one, one, other), folder / "out.parquet", **choices)


def test_a_prompt_that_repeats_is_kept_once(tmp_path: Path) -> None:
    prepared = repeating(tmp_path, skip_bad=True)

    assert (prepared.num_read, prepared.num_rows, prepared.num_repeated, len(prepared.bad)) == (5, 2, 2, 1)


def test_a_prompt_with_a_second_answer_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"line 5: its answer is 'me', but 'you' in .* line 1, which has the same prompt"
    ):
        repeating(tmp_path)
