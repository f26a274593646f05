"""Trajectories in a spool that is away are waited for, and sampled again once it is lost."""

from typing import Any

from asyncrl.broker.failures import FailureBook
from asyncrl.broker.groups.admission import Window
from asyncrl.broker.groups.group import Group, GroupBook, SlotState
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import Refused, Restarted, Taken
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spool_loss import JOINS_S, SpoolLoss
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.rollout import Lease
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import SpoolAddress, SpoolRef, Spools, SpoolSet
from asyncrl.messages.trainer import Batch, Take
from asyncrl.messages.trajectory import Prompt, TrajectorySummary
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import Prompts, a_config

SUMMARY = TrajectorySummary(8, 4, 0, 0, 1, "stop")
TTL_S = 60.0
A, B = SpoolAddress("a", "tcp://a:1"), SpoolAddress("b", "tcp://b:1")
TRAINER = Node("t.0", "t", "0", "trainer", 0.0)


class Desk:
    """The books of a broker with the spools a and b, and two groups of two trajectories in the window."""

    def __init__(self) -> None:
        config = a_config(run={"steps": 4}, schedule={"groups_per_step": 1, "group_size": 2, "staleness": 1.0})
        self.groups, self.out, self.grading, self.nodes = GroupBook(), Outbox(), GradeBook(), NodeBook()
        self.spools = SpoolBook(TTL_S)
        evaluation = EvaluationBook(Evaluation(), [], 4, self.groups)
        self.dispatcher = Dispatcher(config, self.groups, evaluation, self.spools, out=self.out, broker_term=1)
        prompts: Any = Prompts()
        common: Any = {"dispatcher": self.dispatcher, "grading": self.grading, "nodes": self.nodes, "out": self.out}
        self.training = TrainingGroups(
            config,
            prompts,
            self.groups,
            Window(config.schedule.window),
            spools=self.spools,
            failures=FailureBook(),
            faults=FaultBook(),
            **common,
        )
        self.loss = SpoolLoss(self.spools, self.groups, training=self.training, ttl_s=TTL_S, **common)
        self.loss.joined(A)
        self.loss.joined(B)
        self.training.advance(0)
        self.out.drain()

    def store(self, group: Group, *spools: str, scored: bool = True) -> None:
        for index, (slot, spool) in enumerate(zip(group.slots, spools, strict=True)):
            slot.store(SpoolRef(spool, 0, 16 * (index + 1), 8, 0), SUMMARY)
            if scored:
                slot.score(float(index), {})
                self.training.rewarded(group)
            else:
                self.grading.add(slot)

    def take(self, step: int) -> list[Any]:
        """Ask for the batch of a step. Returns the messages that answer."""
        self.training.take(Take(step), TRAINER, 0.0)
        self.training.answer_take(0)
        return [one.message for one in self.out.drain()[0]]

    def events(self) -> dict[str, dict[str, Any]]:
        return {event.kind: event.fields for event in self.out.drain()[2]}


def test_a_step_waits_for_a_spool_that_is_away_and_gets_its_groups_when_it_is_back() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "b", "a")
    desk.loss.departed("a", 0.0)
    assert desk.events() == {"spool.away": {"spool": "a", "trajectories": 1, "waits_s": TTL_S}}
    assert desk.take(0) == []

    desk.loss.joined(A)
    assert desk.events() == {"spool.back": {"spool": "a"}}
    (batch,) = desk.take(0)
    assert isinstance(batch, Batch)


def test_a_note_says_since_when_a_spool_is_away_and_what_the_run_waits_for() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "b", "a")
    desk.loss.departed("a", 0.0)
    assert desk.loss.notes(12.4) == [
        "a has been away for 12 s: the payloads of 1 group are there; the run waits for it up to 60 s, then samples "
        "them again"
    ]
    desk.loss.departed("b", 20.0)
    assert len(desk.loss.notes(20.0)) == 2
    desk.loss.joined(A)
    desk.loss.joined(B)
    assert desk.loss.notes(21.0) == []


def test_trajectories_in_a_spool_that_is_away_are_graded_once_it_is_back() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "a", "b", scored=False)
    desk.loss.departed("a", 0.0)
    assert [slot.ref.spool for slot in desk.grading.assign("r", 8) if slot.ref] == ["b"]
    assert not desk.grading.waiting

    desk.loss.joined(A)
    assert [slot.ref.spool for slot in desk.grading.assign("r", 8) if slot.ref] == ["a"]


def test_groups_with_a_trajectory_in_a_lost_spool_restart_and_others_go_on() -> None:
    desk = Desk()
    lost, sound = desk.groups.train[0], desk.groups.train[1]
    desk.store(lost, "a", "b")
    desk.store(sound, "b", "b")
    desk.loss.departed("a", 0.0)
    desk.loss.tick(TTL_S - 1, 0)
    assert lost.is_complete

    desk.loss.tick(TTL_S, 0)

    _, records, events = desk.out.drain()
    assert Restarted(0, 0, [8, 8]) in records
    assert (lost.indices(SlotState.MISSING), lost.num_scored, sound.num_scored) == ([0, 1], 0, 2)
    assert events[-1].fields == {
        "spool": "a", "groups_restarted": 1, "groups_taken": 0, "held_out_trajectories": 0
    }  # fmt: skip
    (batch,) = desk.take(0)
    assert {one.unit.group_id for one in batch.trajectories} == {1}


