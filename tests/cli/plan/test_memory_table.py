"""Tables of `asyncrl plan --memory`."""

import json

from tests.cli.invoke import asyncrl


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
