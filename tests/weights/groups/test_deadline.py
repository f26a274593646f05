from asyncrl.weights.groups.deadline import SHORTEST_S, Deadline


def test_the_time_left_never_reaches_zero_because_zero_means_no_limit() -> None:
    assert Deadline(0.0).left_s() == SHORTEST_S
    assert 0 < Deadline(100.0).left_s() <= 100.0
