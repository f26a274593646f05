"""Work goes to the node with the most credits."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncrl.broker.groups.group import Group, GroupBook, SlotState
from asyncrl.broker.leases.dispatcher import CreditBook, Dispatcher
from asyncrl.broker.ledger.records import Progressed, Reissued
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections.broker import Broker
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Cancelled, Lease, ResumePoint
from asyncrl.messages.session import Held, Hello
from asyncrl.messages.spool import SpoolRef, StoredItem
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import a_config


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
    while node := book.pick_node(2):
        served.append(node.peer)
        node.granted += 2
        book.update(node)

    assert served == ["b", "a", "c", "b", "a", "c", "b"]


def test_a_node_with_too_few_credits_or_too_old_a_version_is_passed_over() -> None:
    behind, ahead = a_node("behind", 8, policy_version=2), a_node("ahead", 4, policy_version=3)
    book = a_book(behind, ahead)

    assert book.pick_node(4, min_version=3) is ahead
    assert book.pick_node(5, min_version=3) is None
    assert book.pick_node(5, min_version=2) is behind


def test_a_node_that_left_or_has_no_weights_gets_nothing() -> None:
    book = a_book(a_node("gone", 8), a_node("new", 8, policy_version=-1))

    book.remove("gone")
    book.remove("gone")

    assert book.pick_node(1) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 6)), max_size=30), st.integers(1, 6))
def test_the_answer_is_always_a_node_with_the_most_credits(changes: list[tuple[int, int]], at_least: int) -> None:
    nodes = [a_node(str(i), 0) for i in range(6)]
    book = a_book(*nodes)
    for place, limit in changes:
        nodes[place].credit_limit = max(limit, 0)
        book.update(nodes[place])

    best = max(node.credits for node in nodes)
    found = book.pick_node(at_least)

    assert (found.credits if found else None) == (best if best >= at_least else None)


# ── test dispatcher ───────────────────────────────────────────────────────────────────────────
# Leases: granted, progressed, lost, failed, cancelled, adopted.

REF = SpoolRef("spool", 3, 64, 100, 7)
SUMMARY = TrajectorySummary(5, 4, 0, 0, 1, "unfinished")
EARLIER, OURS = 1 << 32, 2 << 32
"""High bits of the lease ids of two broker terms."""


class Desk:
    """Dispatcher in broker term 2, with groups of two trajectories."""

    def __init__(self, *, node_ttl_s: float = 10.0) -> None:
        self.config = a_config(broker={"node_ttl_s": node_ttl_s})
        self.groups = GroupBook()
        self.out = Outbox()
        self.nodes = NodeBook(Broker(node_ttl_s=node_ttl_s))
        self.evaluation = EvaluationBook(Evaluation(), [], 4, self.groups)
        self.spools = SpoolBook(60.0)
        self.dispatcher = Dispatcher(
            self.config, self.groups, self.evaluation, self.spools, out=self.out, broker_term=2
        )

    def group(self, group_id: int, min_version: int = 0) -> Group:
        """Open one more group."""
        group = Group(group_id, Prompt(text="?"), 2, min_version=min_version)
        self.groups.add(group)
        self.dispatcher.wanted(group)
        return group

    def node(self, name: str, held: Sequence[Held] = (), credit_limit: int = 8) -> Node:
        """Join a rollout at version 0 with credits."""
        node = self.nodes.join(f"{name}.0", Hello(PROTOCOL, "rollout", name, "0"), 0.0)
        node.policy_version = 0
        node.credit_limit = credit_limit
        self.dispatcher.adopt(node, held, 0.0)
        self.dispatcher.credits.update(node)
        return node

    def grant(self, now_s: float = 0.0) -> list[tuple[str, Any]]:
        self.dispatcher.grant(self.nodes, now_s)
        return self.sent()

    def sent(self) -> list[tuple[str, Message]]:
        return [(outgoing.peer, outgoing.message) for outgoing in self.out.drain()[0]]


def leased(desk: Desk, group_id: int = 0) -> tuple[Group, Node, Lease]:
    """A group leased to the node ``a``."""
    group, node = desk.group(group_id), desk.node("a")
    ((_, lease),) = desk.grant()
    return group, node, lease


def progress(index: int, lease_id: int, num_tokens: int = 5) -> StoredItem:
    return StoredItem(Unit(0, index), lease_id, REF, replace(SUMMARY, num_tokens=num_tokens))


# ── silent ─────────────────────────────────────────────────────────────────────


def test_a_silent_node_that_is_heard_gets_back_what_nobody_has_taken_over() -> None:
    desk = Desk()
    group, node, lease = leased(desk)
    desk.dispatcher.suspend(node)
    _, records, _ = desk.out.drain()
    reissued = [(record.unit, record.cause) for record in records if isinstance(record, Reissued)]
    assert reissued == [(Unit(0, 0), "silent"), (Unit(0, 1), "silent")]
    group.slots[0].lease(lease.lease_id + 1)

    desk.dispatcher.resume(node, 1.0)

    assert group.slots[0].is_leased_by(lease.lease_id + 1)
    assert group.slots[1].is_leased_by(lease.lease_id)
    assert desk.dispatcher.leases.revoke(node.peer)[0].open == (1,)
    assert desk.sent() == []


def test_a_silent_node_that_is_heard_is_told_what_is_not_wanted_any_more() -> None:
    desk = Desk()
    (restarted, node, _), (stored, *_), removed = leased(desk), leased(desk, 1), leased(desk, 2)[0]
    node = desk.nodes.all()[0]
    desk.dispatcher.suspend(node)
    desk.out.drain()
    restarted.restart(1)
    stored.slots[1].store(REF, replace(SUMMARY, finish_reason="stop"))
    desk.groups.remove(removed)

    desk.dispatcher.resume(node, 1.0)

    unwanted = [Unit(0, 0), Unit(0, 1), Unit(1, 1), Unit(2, 0), Unit(2, 1)]
    assert desk.sent() == [(node.peer, Cancelled([], unwanted))]


def test_a_node_that_was_not_silent_long_enough_loses_nothing() -> None:
    desk = Desk()
    group, node, lease = leased(desk)
    desk.dispatcher.resume(node, 1.0)
    assert all(slot.is_leased_by(lease.lease_id) for slot in group.slots)
    assert desk.sent() == []


# ── resumed ────────────────────────────────────────────────────────────────────


def test_the_lease_after_a_loss_resumes_from_the_part_on_disk() -> None:
    desk = Desk()
    group, node, lease = leased(desk)
    assert lease.resume_from == []
    desk.dispatcher.progressed(progress(1, lease.lease_id))
    desk.dispatcher.leases.settle(lease.lease_id, 0)
    group.slots[0].store(REF, replace(SUMMARY, finish_reason="stop"))
    assert desk.dispatcher.revoke(node, "node_lost") == 1
    _, records, _ = desk.out.drain()
    assert records == [
        Progressed(Unit(0, 1), lease.lease_id, REF, SUMMARY),
        Reissued(Unit(0, 1), lease.lease_id, "node_lost"),
    ]

    desk.nodes.leave(node.peer)
    desk.node("b")
    ((peer, again),) = desk.grant()

    assert (peer, again.indices, again.resume_from) == ("b.0", [1], [ResumePoint(1, REF)])
    assert again.seed == lease.seed, "it goes on drawing from where it was"
    assert again.lease_id > lease.lease_id


def test_the_newest_progress_counts() -> None:
    desk = Desk()
    group, _, lease = leased(desk)
    newer = replace(REF, offset=512)
    desk.dispatcher.progressed(progress(0, lease.lease_id))
    desk.dispatcher.progressed(replace(progress(0, lease.lease_id, 9), ref=newer))
    slot = group.slots[0]
    assert slot.summary
    assert (slot.ref, slot.summary.num_tokens, slot.state) == (newer, 9, SlotState.LEASED)


def test_progress_of_a_lease_that_ended_is_left_alone() -> None:
    desk = Desk()
    group, _, lease = leased(desk)
    desk.dispatcher.expire(1000.0)
    desk.dispatcher.progressed(progress(0, lease.lease_id))
    assert group.slots[0].ref is None
    ((_, again),) = desk.grant(1000.0)
    desk.dispatcher.progressed(progress(0, lease.lease_id))
    desk.dispatcher.progressed(progress(0, 77))
    assert group.slots[0].ref is None
    assert again.lease_id != lease.lease_id
    desk.dispatcher.progressed(replace(progress(0, lease.lease_id), unit=Unit(99, 0)))
    assert not [record for record in desk.out.drain()[1] if isinstance(record, Progressed)]


def test_a_failed_trajectory_restarts_and_its_tokens_are_counted() -> None:
    desk = Desk()
    group, _, lease = leased(desk)
    desk.dispatcher.progressed(progress(0, lease.lease_id))
    desk.dispatcher.leases.settle(lease.lease_id, 0)
    desk.dispatcher.failed(group.slots[0], lease.lease_id)
    assert desk.out.drain()[1][-1] == Reissued(Unit(0, 0), lease.lease_id, "failed", 5)
    ((_, again),) = desk.grant()
    assert (again.indices, again.resume_from) == ([0], [])


# ── adopted ─────────────────────────────────────────────────────────────────────────────


def held(group_id: int, index: int, lease_id: int = EARLIER + 5, oldest_version: int = 0) -> Held:
    return Held(Unit(group_id, index), lease_id, oldest_version)


def test_a_node_keeps_the_trajectories_it_still_samples() -> None:
    desk = Desk()
    group = desk.group(0)
    desk.dispatcher.expect({"a"})
    desk.node("b")
    assert desk.grant() == [], "a may hold it"

    node = desk.node("a", [held(0, 0), held(0, 1)])

    assert desk.grant() == []
    assert [slot.lease_id for slot in group.slots] == [EARLIER + 5] * 2
    assert (node.granted, node.credits) == (2, 6)
    (lease,) = desk.dispatcher.leases.revoke("a.0")
    assert (lease.lease_id, lease.open) == (EARLIER + 5, (0, 1))


def test_an_adopted_lease_is_renewed_expires_and_is_lost_like_any_other() -> None:
    desk = Desk()
    group, _ = desk.group(0), desk.node("a", [held(0, 0), held(0, 1)])
    lease_s = desk.config.schedule.lease_s
    desk.dispatcher.leases.renew("a.0", lease_s - 1)
    desk.dispatcher.expire(lease_s + 1)
    assert group.indices(SlotState.LEASED) == [0, 1]
    desk.dispatcher.expire(2 * lease_s)
    assert group.indices(SlotState.MISSING) == [0, 1]


def test_only_what_nobody_holds_is_given_to_others() -> None:
    desk = Desk()
    desk.group(0)
    desk.node("a", [held(0, 0)], credit_limit=1)
    desk.node("b")
    ((peer, lease),) = desk.grant()
    assert (peer, lease.indices) == ("b.0", [1])


def test_unwanted_trajectories_are_cancelled() -> None:
    desk = Desk()
    desk.group(0)
    newer = desk.group(1, min_version=3)
    newer.slots[1].store(REF, SUMMARY)
    items = [held(0, 0), held(7, 0), held(1, 0, oldest_version=2), held(1, 1, oldest_version=3), held(0, 9)]
    items.append(Held(Unit(0, 1, "held_out"), EARLIER + 6, 0))

    node = desk.node("a", items)

    ((peer, cancelled),) = desk.sent()
    assert peer == "a.0"
    assert cancelled == Cancelled([], [item.unit for item in items[1:]])
    assert newer.indices(SlotState.MISSING) == [0], "too old for a group admitted anew"
    assert node.granted == len(items), "each comes back as a credit when the node drops it"


def test_a_trajectory_given_to_another_meanwhile_is_cancelled() -> None:
    desk = Desk()
    group, _, lease = leased(desk)
    desk.node("late", [held(0, 0)])
    assert ("late.0", Cancelled([], [Unit(0, 0)])) in desk.sent()
    assert group.slots[0].is_leased_by(lease.lease_id)


def test_nothing_is_leased_until_all_earlier_rollouts_have_reported() -> None:
    desk = Desk()
    desk.group(0)
    desk.dispatcher.expect({"a", "b"})
    desk.node("a")
    assert desk.grant() == []
    desk.node("b")
    assert len(desk.grant()) == 1


def test_a_rollout_that_never_comes_back_is_waited_for_as_long_as_a_silent_node() -> None:
    desk = Desk(node_ttl_s=3.0)
    desk.group(0)
    desk.dispatcher.expect({"a", "gone"})
    desk.node("a")
    assert desk.grant(now_s=100.0) == []
    assert desk.grant(now_s=102.9) == []
    assert len(desk.grant(now_s=103.0)) == 1
