"""Which machines of a trainer train together, which is the first, and whom they wait for."""

import pytest

from asyncrl.broker.nodes.machines import MachineBook
from asyncrl.broker.nodes.node import Node
from asyncrl.config.sections.trainer import Trainer


def machine(name: str, incarnation: str = "0") -> Node:
    return Node(f"{name}.{incarnation}", name, incarnation, "machine", 0.0, host=f"host-{name}")


@pytest.fixture
def book() -> MachineBook:
    """Three machines of two ranks, of which two may go on after 60 s."""
    return MachineBook(Trainer(nodes=3, ranks=2, min_nodes=2, wait_s=60.0))


def names(members: list[Node]) -> list[str]:
    return [node.name for node in members]


def test_a_trainer_of_one_machine_uses_no_groups() -> None:
    assert not MachineBook(Trainer()).are_used


def test_all_machines_train_together_in_the_order_of_joining(book: MachineBook) -> None:
    for name in "cab":
        assert book.form(0.0) == []
        book.joined(machine(name), 0.0)

    assert names(book.form(0.0)) == ["c", "a", "b"]
    assert book.num_groups == 1
    assert book.form(1000.0) == [], "there is a group"


def test_the_loss_of_a_member_ends_the_group_for_all_others(book: MachineBook) -> None:
    a, b, c = nodes = [machine(name) for name in "abc"]
    for node in nodes:
        book.joined(node, 0.0)
    book.form(0.0)

    assert book.left(b, 1.0) == [a, c]
    assert book.left(a, 1.0) == []
    assert book.names() == []


def test_the_first_machine_is_first_again_if_it_comes_back(book: MachineBook) -> None:
    nodes = [machine(name) for name in "abc"]
    for node in nodes:
        book.joined(node, 0.0)
    book.form(0.0)
    book.left(nodes[0], 1.0)
    for name in "cba":
        book.joined(machine(name, "1"), 2.0)

    assert names(book.form(2.0)) == ["a", "c", "b"]


def test_enough_machines_go_on_without_the_missing_ones_after_the_wait(book: MachineBook) -> None:
    book.joined(machine("a"), 0.0)
    assert book.form(1000.0) == [], "one is not enough"
    book.joined(machine("b"), 1000.0)

    assert book.form(1059.9) == []
    assert names(book.form(1060.0)) == ["a", "b"]


def test_the_wait_begins_anew_when_too_few_are_left(book: MachineBook) -> None:
    b = machine("b")
    book.joined(machine("a"), 0.0)
    book.joined(b, 0.0)
    book.left(b, 50.0)
    book.joined(machine("b", "1"), 55.0)

    assert book.form(114.9) == []
    assert names(book.form(115.0)) == ["a", "b"]


def test_all_machines_are_waited_for_without_min_nodes() -> None:
    book = MachineBook(Trainer(nodes=2))
    book.joined(machine("a"), 0.0)
    assert book.form(1e9) == []


def test_a_missing_machine_that_comes_is_known_until_the_group_is_complete(book: MachineBook) -> None:
    book.joined(machine("a"), 0.0)
    book.joined(machine("b"), 0.0)
    book.form(60.0)
    book.joined(machine("c"), 61.0)
    before = book.is_incomplete
    for member in book.disband(62.0):
        book.joined(machine(member.name, "1"), 62.0)

    assert names(book.form(62.0)) == ["a", "c", "b"]
    assert (before, book.is_incomplete) == (True, False)


def test_those_that_wait_when_a_group_ends_wait_for_its_members() -> None:
    book = MachineBook(Trainer(nodes=2, min_nodes=1, wait_s=60.0))
    book.joined(machine("a"), 0.0)
    book.form(60.0)
    book.joined(machine("b"), 61.0)
    book.disband(500.0)

    assert book.form(500.0) == []
    book.joined(machine("a", "1"), 501.0)
    assert names(book.form(501.0)) == ["a", "b"]


def test_one_machine_too_many_is_refused_unless_it_takes_the_place_of_its_earlier_start(book: MachineBook) -> None:
    for name in "abc":
        book.joined(machine(name), 0.0)
    book.form(0.0)

    assert book.refusal("d") == "this run has its 3 trainer machines already (trainer.nodes): a, b, c"
    assert book.refusal("b") == ""


def test_a_member_is_described_by_name_host_and_ranks(book: MachineBook) -> None:
    nodes = [machine(name) for name in "abc"]
    for node in nodes:
        book.joined(node, 0.0)
    assert book.missing() == "only 3 of the trainer's 3 machines (trainer.nodes) are there (a, b, c)"
    book.form(0.0)

    assert book.describe(nodes[1]) == "b on host-b (ranks 2 to 3)"
    assert book.describe(machine("d")) == "d"
    assert book.missing() == ""
