"""Which machines of a trainer train together, which is the first, and whom they wait for."""

import pytest

from asyncrl.broker.nodes.machines import Disbandment, MachineBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Event, Outbox
from asyncrl.config.sections.trainer import Trainer
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Drain, Hello, Stop
from asyncrl.messages.trainer import Assembled, Disbanded, TrainerMachine
from asyncrl.messages.wire import PROTOCOL


class Site:
    """Machines that come and go; time passes by hand."""

    def __init__(self, trainer: Trainer) -> None:
        self.nodes, self.out = NodeBook(), Outbox()
        self.book = MachineBook(trainer, self.nodes, self.out)

    def come(self, names: str, now_s: float = 0.0, incarnation: str = "0") -> list[Node]:
        """A machine for each letter of ``names``."""
        found = []
        for name in names:
            hello = Hello(PROTOCOL, "trainer", name, incarnation, host=f"host-{name}")
            node = self.nodes.join(f"{name}.{incarnation}", hello, now_s, "machine")
            self.book.joined(node, now_s)
            found.append(node)
        return found

    def go(self, node: Node, now_s: float, *, is_over: bool = False) -> list[str]:
        """A machine is lost, and those whose group ends with it leave too. Returns the names of these."""
        self.nodes.leave(node.peer)
        return self.end(self.book.departed(node, "was lost: silent", now_s, is_over=is_over))

    def end(self, ended: Disbandment | None) -> list[str]:
        """Remove the members of a group that has ended. Returns their names."""
        members = ended.members if ended else []
        for node in members:
            self.nodes.leave(node.peer)
            assert self.book.departed(node, "", 0.0) is None
        return names(members)

    def told(self) -> tuple[list[tuple[str, Message]], list[Event]]:
        messages, _, events = self.out.drain()
        return [(outgoing.peer, outgoing.message) for outgoing in messages], events


@pytest.fixture
def site() -> Site:
    """Three machines of two ranks, of which two may go on after 60 s."""
    return Site(Trainer(nodes=3, ranks=2, min_nodes=2, wait_s=60.0))


def names(members: list[Node]) -> list[str]:
    return [node.name for node in members]


def test_a_trainer_of_one_machine_uses_no_groups() -> None:
    assert not Site(Trainer()).book.are_used


def test_all_machines_train_together_in_the_order_of_joining(site: Site) -> None:
    for name in "cab":
        assert site.book.advance(0.0) == []
        site.come(name)

    assert names(site.book.advance(0.0)) == ["c", "a", "b"]
    assert site.book.num_groups == 1
    assert site.book.advance(1000.0) == [], "there is a group"


def test_the_first_machine_becomes_the_trainer_and_each_learns_who_the_others_are(site: Site) -> None:
    a, b, c = site.come("abc")
    site.book.advance(0.0)

    messages, events = site.told()
    assert (a.role, b.role, c.role) == ("trainer", "machine", "machine")
    assert site.nodes.trainer() is a
    assert [peer for peer, _ in messages] == ["a.0", "b.0", "c.0"]
    machines = [TrainerMachine(name, f"host-{name}") for name in "abc"]
    assert [message for _, message in messages] == [Assembled(1, machines)] * 3
    assert [(event.kind, event.fields["group"]) for event in events] == [("trainer.assembled", 1)]


def test_the_loss_of_a_member_ends_the_group_for_all_others(site: Site) -> None:
    _, b, _ = site.come("abc")
    site.book.advance(0.0)
    site.told()

    assert site.go(b, 1.0) == ["a", "c"]
    assert site.book.names() == []
    reason = "b on host-b (ranks 2 to 3) was lost: silent"
    messages, events = site.told()
    assert messages == [("a.0", Disbanded(reason)), ("c.0", Disbanded(reason))]
    assert [(event.kind, event.fields) for event in events] == [("trainer.disbanded", {"cause": reason})]


