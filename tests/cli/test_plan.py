"""`asyncrl plan` prints tables, writes pages, and refuses options that nothing would read."""

import json
from pathlib import Path

import pytest
from transformers import Qwen3Config

from asyncrl.cli.plan import first_given
from tests.cli.invoke import asyncrl

TOY = """
devices = 2
assumptions = ["every completion is as long as the next"]
[lengths]
median = 100
[rollout]
devices = 1
slots = 4
decode = [[1, 10]]
prefill_tokens_per_s = 1000
kv = "keep"
[trainer]
speeds = [{ devices = 1, tokens_per_s = 100 }]
[schedule]
groups_per_step = 2
group_size = 2
staleness = 1.0
[[measured]]
name = "the real one"
groups = 2
seconds = 12.5
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file whose model has only a config.json."""
    Qwen3Config(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=16
    ).save_pretrained(tmp_path / "model")
    path = tmp_path / "small.toml"
    path.write_text(f'[model]\npath = "{tmp_path}/model"\n[data]\ntrain = "unused"\n[trainer]\nranks = 2\n')
    return path


def test_the_page_is_written_to_the_given_file(toy, tmp_path):
    result = asyncrl("plan", toy, "--picture", tmp_path / "toy.html")
    assert result.exit_code == 0
    assert "<svg" in (tmp_path / "toy.html").read_text()
    assert result.stderr == f"simulating\n{tmp_path / 'toy.html'}\n"


def test_a_contradictory_plan_is_refused_in_one_sentence(toy):
    result = asyncrl("plan", toy, "--set", "rollout.devices=2")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: rollout.devices is 2 of 2 devices: at least one has to be left to train\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "--memory", "--picture", "x.html"], "--picture and --search are not for --memory; remove them"),
        (["plan", "--device-memory", "80GB"], "--device-memory is for --memory; add it, or remove both"),
        (
            ["run", "--device-memory", "80GB"],
            "--device-memory is for --dry-run, which checks that the run fits into it",
        ),
        (
            ["plan", "--memory", "--device-memory", "80"],
            "--device-memory is '80': expected a number of bytes with a unit",
        ),
    ],
)
def test_options_that_nothing_would_read_are_refused(run_file, arguments, sentence):
    result = asyncrl(*arguments, run_file)
    assert result.exit_code == 78
    assert sentence in result.stderr


def test_the_table_has_step_time_speed_up_idle_shares_staleness_and_the_best_split(toy):
    result = asyncrl("plan", toy, "--search")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["colocated", "synchronous", "2", "0", "1", "12", "1.00x", "16.7", "%", "83.3", "%", "2", "0.00/0"] in lines
    assert ["as", "planned", "1", "+", "1", "1", "1", "10", "1.20x", "0.0", "%", "60.0", "%", "4", "1.00/1"] in lines
    assert any(line[:2] == ["best", "found"] for line in lines)
    assert ["0", "60.0%", "█" * 24] in lines
    assert ["1", "1", "+", "1", "10", "1.20x", "best"] in lines
    assert ["the", "real", "one", "2", "12.5", "10.0", "-20%"] in lines
    assert result.output.endswith("assumptions\n  - every completion is as long as the next\n")


def test_json_has_the_same_numbers(toy):
    answer = json.loads(asyncrl("plan", toy, "--json", "--set", "staleness=0").stdout)
    assert answer["planned"]["step_s"] == pytest.approx(14)
    assert answer["found"] is None


def test_every_phase_has_a_row_and_every_part_one_below(run_file):
    result = asyncrl("plan", "--memory", run_file)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("small: trainer of 2 ranks and 2 rollouts a machine, whose host needs ")
    rows = [line.split("  ")[0] for line in result.output.splitlines() if line.startswith("trainer, ")]
    assert rows == [f"trainer, {name}" for name in ("load", "step", "publish", "checkpoint", "resume")]
    assert "\n  activations" in result.output
    assert "does not fit" not in result.output


def test_json_has_the_bytes(run_file):
    answer = json.loads(asyncrl("plan", "--memory", run_file, "--json", "--set", "trainer.ranks=1").output)
    step = answer["trainer"][1]
    assert step["name"] == "step"
    assert step["device"] == sum(part["device"] for part in step["parts"])
    assert answer["problem"] == ""


def test_what_does_not_fit_is_told(run_file):
    changes = ("--set", "trainer.device=cuda", "--set", "rollout.engine=vllm")
    result = asyncrl("plan", "--memory", run_file, *changes, "--device-memory", "1MB")
    assert result.exit_code == 0
    assert "does not fit: the trainer needs " in result.output


def test_the_first_option_that_is_given_is_named() -> None:
    assert first_given("80GB") == "--device-memory"
    assert first_given("") == "--host-memory"
