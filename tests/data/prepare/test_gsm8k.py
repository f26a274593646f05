from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.sections.data import Data
from asyncrl.data.check import inspect
from asyncrl.data.prepare.gsm8k import GSM8K
from asyncrl.data.prepare.published import prepare
from asyncrl.data.prompts import train_stream
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


def jsonl(folder: Path, *answers: str) -> Path:
    path = folder / "train.jsonl"
    path.write_bytes(
        b"\n".join(msgspec.json.encode({"question": f"Q{n}?", "answer": a}) for n, a in enumerate(answers))
    )
    return path


def prepared(folder: Path, *answers: str, **choices: Any) -> dict[str, Any]:
    """The last row."""
    out = folder / "out" / "train.parquet"
    assert prepare(GSM8K, jsonl(folder, *answers), out, **choices).num_rows == len(answers)
    return open_rows(out)[len(answers) - 1]


def test_a_row_is_what_verl_makes_of_it(tmp_path: Path) -> None:
    solution = "6 * 7 = <<6*7=42>>42\n#### 42"

    assert prepared(tmp_path, "#### 1", solution) == {
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
    assert prepared(tmp_path, f"reasoning\n{end}")["reward_model"]["ground_truth"] == answer


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

    with pytest.raises(DataError, match=r"line 2: 'question' is missing, or not text; .* line 3: not a JSON object"):
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
