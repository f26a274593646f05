"""Output and errors of `asyncrl plan --memory`, and the check of a dry run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from transformers import Qwen3Config

from asyncrl.cli.main import main


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run file whose model has only a config.json."""
    Qwen3Config(
        vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=16
    ).save_pretrained(tmp_path / "model")
    path = tmp_path / "small.toml"
    path.write_text(f'[model]\npath = "{tmp_path}/model"\n[data]\ntrain = "unused"\n[trainer]\nranks = 2\n')
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_every_phase_has_a_row_and_every_part_one_below(run_file):
    result = invoke("plan", "--memory", run_file)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("small: trainer of 2 ranks and 2 rollouts a machine, whose host needs ")
    rows = [line.split("  ")[0] for line in result.output.splitlines() if line.startswith("trainer, ")]
    assert rows == [f"trainer, {name}" for name in ("load", "step", "publish", "checkpoint", "resume")]
    assert "\n  activations" in result.output
    assert "does not fit" not in result.output


def test_json_has_the_bytes(run_file):
    answer = json.loads(invoke("plan", "--memory", run_file, "--json", "--set", "trainer.ranks=1").output)
    step = answer["trainer"][1]
    assert step["name"] == "step"
    assert step["device"] == sum(part["device"] for part in step["parts"])
    assert answer["problem"] == ""


def test_what_does_not_fit_is_told(run_file):
    changes = ("--set", "trainer.device=cuda", "--set", "rollout.engine=vllm")
    result = invoke("plan", "--memory", run_file, *changes, "--device-memory", "1MB")
    assert result.exit_code == 0
    assert "does not fit: the trainer needs " in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "--memory", "--picture", "x.html"], "--picture and --no-search are not for --memory; remove them"),
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
    result = invoke(*arguments, run_file)
    assert result.exit_code == 78
    assert sentence in result.stderr
