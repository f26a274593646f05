"""Shares of tokens and trajectories, computed by hand."""

import pytest

from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trainer import ScoredTrajectory
from asyncrl.messages.trajectory import Span, TrajectorySummary, Unit
from asyncrl.plan.result import SimulationResult, completion_tokens, token_staleness, trajectory_staleness
from asyncrl.plan.simulated.trainer import TrainedStep


def a_trajectory(index: int, spans: list[Span]) -> ScoredTrajectory:
    summary = TrajectorySummary(
        num_tokens=spans[-1].end,
        prompt_tokens=5,
        oldest_version=spans[0].policy_version,
        newest_version=spans[-1].policy_version,
        num_spans=len(spans),
        finish_reason="stop",
    )
    return ScoredTrajectory(Unit(0, index), SpoolRef("spool", 0, 0, 0, 0), 0.0, {}, summary)


def a_step(policy_version: int, *spans: list[Span]) -> TrainedStep:
    trajectories = [a_trajectory(index, of_one) for index, of_one in enumerate(spans)]
    return TrainedStep(0, policy_version, 0.0, 1.0, trajectories, list(spans))


STEPS = [a_step(3, [Span(2, 0, 10)], [Span(1, 0, 10), Span(3, 10, 30)])]


def test_every_token_counts_by_its_own_version() -> None:
    assert token_staleness(STEPS) == pytest.approx({0: 20 / 40, 1: 10 / 40, 2: 10 / 40})


def test_a_trajectory_counts_by_its_oldest_version() -> None:
    assert trajectory_staleness(STEPS) == {1: 0.5, 2: 0.5}


def test_prompt_tokens_are_no_completion_tokens() -> None:
    assert completion_tokens(STEPS) == 40


def test_mean_and_maximum_are_those_of_the_shares() -> None:
    result = SimulationResult(
        devices=2, rollout_devices=1, staleness=1.0, steps_per_publish=2, step_s=1.0, group_s=1.0, rollout_idle=0.0,
        running=1.0, trainer_idle=0.0, tokens_per_s=1.0, trajectory_staleness={0: 0.25, 2: 0.75},
    )  # fmt: skip
    assert (result.staleness_mean, result.staleness_max) == (1.5, 2)
    assert result.lag == 3.0
