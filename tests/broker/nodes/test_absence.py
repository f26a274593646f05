"""Every wait is reported, once."""

import pytest

from asyncrl.broker.nodes.availability import AbsenceBook, Wait

JUDGES = Wait("reward", "12 trajectories")


@pytest.fixture
def book() -> AbsenceBook:
    return AbsenceBook(patience_s=60.0)


def test_a_wait_is_said_once_after_a_minute(book: AbsenceBook) -> None:
    assert book.overdue([JUDGES], 100.0) == []
    assert book.overdue([JUDGES], 159.9) == []
    [(wait, sentence)] = book.overdue([JUDGES], 160.0)

    assert wait.role == "reward"
    assert sentence.startswith("12 trajectories wait, but no reward node has been connected for 60 s: ")
    assert book.overdue([JUDGES], 1000.0) == []


def test_machines_that_wait_for_others_are_named(book: AbsenceBook) -> None:
    waiting = Wait("trainer", "8 groups in the window", "only 1 of the trainer's 2 machines are there (a)")
    book.overdue([waiting], 0.0)
    [(_, sentence)] = book.overdue([waiting], 60.0)

    assert sentence == (
        "8 groups in the window have waited for 60 s, but only 1 of the trainer's 2 machines are there (a): start the "
        "others, or look at their logs"
    )


def test_a_wait_that_ended_in_time_is_never_said_and_the_next_one_counts_anew(book: AbsenceBook) -> None:
    book.overdue([JUDGES], 0.0)
    book.overdue([], 59.0)
    book.overdue([JUDGES], 60.0)

    assert book.overdue([JUDGES], 119.0) == []
    assert len(book.overdue([JUDGES], 120.0)) == 1


def test_each_episode_and_each_role_is_said(book: AbsenceBook) -> None:
    samplers = Wait("rollout", "4 groups")
    book.overdue([JUDGES, samplers], 0.0)
    assert [wait.role for wait, _ in book.overdue([JUDGES, samplers], 60.0)] == ["reward", "rollout"]

    book.overdue([samplers], 61.0)
    book.overdue([JUDGES, samplers], 62.0)

    assert [wait.role for wait, _ in book.overdue([JUDGES, samplers], 122.0)] == ["reward"]
