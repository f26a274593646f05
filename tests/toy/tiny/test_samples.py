"""Generated rows have the form of the dataset that the path names."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asyncrl.data.prepare.dapo_math import DAPO_MATH
from asyncrl.data.prepare.gsm8k import GSM8K
from asyncrl.errors import ConfigError
from asyncrl.toy.tiny.samples import NUM_ROWS, dataset_of, write_sample


def test_a_folder_or_a_file_names_the_dataset() -> None:
    assert dataset_of(Path("data/gsm8k/train.parquet")) is GSM8K
    assert dataset_of(Path("/data/dapo-math.parquet")) is DAPO_MATH
    with pytest.raises(ConfigError, match=r"mine/train.parquet is not here, and no part of it names a dataset"):
        dataset_of(Path("mine/train.parquet"))


def test_rows_are_those_that_preparing_the_dataset_writes(tmp_path: Path) -> None:
    write_sample(GSM8K, tmp_path / "a" / "train.parquet", split="train", seed=0)
    rows = pq.read_table(tmp_path / "a" / "train.parquet").to_pylist()
    assert len(rows) == NUM_ROWS
    assert rows[3]["data_source"] == "openai/gsm8k"
    assert rows[3]["prompt"][0]["content"].endswith(GSM8K.instruction)
    assert rows[3]["reward_model"]["ground_truth"].isdigit()
    assert rows[3]["extra_info"]["index"] == 3


def test_other_splits_and_seeds_have_other_rows(tmp_path: Path) -> None:
    def answers(split: str, seed: int) -> list[str]:
        write_sample(GSM8K, tmp_path / "x.parquet", split=split, seed=seed)
        return [row["reward_model"]["ground_truth"] for row in pq.read_table(tmp_path / "x.parquet").to_pylist()]

    assert answers("train", 0) == answers("train", 0)
    assert answers("train", 0) != answers("held_out", 0)
    assert answers("train", 0) != answers("train", 1)


def test_some_prompts_are_too_long_if_asked_for(tmp_path: Path) -> None:
    write_sample(GSM8K, tmp_path / "x.parquet", split="train", seed=0, long_every=4)
    lengths = [len(row["prompt"][0]["content"]) for row in pq.read_table(tmp_path / "x.parquet").to_pylist()]
    assert [number for number, length in enumerate(lengths) if length > 1000] == list(range(3, NUM_ROWS, 4))
