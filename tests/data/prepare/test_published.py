from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.sections.data import Data
from asyncrl.data.check import inspect
from asyncrl.data.dataset import BadRow
from asyncrl.data.prepare.published import (
    DAPO_MATH,
    GSM8K,
    MATH,
    PrepareResult,
    PublishedDataset,
    PublishedProblem,
    last_boxed,
    prepare,
    text_of,
)
from asyncrl.data.prompts import train_stream
from asyncrl.data.table import Row, open_rows
from asyncrl.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{5}$.", "5"),
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"first $\boxed{1}$, then $\boxed{2}$", "2"),
        (r"\boxed{ 7 }", "7"),
        (r"\fbox{a}", "a"),
        (r"\boxed 5$ is it", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed{never closed", None),
        (r"\boxed", None),
        (r"\boxedness{5}", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@given(st.text(alphabet="ab {}\\", max_size=30))
def test_any_text_has_an_answer_or_none(text: str) -> None:
    last_boxed("\\boxed{" + text)
    last_boxed(text)


@given(
    st.recursive(
        st.text("ab1", max_size=4), lambda inner: inner.map(lambda text: f"\\frac{{{text}}}{{2}}"), max_leaves=4
    )
)
def test_what_is_put_into_a_box_comes_out(answer: str) -> None:
    assert last_boxed(f"it is \\boxed{{{answer}}}.") == answer


# ── test competition math ─────────────────────────────────────────────────────────────────────


def test_the_boxed_answer_is_the_ground_truth(tmp_path: Path) -> None:
    row = {"problem": "Halve one.", "solution": r"So $\boxed{\frac{1}{2}}$.", "level": "Level 1", "type": "Algebra"}
    (tmp_path / "test.jsonl").write_bytes(msgspec.json.encode(row))

    prepare(MATH, tmp_path / "test.jsonl", tmp_path / "out.parquet")

    written = open_rows(tmp_path / "out.parquet")[0]
    assert written["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
    assert written["reward_model"] == {"style": "rule", "ground_truth": r"\frac{1}{2}"}
    assert written["extra_info"] == {"split": "test", "index": 0, "level": "Level 1", "type": "Algebra"}
    assert written["prompt"][0]["content"] == (
        r"Halve one. Let's think step by step and output the final answer within \boxed{}."
    )


@pytest.mark.parametrize("solution", ["It is one half.", r"\boxed{}"])
def test_a_solution_without_an_answer_in_a_box_is_a_bad_row(tmp_path: Path, solution: str) -> None:
    (tmp_path / "test.jsonl").write_bytes(msgspec.json.encode({"problem": "?", "solution": solution}))

    with pytest.raises(DataError, match=r"line 1: its solution has no \\boxed\{\} with an answer in it"):
        prepare(MATH, tmp_path / "test.jsonl", tmp_path / "out.parquet")


# ── test dapo math ────────────────────────────────────────────────────────────────────────────


def a_row(question: str, answer: Any, index: str = "0-1") -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": question, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def prepared(folder: Path, *rows: dict[str, Any], **choices: Any) -> PrepareResult:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "dapo.parquet")
    return prepare(DAPO_MATH, folder / "dapo.parquet", folder / "out.parquet", **choices)


def test_each_prompt_comes_once_and_its_words_are_left_alone(tmp_path: Path) -> None:
    one, two = a_row("1 + 1?", "2", "first"), a_row("2 + 2?", "4", "second")

    report = prepared(tmp_path, one, two, one, one)

    assert (report.num_read, report.num_rows, report.num_repeated) == (4, 2, 2)
    assert open_rows(tmp_path / "out.parquet")[0] == {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "dapo", "index": 0, "id": "first"},
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (a_row("?", None), "'reward_model.ground_truth' is missing, or neither text nor a number"),
        (a_row("?", " "), "'reward_model.ground_truth' is missing, or neither text nor a number"),
        (a_row("", "5"), "'prompt' has a message without role or content"),
        (a_row("?", "5") | {"prompt": []}, "'prompt' is not a chat"),
    ],
)
def test_a_bad_row_is_named_with_its_reason(tmp_path: Path, row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"row 0: {reason}$"):
        prepared(tmp_path, row)


# ── test gsm8k ────────────────────────────────────────────────────────────────────────────────

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


def jsonl(folder: Path, *answers: str) -> Path:
    path = folder / "train.jsonl"
    path.write_bytes(
        b"\n".join(msgspec.json.encode({"question": f"Q{n}?", "answer": a}) for n, a in enumerate(answers))
    )
    return path


def gsm8k_prepared(folder: Path, *answers: str, **choices: Any) -> dict[str, Any]:
    """The last row."""
    out = folder / "out" / "train.parquet"
    assert prepare(GSM8K, jsonl(folder, *answers), out, **choices).num_rows == len(answers)
    return open_rows(out)[len(answers) - 1]


def test_a_row_is_what_verl_makes_of_it(tmp_path: Path) -> None:
    solution = "6 * 7 = <<6*7=42>>42\n#### 42"

    assert gsm8k_prepared(tmp_path, "#### 1", solution) == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "user", "content": 'Q1? Let\'s think step by step and output the final answer after "####".'}
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"split": "train", "index": 1, "answer": solution, "question": "Q1?"},
    }


