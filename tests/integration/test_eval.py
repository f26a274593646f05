"""A checkpoint is exported and evaluated with the commands of `asyncrl`."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from asyncrl.runtime.offline import OfflineEvaluation
from tests.integration.conftest import ToyRun
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("a run of real processes, and evaluations of what it exported")


def asyncrl(folder: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "asyncrl", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def exported(start_shared_run, tmp_path_factory):
    """The exported model directory, and its run."""
    run = start_shared_run(
        "evaluation.samples=2", "evaluation.temperature=1.0", "evaluation.at_start=false", steps=2
    ).end()
    assert run.code == 0, run.errors
    folder = tmp_path_factory.mktemp("exported")
    done = asyncrl(folder, "export", run.directory.path, "-o", "model", "--step", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model: step 2 of toy, ")
    return folder / "model", run


def evaluated(exported: tuple[Path, ToyRun], toy: Path, *options: object) -> tuple[OfflineEvaluation, Path]:
    model, _ = exported
    out = model.parent / "answers.parquet"
    run_file = ["--config", toy / "toy.toml", "--set", "rollout.slots=64"]
    done = asyncrl(model.parent, "eval", "model", *run_file, "--out", out, "--json", *options)
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=OfflineEvaluation), out


def test_the_run_evaluated_pass_at_2(exported):
    _, run = exported
    run.assert_adds_up()
    assert not run.audit().problems
    (measured,) = [event for event in run.events if event["event"] == "eval.finished"]
    assert measured["num_prompts"] == 8
    assert measured["pass@1"] == measured["avg@2"] == measured["accuracy"] <= measured["pass@2"]


def test_the_card_has_the_metrics_of_the_run(exported):
    model, run = exported
    (measured,) = [event for event in run.events if event["event"] == "eval.finished"]
    card = (model / "README.md").read_text()
    assert f"| pass@2 | {measured['pass@2']:.1%} |" in card
    assert "run `toy`, policy version 2" in card


def test_every_held_out_row_has_four_completions(exported, toy):
    found, out = evaluated(exported, toy, "-k", "4", "--max-tokens", "32")
    rows = pq.read_table(out).to_pylist()
    assert (found.samples, found.temperature, found.overall.num_prompts, len(rows)) == (4, 1.0, 16, 64)
    right = [("a" in row["completion"]) for row in rows]
    assert found.overall.accuracy == pytest.approx(sum(right) / 64)
    passed = [any(right[i : i + 4]) for i in range(0, 64, 4)]
    assert found.overall.metrics["pass@4"] == pytest.approx(sum(passed) / 16)
    assert list(found.by_source) == ["toy"]


@pytest.mark.long("evaluates twice more")
def test_the_same_seed_gives_the_same_metrics(exported, toy):
    one, other = (evaluated(exported, toy, "-k", "2", "--max-tokens", "16", "--seed", 5)[0] for _ in range(2))
    assert one.overall == other.overall


@pytest.mark.long("evaluates once more")
def test_a_verifier_that_always_fails_does_not_count_as_reward_zero(exported, toy, tmp_path):
    (tmp_path / "bad.py").write_text("def bad(sample): raise RuntimeError('no')\n")
    model, _ = exported
    reward = ["--reward", f"{tmp_path / 'bad.py'}:bad", "--max-tokens", "8"]
    done = asyncrl(tmp_path, "eval", model, "--data", toy / "held_out.parquet", *reward)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "none of 16 completions has a verdict; the first failed: the function raised RuntimeError: no" in done.stderr
