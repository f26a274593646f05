from pathlib import Path

import msgspec
import pytest

from asyncrl.data.prepare.competition_math import MATH
from asyncrl.data.prepare.published import prepare
from asyncrl.data.table import open_rows
from asyncrl.errors import DataError


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
