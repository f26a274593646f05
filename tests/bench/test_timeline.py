"""A pipeline is timed while it is full."""

import importlib
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SAMPLING_S, TRAINING_S = 10.0, 4.0


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("timeline")


def pipeline(timeline: Any, steps: int, ahead: int) -> Any:
    """Two processes on one core: a step takes the sampling of a batch and its own training, the last ones only this."""
    seconds = [SAMPLING_S + TRAINING_S] * (steps - ahead) + [TRAINING_S] * ahead
    return timeline.Timeline(
        zero_s=0.0, ends_s=list(accumulate(seconds)), tokens=[140] * steps, accuracies=[], ahead=ahead
    )


@pytest.mark.parametrize(("steps", "ahead"), [(4, 0), (4, 1), (6, 2), (7, 2), (40, 1), (40, 8)])
def test_steps_whose_batches_were_sampled_before_are_not_timed(timeline: Any, steps: int, ahead: int) -> None:
    run = pipeline(timeline, steps, ahead)
    assert run.step_s() == SAMPLING_S + TRAINING_S
    assert run.tokens_per_s() == 10.0


def test_a_run_shorter_than_its_pipeline_is_not_timed(timeline: Any) -> None:
    with pytest.raises(SystemExit, match=r"run\.steps is 5: expected at least 6"):
        pipeline(timeline, 5, 2).step_s()
