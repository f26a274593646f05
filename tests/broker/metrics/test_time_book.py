"""Seconds of a node add up to the time that it was connected, and idle ones have a cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.metrics.time_book import FORGET_S, TimeBook
from asyncrl.broker.nodes.node import Node
from asyncrl.messages.session import Beat
from asyncrl.messages.words import Role

CAUSES: dict[Role, str] = {
    "rollout": "waiting for the trainer",
    "reward": "waiting for sampling",
    "trainer": "waiting for grading",
}


def a_node(name: str = "rollout-0", incarnation: str = "1") -> Node:
    node = Node(f"{name}.{incarnation}", name, incarnation, "rollout", 0.0)
    node.is_ready = True
    return node


def seconds_of(book: TimeBook, now_s: float, name: str = "rollout-0") -> dict[str, float]:
    return book.take(now_s)[1][name].seconds


def test_idle_seconds_are_those_of_what_was_waited_for_meanwhile() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    book.tick(1.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 2.0, "idle": 2.0}, tokens=7)
    book.tick(4.0, [node], CAUSES | {"rollout": "waiting for grading"})

    span_s, nodes = book.take(4.0)
    assert span_s == 4.0
    assert nodes["rollout-0"].seconds == {
        "sampling": 2.0,
        "waiting for the trainer": 0.5,
        "waiting for grading": 1.5,
    }
    assert nodes["rollout-0"].tokens == 7


def test_busy_cores_are_a_mean_over_the_heartbeats() -> None:
    book, node = TimeBook(0.0), a_node()
    for sampled_s, busy in ((0.0, 0.0), (3.0, 1.0), (4.0, 0.2)):
        node.beat = Beat(seconds={"sampling": sampled_s}, cores_busy=busy)
        book.tick(sampled_s, [node], CAUSES)
    assert book.take(4.0)[1]["rollout-0"].cores_busy == pytest.approx(0.8)


def test_a_node_that_has_no_role_yet_is_loading() -> None:
    book, node = TimeBook(0.0), a_node()
    node.is_ready = False
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat()
    book.tick(3.0, [node], CAUSES)
    assert seconds_of(book, 3.0) == {"loading": 3.0}


def test_a_node_that_was_sampling_before_this_session_brings_nothing_of_that_along() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1000.0}, tokens=10**6)
    book.tick(0.5, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1000.5}, tokens=10**6 + 7)
    book.tick(1.0, [node], CAUSES)
    found = book.take(1.0)[1]["rollout-0"]
    assert (found.seconds, found.tokens) == ({"unknown": 0.5, "sampling": 0.5}, 7)


def test_a_lost_node_is_away_until_it_joins_again() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1.0})
    book.tick(1.0, [node], CAUSES)
    book.tick(2.0, [], CAUSES)
    again = a_node(incarnation="2")
    book.tick(4.0, [again], CAUSES)
    again.beat = Beat(seconds={"sampling": 1.0})
    book.tick(5.0, [again], CAUSES)
    assert seconds_of(book, 5.0) == {"sampling": 2.0, "away": 3.0}


def test_a_drained_node_is_gone_once_the_lines_have_all_of_it() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat, node.is_draining = Beat(seconds={"sampling": 1.0}), True
    book.tick(1.0, [node], CAUSES)
    book.tick(2.0, [], CAUSES)
    assert seconds_of(book, 2.0) == {"sampling": 1.0}
    book.tick(3.0, [], CAUSES)
    assert book.take(3.0)[1] == {}


def test_a_node_that_leaves_on_purpose_between_two_ticks_is_not_away() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1.0})
    book.tick(1.0, [node], CAUSES)
    book.left("rollout-0")
    book.left("a supervisor")
    book.tick(2.0, [], CAUSES)
    assert seconds_of(book, 2.0) == {"sampling": 1.0}
    book.tick(3.0, [], CAUSES)
    assert book.take(3.0)[1] == {}


def test_a_lost_node_that_does_not_come_back_is_forgotten_once_the_lines_have_all_of_it() -> None:
    book = TimeBook(0.0)
    book.tick(0.0, [a_node()], CAUSES)
    book.tick(FORGET_S, [], CAUSES)
    book.tick(2 * FORGET_S, [], CAUSES)
    assert seconds_of(book, 2 * FORGET_S) == {"away": 2 * FORGET_S}
    book.tick(2 * FORGET_S + 1.0, [], CAUSES)
    assert book.take(2 * FORGET_S + 1.0)[1] == {}


def test_nodes_that_were_forgotten_do_not_make_lines_rare() -> None:
    book = TimeBook(0.0)
    book.tick(0.0, [a_node(str(n)) for n in range(1000)], CAUSES)
    now_s = 2 * FORGET_S
    for passed_s in (0.0, now_s, now_s + 1.0):
        book.tick(passed_s, [a_node()], CAUSES)
        book.take(passed_s)
    book.tick(now_s + 2.0, [a_node()], CAUSES)
    assert book.is_due(now_s + 2.0)


def test_supervisors_and_spools_have_no_times() -> None:
    book, supervisor = TimeBook(0.0), Node("s.1", "s", "1", "supervisor", 0.0)
    book.tick(0.0, [supervisor], CAUSES)
    supervisor.beat = Beat()
    book.tick(1.0, [supervisor], CAUSES)
    assert book.take(1.0) == (1.0, {})


def test_few_nodes_have_a_line_for_each_step_and_many_one_from_time_to_time() -> None:
    few, many = TimeBook(0.0), TimeBook(0.0)
    few.tick(0.0, [a_node(str(n)) for n in range(100)], CAUSES)
    many.tick(0.0, [a_node(str(n)) for n in range(1000)], CAUSES)
    assert few.is_due(0.1)
    assert not many.is_due(99.0)
    assert many.is_due(100.0)


@given(st.lists(st.tuples(st.floats(0.05, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=20))
def test_seconds_add_up_to_the_time_between_joining_and_the_last_beat(beats: list[tuple[float, float]]) -> None:
    book, node, now_s, seconds = TimeBook(0.0), a_node(), 0.0, {"sampling": 0.0, "idle": 0.0}
    book.tick(0.0, [node], CAUSES)
    for passed_s, share in beats:
        now_s += passed_s
        seconds = {
            "sampling": seconds["sampling"] + share * passed_s,
            "idle": seconds["idle"] + (1 - share) * passed_s,
        }
        node.beat = Beat(seconds=dict(seconds))  # type: ignore[arg-type]  # both are activities
        book.tick(now_s, [node], CAUSES)
    assert sum(seconds_of(book, now_s).values()) == pytest.approx(now_s)
