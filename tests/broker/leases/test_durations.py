import math

import pytest

from asyncrl.broker.leases.durations import LEAST_IDLE_S, LEAST_KNOWN, LEAST_S, RECENT, TIMES, UNKNOWN_S, Durations


def test_while_nothing_has_come_back_only_those_that_may_not_take_long_are_overdue() -> None:
    durations = Durations()
    assert durations.limit_s("rollout", 16_000) == math.inf
    assert durations.limit_s("rollout", 16_000, is_idle=True) == UNKNOWN_S
    assert durations.limit_s("reward") == UNKNOWN_S
    assert durations.limit_s("reward", least_s=200.0) == 200.0


def test_the_less_is_known_the_longer_is_the_limit_but_it_never_lacks() -> None:
    durations = Durations()
    durations.took("reward", 1.0)
    assert durations.limit_s("reward") == TIMES["reward"] * LEAST_KNOWN
    for _ in range(LEAST_KNOWN - 1):
        durations.took("reward", 1.0)
    assert durations.limit_s("reward") == TIMES["reward"]
    for _ in range(RECENT):
        durations.took("reward", 0.1)
    assert durations.limit_s("reward") == LEAST_S["reward"]


def test_the_limit_follows_the_slowest_of_the_last_pieces_of_work() -> None:
    durations = Durations()
    durations.took("reward", 30.0)
    for _ in range(RECENT - 1):
        durations.took("reward", 4.0)
    assert durations.limit_s("reward") == 30.0 * TIMES["reward"]
    durations.took("reward", 4.0)
    assert durations.limit_s("reward") == 4.0 * TIMES["reward"]


def test_the_longest_completion_at_the_slowest_pace_is_not_overdue() -> None:
    durations = Durations()
    for _ in range(LEAST_KNOWN):
        durations.took("rollout", 0.05)
    assert durations.limit_s("rollout", 16_000) == pytest.approx(16_000 * 0.05 * TIMES["rollout"])


def test_a_rollout_that_does_nothing_has_less_time() -> None:
    durations = Durations()
    for _ in range(LEAST_KNOWN):
        durations.took("rollout", 0.001)
    assert durations.limit_s("rollout", 100) == LEAST_S["rollout"]
    assert durations.limit_s("rollout", 100, is_idle=True) == LEAST_IDLE_S
    assert durations.limit_s("rollout", 10_000, is_idle=True) == pytest.approx(10.0 * TIMES["rollout"])
