import pytest

from asyncrl.broker.nodes.faults import LONGEST_PAUSE_S, PAUSE_S, RECENT, FaultBook
from asyncrl.messages.words import Role

NODES: dict[str, Role] = {"a": "reward", "b": "reward", "c": "reward"}


def book_of(others: int = 40, others_faults: int = 0) -> FaultBook:
    """Conduct of two nodes that together tried so often, and failed so often."""
    book = FaultBook()
    for number in range(others):
        name = "bc"[number % 2]
        if number < others_faults:
            book.failed(name, "reward", "no")
        else:
            book.attempted(name, "reward")
    book.suspects.clear()
    return book


def fail(book: FaultBook, times: int, name: str = "a") -> list[str]:
    for _ in range(times):
        book.failed(name, "reward", "it raised")
    return [barred.name for barred in book.judge(NODES, 0.0)]


def test_a_node_that_fails_what_the_others_do_not_is_barred_with_a_sentence() -> None:
    book = book_of()
    assert fail(book, 3) == []
    book.failed("a", "reward", "it raised")
    (barred,) = book.judge(NODES, 0.0)
    assert (barred.name, barred.role, barred.pause_s) == ("a", "reward", PAUSE_S)
    assert barred.cause == (
        "4 of the last 4 attempts of a failed, and 0 of 40 of the other reward nodes; the last one: it raised"
    )
    assert book.is_barred("a")
    assert book.cause("a") == barred.cause
    assert book.cause("b") == ""


def test_what_every_node_fails_is_nobodys_fault() -> None:
    book = book_of(40, others_faults=20)
    assert fail(book, 20) == []


def test_faults_among_many_successes_do_not_bar() -> None:
    book = book_of()
    book.attempted("a", "reward", 28)
    assert fail(book, 4) == []


def test_the_last_node_that_can_work_is_never_barred() -> None:
    book = book_of()
    for _ in range(RECENT):
        book.failed("a", "reward", "no")
    assert book.judge({"a": "reward", "x": "rollout"}, 0.0) == []


@pytest.mark.parametrize(("times", "is_barred"), [(RECENT - 1, False), (RECENT, True)])
def test_before_the_others_have_tried_only_one_without_any_success_is_barred(times: int, is_barred: bool) -> None:
    assert fail(book_of(2), times) == ["a"] * is_barred


def test_each_pause_is_twice_as_long_as_the_last_and_two_faults_on_trial_begin_the_next() -> None:
    book, now_s, pauses = book_of(), 0.0, []
    for _ in range(9):
        while not (barred := book.judge(NODES, now_s)):
            book.failed("a", "reward", "no")
        pauses.append(barred[0].pause_s)
        assert book.ended(NODES, now_s + pauses[-1] - 1) == []
        now_s += pauses[-1]
        assert book.ended(NODES, now_s) == ["a"]
        assert not book.is_barred("a")
    assert pauses == [min(PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(9)]


def test_a_node_that_works_again_for_long_is_as_good_as_new() -> None:
    book = book_of()
    assert fail(book, 4) == ["a"]
    assert book.ended(NODES, PAUSE_S) == ["a"]
    book.attempted("a", "reward", RECENT)
    assert fail(book, 2) == [], "no longer on trial"


def test_a_pause_ends_early_if_the_others_come_to_fail_as_often_or_nobody_else_can_work() -> None:
    book = book_of()
    assert fail(book, 4) == ["a"]
    assert book.ended(NODES, 1.0) == []
    assert book.ended({"x": "rollout"}, 1.0) == ["a"]
    book = book_of()
    assert fail(book, 4) == ["a"]
    for name in "bc" * RECENT:
        book.failed(name, "reward", "no")
    assert book.ended(NODES, 1.0) == ["a"]


def test_many_names_are_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.broker.nodes.faults.MAX_NODES", 4)
    book = book_of()
    assert fail(book, 4) == ["a"]
    for number in range(100):
        book.failed(f"stranger-{number}", "reward", "no")
    assert len(book._conduct) == 4
    assert book.is_barred("a")
    assert book._number["reward"] == sum(conduct.number for conduct in book._conduct.values())
    assert book._faults["reward"] == sum(conduct.num_faults for conduct in book._conduct.values())
