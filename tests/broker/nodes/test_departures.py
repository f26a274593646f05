from asyncrl.broker.nodes.departures import DepartureBook
from asyncrl.broker.nodes.node import NodeBook
from asyncrl.messages.session import Hello
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role


def nodes(**roles: Role) -> NodeBook:
    book = NodeBook()
    for name, role in roles.items():
        book.join(f"{name}.0", Hello(PROTOCOL, role, name, "0"), 0.0)
    return book


def test_each_asker_is_answered_once_when_the_node_has_left() -> None:
    book, there = DepartureBook(), nodes(a="rollout", r="reward")
    assert book.ask("a", "operator", there) is there.get("a.0")
    assert book.ask("a", "another", there) is there.get("a.0")

    assert book.left("r.0") == []
    assert book.left("a.0") == ["operator", "another"]
    assert book.left("a.0") == []


def test_a_node_that_cannot_be_drained_is_refused_with_those_that_can() -> None:
    book, there = DepartureBook(), nodes(a="rollout", r="reward", t="trainer")
    assert book.ask("b", "o", there) == "there is no node b; those that can be drained are: a, r"
    assert book.ask("b", "o", nodes()) == "there is no node b; those that can be drained are: none"
    assert book.ask("t", "o", there) == "t is a trainer: only rollouts and reward nodes can be drained"
