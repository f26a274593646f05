from asyncrl.weights.groups.deadline import SHORTEST_S, Deadline


def test_the_time_left_never_reaches_zero_because_zero_means_no_limit() -> None:
    assert Deadline(0.0).left_s() == SHORTEST_S
    assert 0 < Deadline(100.0).left_s() <= 100.0


def test_a_deadline_that_was_expired_has_passed_long_before_its_time() -> None:
    deadline = Deadline(100.0)
    assert deadline.left_s() > SHORTEST_S
    deadline.expire()
    assert deadline.has_passed
    assert deadline.left_s() == SHORTEST_S
    assert Deadline(0.0).has_passed
