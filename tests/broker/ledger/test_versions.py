"""Versions by step, versions that cannot be, and the staleness that each schedule promises."""

from typing import Literal

import pytest

from asyncrl.broker.ledger.records import (
    VersionLive,
)
from asyncrl.broker.ledger.state import PromisedBounds, TrainedVersions, most_versions
from asyncrl.config.sections.schedule import Schedule

# ── versions ──────────────────────────────────────────────────────────────────────────────────


def trained_versions_of(steps_per_publish: int, *live: tuple[int, int]) -> TrainedVersions:
    """Versions that went live, each with the number of its steps."""
    versions = TrainedVersions(steps_per_publish)
    for version, next_step in live:
        record = VersionLive(version, next_step)
        assert versions.problem(record) == ""
        versions.add(record)
    return versions


def test_a_version_is_made_after_every_t_th_step() -> None:
    versions = trained_versions_of(2, (0, 0), (1, 2), (2, 4))
    assert [versions.of_step(step) for step in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert versions.live_version == 2


def test_a_version_that_never_went_live_is_counted() -> None:
    assert [trained_versions_of(1, (0, 0), (3, 3)).of_step(step) for step in range(5)] == [0, 1, 2, 3, 4]


def test_the_last_version_of_a_run_that_was_extended_shifts_the_later_ones() -> None:
    versions = trained_versions_of(2, (0, 0), (1, 2), (2, 4), (3, 5), (4, 6))
    assert [versions.of_step(step) for step in range(9)] == [0, 0, 1, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("version", "next_step", "problem"),
    [
        (2, 4, "version 2 went live after version 2: expected a newer one"),
        (3, 2, "version 3 contains 2 steps, but the version before contains 4"),
        (99, 6, "version 99 contains 6 steps: expected version 3"),
        (3, 8, "version 3 contains 8 steps: expected version 4"),
    ],
)
def test_an_impossible_version_is_named_and_ignored(version: int, next_step: int, problem: str) -> None:
    versions = trained_versions_of(2, (0, 0), (2, 4))
    record = VersionLive(version, next_step)
    assert versions.problem(record) == problem
    versions.add(record)
    assert versions.of_step(6) == 3


# ── staleness bounds ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("staleness", "steps_per_publish", "bound"),
    [(0, 1, 0), (1, 1, 1), (1, 2, 1), (1.5, 1, 2), (1.5, 2, 2), (0.01, 1, 0), (3, 2, 3)],
)
def test_fifo_promises_the_staleness_rounded_up_to_the_versions_that_the_window_holds(
    staleness: float, steps_per_publish: int, bound: int
) -> None:
    schedule = Schedule(groups_per_step=4, staleness=staleness, steps_per_publish=steps_per_publish)
    assert most_versions(schedule) == bound


@pytest.mark.parametrize(("order_window", "bound"), [(1, 1), (2, 2), (5, 2), (6, 3), (None, 5)])
def test_each_step_of_groups_that_may_pass_a_slow_one_adds_a_version(order_window: int | None, bound: int) -> None:
    schedule = Schedule(groups_per_step=4, staleness=1, order="windowed", order_window=order_window)
    assert most_versions(schedule) == bound


@pytest.mark.parametrize(("staleness", "reach"), [(0, 8), (1, 16), (1.5, 25), (2, 36), (3, 64)])
def test_more_groups_may_pass_a_slow_one_where_more_are_open(staleness: float, reach: int) -> None:
    assert Schedule(groups_per_step=4, staleness=staleness, order="windowed").reach == reach


def test_waiting_for_stragglers_leaves_as_much_room_to_pass_as_the_bound_allows() -> None:
    schedule = Schedule(groups_per_step=4, staleness=1, order="windowed", max_staleness=2)
    assert (schedule.reach, schedule.most_versions_by_order) == (5, 2)
    wider = Schedule(groups_per_step=4, staleness=1, order="windowed", order_window=6)
    assert wider.most_versions_by_order == 3


def test_completion_alone_promises_nothing() -> None:
    assert most_versions(Schedule(order="completion", staleness=1)) is None


@pytest.mark.parametrize("on_straggler", ["wait", "reissue"])
def test_max_staleness_is_kept_by_waiting_and_by_sampling_again(on_straggler: str) -> None:
    schedule = Schedule(order="completion", staleness=3, max_staleness=4, on_straggler=on_straggler)  # type: ignore[arg-type]
    assert most_versions(schedule) == 4


@pytest.mark.parametrize("on_straggler", ["train", "mask"])
def test_training_on_stragglers_leaves_the_bound_of_the_order(on_straggler: Literal["train", "mask"]) -> None:
    assert most_versions(Schedule(order="fifo", staleness=2, max_staleness=1, on_straggler=on_straggler)) == 2
    assert most_versions(Schedule(order="completion", max_staleness=1, on_straggler=on_straggler)) is None


def test_of_two_bounds_the_smaller_holds() -> None:
    assert most_versions(Schedule(order="fifo", staleness=3, max_staleness=1, on_straggler="reissue")) == 1


def test_a_group_is_promised_the_bound_of_its_admission_and_a_restarted_one_the_largest() -> None:
    bounds = PromisedBounds(Schedule(groups_per_step=2, staleness=2.0))
    bounds.admitted(0)
    bounds.changed({"schedule.staleness": 0.0, "trainer.lr": 1.0})
    bounds.admitted(1)
    assert (bounds.of(0), bounds.of(1)) == (2, 0)
    bounds.restarted(1)
    assert bounds.of(1) == 2


def test_without_a_bound_a_change_promises_none() -> None:
    bounds = PromisedBounds(Schedule(order="completion"))
    bounds.changed({"schedule.staleness": 3.0})
    bounds.admitted(0)
    bounds.restarted(0)
    assert bounds.of(0) is None
