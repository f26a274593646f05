import math

from asyncrl.broker.leases.durations import LEAST_KNOWN, LEAST_S, RECENT, TIMES, Durations


def test_nothing_is_overdue_before_much_is_known() -> None:
    durations = Durations()
    for _ in range(LEAST_KNOWN - 1):
        durations.took("reward", 1.0)
    assert durations.limit_s("reward") == math.inf
    durations.took("reward", 1.0)
    assert durations.limit_s("reward") == LEAST_S
    assert durations.limit_s("rollout") == math.inf


def test_the_limit_follows_the_longest_of_the_last_pieces_of_work() -> None:
    durations = Durations()
    durations.took("rollout", 30.0)
    for _ in range(RECENT - 1):
        durations.took("rollout", 4.0)
    assert durations.limit_s("rollout") == 30.0 * TIMES
    durations.took("rollout", 4.0)
    assert durations.limit_s("rollout") == 4.0 * TIMES
