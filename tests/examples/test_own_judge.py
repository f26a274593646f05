"""examples/own_judge.py"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import GroupMember, VerifierInput
from asyncrl.reward.verifier import group_member, verdict_of, verdicts_of
from tests.examples.conftest import ROOT, load_example

RIGHT, MISTAKE, GUESS = " a+5=5 b-3=2 #### 2", " a+5=5 b-3=3 #### 3", " #### 2"
JUDGED = ("reward.function=examples/own_judge.py:silent", "reward.group=examples/own_judge.py:tournament")

example = load_example("own_judge")


def member(completion: str) -> GroupMember:
    inputs = VerifierInput(prompt="Tom a+5 b-3 How many now?", completion=completion, answer="2")
    return group_member(inputs, verdict_of(example.silent(inputs)))


def test_a_completion_beats_those_with_an_earlier_mistake_and_a_right_answer_alone_is_worth_nothing() -> None:
    members = [member(text) for text in (GUESS, RIGHT, MISTAKE, GUESS)]
    verdicts = verdicts_of(example.tournament(members), members)
    assert [verdict.reward for verdict in verdicts] == pytest.approx([0.5 / 3, 1.0, 2 / 3, 0.5 / 3])
    assert [verdict.metrics["wins"] for verdict in verdicts] == [0.0, 3.0, 2.0, 0.0]
    assert [verdict.metrics["correct"] for verdict in verdicts] == [1.0, 1.0, 0.0, 1.0]
    assert {verdict.metrics["pointwise"] for verdict in verdicts} == {0.0}


def test_its_rewards_always_add_up_to_half_of_all_pairs() -> None:
    members = [member(text) for text in (RIGHT, RIGHT, MISTAKE, GUESS, "")]
    assert sum(verdict["score"] for verdict in example.tournament(members)) == pytest.approx(len(members) / 2)


def test_the_command_in_its_docstring_names_both_functions() -> None:
    text = (ROOT / "examples" / "own_judge.py").read_text(encoding="utf-8")
    assert all(f"--set {setting}" in text for setting in JUDGED)


def accuracies(folder: Path, *settings: str) -> tuple[float, float]:
    """Held-out accuracy before and after a run of the quickstart with these settings, %."""
    make = [sys.executable, "-m", "asyncrl", "toy", "step-sums", "cache/step-sums"]
    subprocess.run(make, cwd=ROOT, check=True, timeout=900)
    options = [part for setting in (f'run.dir="{folder}"', *settings) for part in ("--set", setting)]
    command = [sys.executable, "-m", "asyncrl", "run", "conf/quickstart.toml", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"held-out accuracy ([\d.]+)% -> ([\d.]+)%", done.stdout)
    assert found, done.stdout
    return float(found[1]), float(found[2])


@pytest.mark.long("makes a model once, and trains until it has learned")
def test_a_model_learns_from_comparisons_alone(tmp_path: Path) -> None:
    before, after = accuracies(tmp_path, *JUDGED, "run.steps=20")
    assert before < 20
    assert after > 90


@pytest.mark.long("makes a model once, and trains it in processes")
def test_without_the_comparisons_there_is_nothing_to_learn(tmp_path: Path) -> None:
    few = ("run.steps=4", "trainer.warmup_steps=1", "evaluation.every_versions=0", "checkpoint.keep_best=false")
    before, after = accuracies(tmp_path, JUDGED[0], *few)
    assert after == before
