"""`asyncrl toy`: its commands, with models far smaller than their defaults."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from asyncrl.cli.toy import step_sums
from tests.cli.invoke import asyncrl

TINY = ("--layers", "1", "--hidden-size", "16", "--intermediate-size", "16", "--head-dim", "8")


def toy(*arguments: object) -> Result:
    return asyncrl("toy", *arguments)


def test_random_makes_a_model_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["How many clips?"] * 9}), tmp_path / "train.parquet")
    command = ("random", tmp_path / "model", "--text", tmp_path / "train.parquet", "--vocab-size", "300", *TINY)

    first, second = toy(*command), toy(*command)

    assert (first.exit_code, second.exit_code) == (0, 0), first.output
    assert f"made {tmp_path}/model" in first.output
    assert second.output == f"kept {tmp_path}/model, which exists\n"
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_key_value_heads"], config["vocab_size"] <= 300) == (1, 2, True)


def test_step_sums_keeps_what_exists(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    result = toy("step-sums", tmp_path)

    assert result.exit_code == 0, result.output
    assert result.output == (
        f"kept {tmp_path}/model, which exists\nwrote {tmp_path}/train.parquet\nwrote {tmp_path}/held_out.parquet\n"
    )


@pytest.mark.parametrize("task", ["hidden-sums", "drawn-squares", "smollm2"])
def test_another_task_keeps_what_exists(task: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    result = toy(task, tmp_path)

    assert result.exit_code == 0, result.output
    folders = [tmp_path, tmp_path / "shown"] if task == "drawn-squares" else [tmp_path]
    written = [f"wrote {folder}/{split}.parquet" for folder in folders for split in ("train", "held_out")]
    assert result.output.splitlines() == [f"kept {tmp_path}/model, which exists", *written]


def test_too_few_experts_are_refused_in_one_sentence(tmp_path: Path) -> None:
    result = toy("step-sums", tmp_path, "--experts", "2", "--experts-per-token", "3")
    assert result.exit_code == 78
    assert result.stderr == ("asyncrl: experts_per_token is 3, but a layer has 2 experts; lower it, or raise experts\n")


def test_sizes_that_cannot_work_are_refused_in_one_sentence(tmp_path: Path) -> None:
    result = toy("step-sums", tmp_path, "--kv-heads", "3")
    assert result.exit_code == 78
    assert result.stderr == ("asyncrl: 4 heads cannot share 3 kv_heads evenly; make heads a multiple of kv_heads\n")


def test_the_defaults_of_step_sums_are_those_of_the_quickstart_model() -> None:
    defaults = {option.name: option.default for option in step_sums.params}
    sizes = {"layers": 3, "hidden_size": 64, "intermediate_size": 192, "heads": 4, "kv_heads": 2, "head_dim": 16}
    assert sizes.items() <= defaults.items()
    assert (defaults["seed"], defaults["threads"], defaults["experts"]) == (0, 1, 0)
