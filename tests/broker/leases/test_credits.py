"""Work goes to the node with the most credits."""

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.broker.leases.credits import CreditBook
from asyncrl.broker.nodes.node import Node


def a_node(name: str, credits_: int, policy_version: int = 0) -> Node:
    node = Node(name, name, "0", "rollout", 0.0)
    node.credit_limit, node.policy_version = credits_, policy_version
    return node


def a_book(*nodes: Node) -> CreditBook:
    book = CreditBook()
    for node in nodes:
        book.update(node)
    return book


def test_the_node_with_most_credits_is_first_and_equals_are_served_in_turn() -> None:
    nodes = [a_node("a", 4), a_node("b", 6), a_node("c", 4)]
    book = a_book(*nodes)

    served = []
    while node := book.most(2):
        served.append(node.peer)
        node.granted += 2
        book.update(node)

    assert served == ["b", "a", "c", "b", "a", "c", "b"]


def test_a_node_with_too_few_credits_or_too_old_a_version_is_passed_over() -> None:
    behind, ahead = a_node("behind", 8, policy_version=2), a_node("ahead", 4, policy_version=3)
    book = a_book(behind, ahead)

    assert book.most(4, min_version=3) is ahead
    assert book.most(5, min_version=3) is None
    assert book.most(5, min_version=2) is behind


def test_a_node_that_left_or_has_no_weights_gets_nothing() -> None:
    book = a_book(a_node("gone", 8), a_node("new", 8, policy_version=-1))

    book.remove("gone")
    book.remove("gone")

    assert book.most(1) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 6)), max_size=30), st.integers(1, 6))
def test_the_answer_is_always_a_node_with_the_most_credits(changes: list[tuple[int, int]], at_least: int) -> None:
    nodes = [a_node(str(i), 0) for i in range(6)]
    book = a_book(*nodes)
    for place, limit in changes:
        nodes[place].credit_limit = max(limit, 0)
        book.update(nodes[place])

    best = max(node.credits for node in nodes)
    found = book.most(at_least)

    assert (found.credits if found else None) == (best if best >= at_least else None)