@pytest.mark.parametrize(
    ("end", "answer"), [("#### 1,234,567", "1234567"), ("#### -5", "-5"), ("#### 0.25", "0.25"), ("#### 7 \n", "7")]
)
def test_the_number_has_no_commas_and_keeps_sign_and_decimals(tmp_path: Path, end: str, answer: str) -> None:
    assert gsm8k_prepared(tmp_path, f"reasoning\n{end}")["reward_model"]["ground_truth"] == answer


def test_a_line_without_an_answer_is_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path, "fine\n#### 1", "no number at all", "#### many", "fine\n#### 2")

    with pytest.raises(DataError) as caught:
        prepare(GSM8K, path, tmp_path / "out.parquet")

    assert str(caught.value) == (
        f"2 of 4 rows cannot be used, and nothing was written: "
        f"{path} line 2: the answer must end in '#### ' and a number, but ends in 'no number at all'; "
        f"{path} line 3: the answer must end in '#### ' and a number, but ends in '#### many'"
    )


def test_a_line_without_a_question_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"question": "?", "answer": "#### 1"}\n{"answer": "#### 1"}\n{"question":\n')

    with pytest.raises(DataError, match=r"line 2: 'question' is missing, or not text; .* line 3: it is not a JSON"):
        prepare(GSM8K, path, tmp_path / "out.parquet")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="GSM8K is not here")
@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize(("split", "rows", "last"), [("train", 7473, "50"), ("test", 1319, "14")])
def test_every_published_row_can_be_trained_on(tmp_path: Path, split: str, rows: int, last: str, is_chat: bool) -> None:
    out = tmp_path / f"{split}.parquet"

    assert prepare(GSM8K, PUBLISHED / f"{split}.jsonl", out, is_chat=is_chat).num_rows == rows

    inspection = inspect(out)
    inspection.require_usable()
    assert inspection.data_sources == {"openai/gsm8k": rows}
    assert inspection.num_chats == (rows if is_chat else 0)
    stream = train_stream(Data(train=str(out), shuffle=False), seed=0)
    assert stream.at(rows - 1).prompt.answer == last
    assert stream.at(rows).epoch == 1
    answers = [stream.at(row).prompt.answer for row in range(rows)]
    assert all(float(answer) == float(answer.replace(",", "")) for answer in answers), "every answer is a number"


# ── test published ────────────────────────────────────────────────────────────────────────────
# What every published dataset goes through: a problem of each row, verl's row of it, and parquet.

TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "why?"}]


def problem(row: Row) -> PublishedProblem:
    if "chat" in row:
        return PublishedProblem(prompt=row["chat"], answer="because")
    question, answer = text_of(row, "q", "a")
    return PublishedProblem(prompt=question, answer=answer, extra={"level": len(question)})


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
    assert prompt.extra == {"ability": "math", "split": "mine", "index": 0, "level": 4}


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
