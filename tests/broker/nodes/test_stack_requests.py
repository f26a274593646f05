from asyncrl.broker.nodes.node import NodeBook
from asyncrl.broker.nodes.stack_requests import StackRequests
from asyncrl.messages.session import Hello
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role


def a_book(**roles: Role) -> NodeBook:
    book = NodeBook()
    for name, role in roles.items():
        book.join(f"{name}.0", Hello(PROTOCOL, role, name, "0"), 0.0)
    return book


def test_each_asker_is_answered_once() -> None:
    book, requests = a_book(a="rollout"), StackRequests()
    node = requests.ask("a", "op-1.0", book)
    assert node is book.get("a.0")
    for asker in ("op-2.0", "op-1.0"):
        requests.ask("a", asker, book)
    assert requests.answered("a.0") == ["op-1.0", "op-2.0"]
    assert requests.answered("a.0") == []


def test_a_wrong_name_is_answered_with_those_there_are() -> None:
    requests = StackRequests()
    assert requests.ask("b", "op.0", a_book(a="rollout", r="reward", op="supervisor")) == (
        "there is no node b; those that can be asked are: broker, a, r"
    )
    assert requests.ask("b", "op.0", a_book()) == "there is no node b; those that can be asked are: broker"
    assert requests.ask("op", "op.0", a_book(op="supervisor")) == (
        "op is a supervisor: only rollouts, reward nodes, the trainer and the broker answer"
    )
