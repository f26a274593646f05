"""Versions by step, and versions that cannot be."""

import pytest

from asyncrl.broker.ledger.records import VersionLive
from asyncrl.broker.ledger.trained_versions import TrainedVersions


def of(steps_per_publish: int, *live: tuple[int, int]) -> TrainedVersions:
    """Versions that went live, each with the number of its steps."""
    versions = TrainedVersions(steps_per_publish)
    for version, next_step in live:
        record = VersionLive(version, next_step)
        assert versions.problem(record) == ""
        versions.add(record)
    return versions


def test_a_version_is_made_after_every_t_th_step() -> None:
    versions = of(2, (0, 0), (1, 2), (2, 4))
    assert [versions.of_step(step) for step in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert versions.live_version == 2


def test_a_version_that_never_went_live_is_counted() -> None:
    assert [of(1, (0, 0), (3, 3)).of_step(step) for step in range(5)] == [0, 1, 2, 3, 4]


def test_the_last_version_of_a_run_that_was_extended_shifts_the_later_ones() -> None:
    versions = of(2, (0, 0), (1, 2), (2, 4), (3, 5), (4, 6))
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
    versions = of(2, (0, 0), (2, 4))
    record = VersionLive(version, next_step)
    assert versions.problem(record) == problem
    versions.add(record)
    assert versions.of_step(6) == 3