def test_a_group_that_a_step_has_taken_stays_in_it_and_the_event_says_so() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "a", "a")
    desk.training.take(Take(0), TRAINER, 0.0)
    desk.training.answer_take(0)
    desk.loss.departed("a", 0.0)
    desk.loss.tick(TTL_S, 0)

    records, events = desk.out.drain()[1:]
    assert Taken(0, [0]) in records
    assert not any(isinstance(record, Restarted) for record in records)
    assert events[-1].fields["groups_taken"] == 1
    assert isinstance(desk.take(0)[0], Batch), "the trainer, which is told that a is lost, leaves it out of the step"


def test_held_out_trajectories_in_a_lost_spool_are_leased_again_unless_they_have_their_reward() -> None:
    desk = Desk()
    group = Group(0, Prompt(text="?"), 2, min_version=0, split="held_out")
    desk.groups.add(group)
    for slot in group.slots:
        slot.store(SpoolRef("a", 0, 16, 8, 0), SUMMARY)
    group.slots[0].score(1.0, {})
    desk.grading.add(group.slots[1])
    desk.loss.departed("a", 0.0)
    desk.loss.tick(TTL_S, 0)

    refused = [record for record in desk.out.drain()[1] if isinstance(record, Refused)]
    assert [(record.unit, record.reason) for record in refused] == [(group.slots[1].unit, "the spool a is lost")]
    assert [slot.state for slot in group.slots] == [SlotState.SCORED, SlotState.MISSING]
    assert not desk.grading


def test_a_lease_does_without_the_stored_part_of_a_trajectory_while_its_spool_is_away() -> None:
    desk = Desk()
    desk.groups.train[0].slots[0].progress(SpoolRef("a", 0, 16, 8, 0), SUMMARY)
    desk.loss.departed("a", 0.0)
    node = desk.nodes.join("r.0", Hello(PROTOCOL, "rollout", "r", "0"), 0.0)
    node.policy_version, node.credit_limit = 0, 2
    desk.dispatcher.credits.update(node)
    desk.dispatcher.wanted(desk.groups.train[0])
    desk.dispatcher.grant(desk.nodes, 0.0)

    (lease,) = [one.message for one in desk.out.drain()[0] if isinstance(one.message, Lease)]
    assert lease.resume_from == []


def test_every_user_of_spools_is_told_of_a_change_once_and_rollouts_where_to_store() -> None:
    desk = Desk()
    desk.loss.tell()
    desk.out.drain()
    for role, name in (("rollout", "r"), ("reward", "g"), ("trainer", "t"), ("supervisor", "s")):
        desk.nodes.join(f"{name}.0", Hello(PROTOCOL, role, name, "0"), 0.0)  # type: ignore[arg-type]
    desk.spools.assign("r.0")
    desk.loss.departed("a", 0.0)
    desk.loss.tell()
    desk.loss.tell()

    told = {one.peer: one.message for one in desk.out.drain()[0]}
    assert told == {
        "r.0": Spools(SpoolSet([B], "b")),
        "g.0": Spools(SpoolSet([B])),
        "t.0": Spools(SpoolSet([B])),
    }


def test_after_a_restart_every_spool_with_payloads_is_awaited_except_the_hosted_one() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "spool", "c")
    desk.loss.expect(hosted="spool")
    assert desk.take(0) == []
    assert desk.loss.notes(5.0)[0].startswith("c has not joined since the broker's start, 0 s: ")
    desk.loss.joined(SpoolAddress("c", "tcp://c:1"))
    assert isinstance(desk.take(0)[0], Batch)


def test_a_spool_that_joins_soon_after_the_brokers_start_was_not_away() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "c", "c", scored=False)
    desk.loss.expect(hosted="spool")
    desk.loss.tick(100.0, 0)
    desk.loss.tick(100.0 + JOINS_S - 1, 0)
    desk.loss.joined(SpoolAddress("c", "tcp://c:1"))
    desk.loss.tick(100.0 + 2 * TTL_S, 0)
    assert desk.events() == {}
    assert len(desk.grading.assign("r", 8)) == 2


def test_a_spool_that_does_not_join_after_the_brokers_start_is_away_once() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "c", "c")
    desk.loss.expect(hosted="spool")
    desk.loss.tick(0.0, 0)
    desk.loss.tick(JOINS_S, 0)
    assert desk.events() == {"spool.away": {"spool": "c", "trajectories": 2, "waits_s": TTL_S}}
    desk.loss.tick(JOINS_S + 1, 0)
    desk.loss.joined(SpoolAddress("c", "tcp://c:1"))
    assert desk.events() == {"spool.back": {"spool": "c"}}


def test_nobody_waits_for_a_spool_that_leaves_at_the_end_of_the_run() -> None:
    desk = Desk()
    desk.store(desk.groups.train[0], "a", "a")
    desk.loss.departed("a", 0.0, is_over=True)
    assert desk.events() == {}
