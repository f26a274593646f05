"""Folders with a manifest and nothing else: what they hold is not looked at."""

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from asyncrl.config.sections.checkpoint import Checkpoint
from asyncrl.errors import ConfigError
from asyncrl.files.checkpoints import BEST, MANIFEST
from asyncrl.messages.supervisor import Evaluated
from asyncrl.trainer.checkpoints.checkpoint import Manifest
from asyncrl.trainer.checkpoints.retention import Best, Retention


def save(directory: Path, step: int) -> None:
    """A checkpoint whose version is its step."""
    folder = directory / f"step_{step:06d}"
    folder.mkdir()
    manifest = Manifest(step=step, policy_version=step, random_state=b"", files={})
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def steps(directory: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step_")) for folder in directory.glob("step_*"))


def best(directory: Path) -> Best:
    return msgspec.json.decode((directory / BEST).read_bytes(), type=Best)


@pytest.fixture
def retention(tmp_path):
    return Retention(tmp_path, Checkpoint(every_steps=1, keep=2, keep_best=True))


def result(version: int, accuracy: float, **metrics: float) -> Evaluated:
    return Evaluated(version, accuracy, 8, metrics)


def grow(directory: Path, retention: Retention, *new: int) -> None:
    for step in new:
        save(directory, step)
        retention.prune()


def test_the_best_stays_however_many_follow(tmp_path, retention):
    for step, accuracy in ((1, 0.25), (2, 0.75), (3, 0.5), (4, 0.5), (5, 0.7)):
        grow(tmp_path, retention, step)
        retention.evaluated(result(step, accuracy))
        retention.prune()
    assert steps(tmp_path) == [2, 4, 5]
    assert best(tmp_path) == Best(step=2, policy_version=2, metric="accuracy", value=0.75)


def test_a_better_one_takes_its_place_and_an_equal_one_does_not(tmp_path, retention):
    grow(tmp_path, retention, 1)
    for step, accuracy in ((1, 0.5), (2, 0.5), (3, 0.75), (4, 0.1), (5, 0.1)):
        if step > 1:
            grow(tmp_path, retention, step)
        retention.evaluated(result(step, accuracy))
        with capture_logs() as said:
            retention.prune()
        assert bool(said) == (step in (1, 3)), "said once, when it changes"
    assert (best(tmp_path).step, steps(tmp_path)) == (3, [3, 4, 5])


def test_a_version_in_evaluation_is_kept_until_its_result(tmp_path, retention):
    retention.evaluated(result(0, 0.9))  # The base model, of which there is no checkpoint.
    retention.evaluating(1)
    grow(tmp_path, retention, 1, 2, 3, 4)
    assert steps(tmp_path) == [1, 3, 4]
    retention.evaluated(result(1, 0.3))
    retention.prune()
    assert best(tmp_path).step == 1
    retention.evaluated(result(3, 0.4))
    retention.prune()
    assert steps(tmp_path) == [3, 4]


def test_a_result_may_come_before_its_checkpoint_is_written(tmp_path, retention):
    retention.evaluated(result(1, 0.5))
    retention.prune()
    assert not (tmp_path / BEST).exists()
    grow(tmp_path, retention, 1)
    assert best(tmp_path).step == 1


def test_an_evaluation_in_which_nothing_was_answered_says_nothing(tmp_path, retention):
    retention.evaluated(Evaluated(1, 1.0, 0))
    retention.evaluated(result(2, float("nan")))
    grow(tmp_path, retention, 1, 2)
    assert not (tmp_path / BEST).exists()


def test_another_metric_may_tell(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep_best=True, best_metric="reward"))
    grow(tmp_path, retention, 1, 2)
    retention.evaluated(result(1, 0.9, reward=0.1))
    retention.evaluated(result(2, 0.1, reward=0.2))
    retention.prune()
    assert best(tmp_path) == Best(step=2, policy_version=2, metric="reward", value=0.2)


def test_an_unknown_metric_is_refused_with_the_existing_ones(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep_best=True, best_metric="acuracy"))
    with pytest.raises(ConfigError, match=r"best_metric is 'acuracy', .*; use one of accuracy, reward"):
        retention.evaluated(result(1, 0.9, reward=0.1))


def test_without_keep_best_only_the_newest_stay(tmp_path):
    retention = Retention(tmp_path, Checkpoint(keep=1))
    retention.evaluating(1)
    retention.evaluated(result(1, 0.9))
    grow(tmp_path, retention, 1, 2)
    assert steps(tmp_path) == [2]
    assert not (tmp_path / BEST).exists()
