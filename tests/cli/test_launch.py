"""Runs that are refused before anything starts, dry runs, and the examples that come before a first run."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.config.run_file import load_config, to_toml
from asyncrl.records.run_directory import RunDirectory
from asyncrl.runtime.launch import LARGE_BYTES, is_slow_to_load
from asyncrl.runtime.machine import Devices
from tests.cli.invoke import asyncrl
from tests.config.model.directories import write_tokenizer


def test_a_dry_run_prints_what_would_run_and_starts_nothing(config, tmp_path):
    result = asyncrl("run", config, "--dry-run", "--set", "rollout.replicas=3")
    assert result.exit_code == 0, result.output
    assert "steps = 3" in result.output
    assert "would start: 1 broker (with spool), 3 rollouts, 1 reward, 1 trainer" in result.output
    assert (
        "3 steps of 2 groups of 4 trajectories, 24 trajectories in total; at most 4 groups open"
        in result.output.replace("\n", " ")
    )
    assert not (tmp_path / "runs").exists()


def test_a_name_on_the_hub_is_refused_with_the_command_that_downloads_it(config, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = asyncrl("run", config, "--set", "model.path=Qwen/Qwen3-0.6B", "--dry-run")
    assert result.exit_code == 78
    assert "hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B" in result.stderr


def _without(name):
    return lambda folder: (folder / name).unlink()


def _as_it_is(folder):
    pass


def _with_positions(count):
    def spoil(folder):
        path = folder / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": count}))

    return spoil


def _with_a_critic_without_weights(folder):
    (folder / "critic").mkdir()
    (folder / "critic" / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "options", "sentence"),
    [
        (_without("train.parquet"), [], "no such dataset: DIR/train.parquet"),
        (_without("model/tokenizer.json"), [], "model.path=DIR/model has no tokenizer: expected tokenizer.json"),
        (_without("model/model.safetensors"), [], "model.path=DIR/model has no weights: expected model.safetensors"),
        (lambda folder: write_tokenizer(folder / "model", 99), [], "token ids up to 98, but the model knows 0 to 7"),
        (
            _with_a_critic_without_weights,
            ["--set", "critic.path=DIR/critic", "--set", "algorithm.advantage=gae"],
            "critic.path=DIR/critic has no weights",
        ),
        (
            lambda folder: (folder / "mine.py").write_text("def loss(logprobs, advantages):\n    return 0\n"),
            ["--set", "algorithm.loss=DIR/mine.py:loss"],
            "algorithm.loss 'DIR/mine.py:loss' must be def loss(tokens, *, <settings and options>), but 'advantages'",
        ),
        (
            _with_positions(100),
            ["--set", "data.max_prompt_tokens=64"],
            "a slot holds 192 tokens (prompt and completion), but the model knows 100 positions",
        ),
        (
            _as_it_is,
            ["--set", "schedule.filter=zero_variance", "--set", "schedule.filter_metric=corect"],
            "schedule.filter_metric names 'corect', which reward.function = 'gsm8k' does not return: did you mean "
            "'correct'? (leave it empty for the reward)",
        ),
        (
            _as_it_is,
            ["--set", "algorithm.advantage=gdpo", "--set", "algorithm.reward_weights={acc = 1.0}"],
            "algorithm.reward_weights names 'acc', which reward.function = 'gsm8k' does not return: expected one of: "
            "reward, correct",
        ),
        (
            _as_it_is,
            [
                "--set=data.held_out=DIR/train.parquet",
                "--set=checkpoint.keep_best=true",
                "--set=checkpoint.every_steps=10",
                "--set=checkpoint.best_metric=acuracy",
            ],
            "checkpoint.best_metric names 'acuracy', which no evaluation of this run reports: did you mean 'accuracy'?",
        ),
        (_as_it_is, ["--set", "data.image_folders=['DIR/modle']"], "no folder DIR/modle; did you mean DIR/model?"),
        (_as_it_is, ["--set", "weights.interface=eth77"], "weights.interface is 'eth77', which no network interface"),
    ],
    ids=[
        "no dataset",
        "no tokenizer",
        "no weights",
        "another tokenizer",
        "no critic",
        "another signature",
        "too few positions",
        "no such metric of the filter",
        "no such weighted metric",
        "no such metric of evaluations",
        "no such folder",
        "no such interface",
    ],
)
@pytest.mark.parametrize("is_dry", [True, False])
def test_what_a_node_would_refuse_is_refused_before_anything_starts(config, tmp_path, spoil, options, sentence, is_dry):
    spoil(tmp_path)
    named = [option.replace("DIR", str(tmp_path)) for option in options]
    result = asyncrl("run", config, *named, *(["--dry-run"] if is_dry else []))
    assert result.exit_code == 78
    assert sentence in result.stderr.replace(str(tmp_path), "DIR")
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_run_without_a_model_is_refused(config, tmp_path, options):
    result = asyncrl("run", config, "--set", "model.path=nowhere", *options)
    assert result.exit_code == 78
    assert result.stderr == (
        "asyncrl: model.path 'nowhere' is not a model directory (no config.json in it): give one, or make a toy "
        "model with `asyncrl toy step-sums DIR` or `asyncrl toy random DIR --text FILE`\n"
    )
    assert not (tmp_path / "runs").exists()


def test_skipped_rows_are_reported_before_anything_starts(config, tmp_path):
    rows = [{"prompt": "how many", "answer": "1"}, {"prompt": "", "answer": "1"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    refused = asyncrl("run", config, "--dry-run")
    skipped = asyncrl("run", config, "--dry-run", "--set", "data.on_bad_row=skip")

    assert refused.exit_code == 78
    assert "train.parquet row 1: 'prompt' is empty" in refused.stderr
    assert "data.train:\n  1 row cannot be used\n         1  'prompt' is empty" in skipped.output


def test_chats_for_a_model_without_a_chat_template_are_refused_before_anything_starts(config, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "how many"}], "answer": "1"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")

    assert "the model has no chat template" in asyncrl("run", config, "--dry-run").stderr
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages }}")
    assert asyncrl("run", config, "--dry-run").exit_code == 0


def test_several_files_of_a_run_are_looked_at_together(config, tmp_path):
    more = tmp_path / "more.parquet"
    files = f"data.train=['{tmp_path}/train.parquet', '{more}']"
    pq.write_table(pa.Table.from_pylist([{"prompt": "?", "answer": "1"}]), more)
    assert asyncrl("run", config, "--dry-run", "--set", files, "--set", "data.ratios=[3, 1]").exit_code == 0

    pq.write_table(pa.Table.from_pylist([{"question": "?", "answer": "1"}]), more)
    refused = asyncrl("run", config, "--dry-run", "--set", files)
    assert "more.parquet has no column 'prompt'" in refused.stderr


def test_an_unknown_tracker_is_refused_before_anything_starts(config):
    refused = asyncrl("run", config, "--dry-run", "--set", "trackers.use=['wanbd']")
    assert refused.exit_code == 78
    assert "did you mean 'wandb'?" in refused.stderr


@pytest.mark.parametrize("command", ["run", "resume"])
def test_traces_without_their_package_are_refused_before_anything_starts(monkeypatch, command):
    monkeypatch.setitem(sys.modules, "asyncrl.runtime.exporter", None)
    result = asyncrl(command, "nowhere", "--traces")
    assert result.exit_code == 78
    assert "--traces needs opentelemetry: pip install 'asyncrl[traces]'" in result.output


@pytest.mark.parametrize("steps", [1, 3])
def test_a_run_can_be_extended_but_not_shortened(config, tmp_path, steps):
    directory = RunDirectory.create(tmp_path, "run")
    directory.write_config(to_toml(load_config(config)))
    before = directory.config.read_text()

    result = asyncrl("resume", directory.path, "--steps", str(steps))

    assert result.exit_code == 78
    assert f"--steps {steps}: expected more than the run's 3 steps" in result.stderr
    assert directory.config.read_text() == before


def test_a_pattern_of_a_reward_that_no_row_matches_is_noted(config):
    parts = "reward.parts=[{name='a', function='gsm8k', data_sources=['toy*', 'aime*']}]"
    noted = asyncrl("run", config, "--dry-run", "--set", "reward.function=auto", "--set", parts)
    assert "note: no row is for 'aime*', a pattern of the reward part 'a': the data sources are 'toy'\n" in noted.output


def test_what_needs_torch_is_checked_before_a_run_only_if_loading_takes_longer(config, tmp_path):
    read = load_config(config)
    assert not is_slow_to_load(read, [None, Devices("cpu")])
    assert is_slow_to_load(read, [Devices("cuda", ("0",)), Devices("cpu")])
    with (tmp_path / "model" / "model-2.safetensors").open("wb") as file:
        file.truncate(LARGE_BYTES + 1)
    assert is_slow_to_load(read, [None])


def test_a_missing_run_cannot_be_extended(tmp_path):
    result = asyncrl("resume", tmp_path, "--steps", "9")
    assert result.exit_code == 78
    assert "is not a run directory" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_example_lists_what_there_is() -> None:
    listed = asyncrl("example").output.splitlines()
    assert any(line.startswith("  quickstart  ") for line in listed)
    assert "services and monitoring" in listed


def test_example_copies_a_run_file_and_prints_the_next_commands(tmp_path: Path) -> None:
    result = asyncrl("example", "quickstart", "--to", tmp_path)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        str(tmp_path / "conf/quickstart.toml"),
        "next:",
        "  asyncrl toy step-sums cache/step-sums",
        "  asyncrl run conf/quickstart.toml",
    ]


def test_example_says_which_files_were_there_already(tmp_path: Path) -> None:
    asyncrl("example", "quickstart", "--to", tmp_path)
    again = asyncrl("example", "quickstart", "--to", tmp_path)
    assert again.output.splitlines()[0] == (f"{tmp_path}/conf/quickstart.toml, which is there already, was left alone")


def test_held_out_prompts_that_are_trained_on_are_told_once_and_refuse_nothing(config, tmp_path):
    told = asyncrl("run", config, "--dry-run", "--set", f"data.held_out={tmp_path}/train.parquet")
    assert told.exit_code == 0
    assert [line for line in told.output.splitlines() if line.startswith("note: ")] == [
        "note: data.train: 3 of 4 rows repeat the prompt of an earlier one",
        "note: data.held_out: 3 of 4 rows repeat the prompt of an earlier one",
        "note: 4 of 4 held-out prompts are among those trained on",
    ]