def test_members_stop_if_the_run_is_over(site: Site) -> None:
    _, b, _ = site.come("abc")
    site.book.advance(0.0)
    site.told()

    assert site.go(b, 1.0, is_over=True) == ["a", "c"]
    messages, events = site.told()
    assert [type(message) for _, message in messages] == [Stop, Stop]
    assert events == []


def test_the_trainer_saves_its_steps_before_a_member_stops(site: Site) -> None:
    a, b, _ = site.come("abc")
    site.book.advance(0.0)
    site.told()

    b.is_draining = True
    assert site.book.draining(b, 1.0) is None
    assert site.told()[0] == [("a.0", Drain("b"))]
    ended = site.book.draining(a, 2.0)
    assert ended is not None
    assert ended.reason == "b on host-b (ranks 2 to 3) is to stop, and a checkpoint has just been written"
    assert site.end(ended) == ["a", "b", "c"]


def test_the_first_machine_is_first_again_if_it_comes_back(site: Site) -> None:
    a, *_ = site.come("abc")
    site.book.advance(0.0)
    site.go(a, 1.0)
    site.come("cba", 2.0, "1")

    assert names(site.book.advance(2.0)) == ["a", "c", "b"]


def test_enough_machines_go_on_without_the_missing_ones_after_the_wait(site: Site) -> None:
    site.come("a")
    assert site.book.advance(1000.0) == [], "one is not enough"
    site.come("b", 1000.0)

    assert site.book.advance(1059.9) == []
    assert names(site.book.advance(1060.0)) == ["a", "b"]


def test_the_wait_begins_anew_when_too_few_are_left(site: Site) -> None:
    _, b = site.come("ab")
    site.go(b, 50.0)
    site.come("b", 55.0, "1")

    assert site.book.advance(114.9) == []
    assert names(site.book.advance(115.0)) == ["a", "b"]


def test_all_machines_are_waited_for_without_min_nodes() -> None:
    site = Site(Trainer(nodes=2))
    site.come("a")
    assert site.book.advance(1e9) == []


def test_a_missing_machine_that_comes_is_taken_in_after_a_checkpoint(site: Site) -> None:
    site.come("ab")
    site.book.advance(60.0)
    assert site.book.committed(60.5) is None
    site.come("c", 61.0)

    ended = site.book.committed(62.0)
    assert ended is not None
    assert ended.reason == "a missing machine of the trainer has come, and a checkpoint has just been written"
    assert site.end(ended) == ["a", "b"]
    site.come("ab", 62.0, "1")
    assert names(site.book.advance(62.0)) == ["a", "c", "b"]
    assert site.book.committed(63.0) is None, "nobody is missing"


def test_those_that_wait_when_a_group_ends_wait_for_its_members() -> None:
    site = Site(Trainer(nodes=2, min_nodes=1, wait_s=60.0))
    site.come("a")
    site.book.advance(60.0)
    site.come("b", 61.0)
    site.end(site.book.committed(500.0))

    assert site.book.advance(500.0) == []
    site.come("a", 501.0, "1")
    assert names(site.book.advance(501.0)) == ["a", "b"]


def test_one_machine_too_many_is_refused_unless_it_takes_the_place_of_its_earlier_start(site: Site) -> None:
    site.come("abc")
    site.book.advance(0.0)

    assert site.book.refusal("d") == "this run has its 3 trainer machines already (trainer.nodes): a, b, c"
    assert site.book.refusal("b") == ""


def test_a_member_is_described_by_name_host_and_ranks(site: Site) -> None:
    _, b, _ = site.come("abc")
    assert site.book.missing() == "only 3 of the trainer's 3 machines (trainer.nodes) are there (a, b, c)"
    site.book.advance(0.0)
    (d,) = site.come("d")

    assert site.book.describe(b) == "b on host-b (ranks 2 to 3)"
    assert site.book.describe(d) == "d"
    assert site.book.missing() == ""
