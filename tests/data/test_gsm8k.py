import re
from pathlib import Path

import msgspec
import pytest

from asyncrl.config import Data
from asyncrl.data.gsm8k import prepare
from asyncrl.data.prompts import train_stream
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "gsm8k"


def jsonl(folder: Path, *answers: str) -> Path:
    path = folder / "gsm8k.jsonl"
    path.write_bytes(
        b"\n".join(msgspec.json.encode({"question": f"Q{n}?", "answer": a}) for n, a in enumerate(answers))
    )
    return path


def test_a_question_becomes_a_prompt_and_the_number_its_answer(tmp_path: Path) -> None:
    out = tmp_path / "out" / "train.parquet"

    assert prepare(jsonl(tmp_path, "6 * 7 = <<6*7=42>>42\n#### 42"), out) == 1

    assert open_rows(out)[0] == {
        "prompt": 'Q0? Let\'s think step by step and output the final answer after "####".',
        "answer": "42",
        "data_source": "openai/gsm8k",
        "solution": "6 * 7 = <<6*7=42>>42\n#### 42",
    }


@pytest.mark.parametrize(
    ("end", "answer"), [("#### 1,234,567", "1234567"), ("#### -5", "-5"), ("#### 0.25", "0.25"), ("#### 7 \n", "7")]
)
def test_the_number_has_no_commas_and_keeps_sign_and_decimals(tmp_path: Path, end: str, answer: str) -> None:
    out = tmp_path / "train.parquet"
    prepare(jsonl(tmp_path, f"reasoning\n{end}"), out)

    assert open_rows(out)[0]["answer"] == answer


def test_bad_lines_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "train.parquet"
    path = jsonl(tmp_path, "fine\n#### 1", "no number at all", "#### many", "fine\n#### 2")

    with pytest.raises(DataError) as caught:
        prepare(path, out)

    where = f"{path} line"
    assert str(caught.value) == (
        f"{where} 2: the answer must end in '#### ' and a number, but ends in 'no number at all'; "
        f"{where} 3: the answer must end in '#### ' and a number, but ends in '#### many'"
    )
    assert sorted(tmp_path.iterdir()) == [path]


def test_many_bad_lines_are_counted_after_the_fifth(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 5: .*; and 7 more$") as caught:
        prepare(jsonl(tmp_path, *["?"] * 12), tmp_path / "out.parquet")

    assert len(re.findall(r"jsonl line \d", str(caught.value))) == 5


def test_a_line_without_a_question_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text('{"question": "?", "answer": "#### 1"}\n{"answer": "#### 1"}\n{"question":\n')

    with pytest.raises(DataError, match=r"line 2: 'question' is missing, or not text; .* line 3 is not a JSON object"):
        prepare(path, tmp_path / "out.parquet")


def test_what_was_prepared_is_not_prepared_again(tmp_path: Path) -> None:
    out = tmp_path / "train.parquet"
    prepare(jsonl(tmp_path, "#### 1"), out)

    with pytest.raises(DataError, match="is parquet already"):
        prepare(out, tmp_path / "again.parquet")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="GSM8K is not here")
@pytest.mark.parametrize(("split", "rows", "last"), [("train", 7473, "50"), ("test", 1319, "14")])
def test_the_published_files_can_be_trained_on(tmp_path: Path, split: str, rows: int, last: str) -> None:
    out = tmp_path / f"{split}.parquet"

    assert prepare(PUBLISHED / f"{split}.jsonl", out) == rows

    stream = train_stream(Data(train=str(out), shuffle=False), seed=0)
    assert stream.at(rows - 1).prompt.answer == last
    assert stream.at(rows).epoch == 1
