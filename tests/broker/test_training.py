"""Training groups: admitted into the window, replaced when dropped, taken once, closed by the second checkpoint."""

import pytest

from asyncrl.broker.failures import FailureBook
from asyncrl.broker.groups.admission import Window
from asyncrl.broker.groups.group import Group, GroupBook
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.ledger.records import Admitted, Committed, Dropped, Taken
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.training import TrainingGroups
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.errors import RunFailed
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import SpoolRef, Trim
from asyncrl.messages.trainer import Batch, Commit, Take
from asyncrl.messages.trajectory import TrajectorySummary
from asyncrl.messages.wire import PROTOCOL
from tests.broker.driver import Prompts, a_config

SUMMARY = TrajectorySummary(8, 4, 0, 0, 1, "stop")


class Desk:
    """Training groups of a run of three steps, one group of two trajectories each, with a window of two."""

    def __init__(self) -> None:
        self.config = a_config(run={"steps": 3}, schedule={"groups_per_step": 1, "group_size": 2, "staleness": 1.0})
        self.groups, self.out, self.window = GroupBook(), Outbox(), Window(self.config.schedule.window)
        nodes = NodeBook()
        nodes.join("spool.0", Hello(PROTOCOL, "spool", "spool", "0"), 0.0)
        evaluation = EvaluationBook(Evaluation(), [], 3, self.groups)
        self.spools = SpoolBook(60.0)
        dispatcher = Dispatcher(self.config, self.groups, evaluation, self.spools, out=self.out, broker_term=1)
        self.failures = FailureBook()
        self.training = TrainingGroups(
            self.config,
            Prompts(),  # type: ignore[arg-type]
            self.groups,
            self.window,
            dispatcher=dispatcher,
            grading=GradeBook(),
            spools=self.spools,
            nodes=nodes,
            out=self.out,
            failures=self.failures,
            faults=FaultBook(),
        )

    def complete(self, group_id: int) -> Group:
        """Store and reward both trajectories of a group, in the segment of its id."""
        group = self.groups.train[group_id]
        for slot in group.slots:
            slot.store(SpoolRef("spool", group_id, 0, 8, 0), SUMMARY)
            slot.score(1.0, {})
            self.training.rewarded(group)
        return group

    def take(self, step: int, peer: str = "t.0") -> None:
        self.training.take(Take(step), Node(peer, "t", peer[2:], "trainer", 0.0), 0.0)

    def train(self, step: int) -> None:
        """Complete, take and commit group ``step``, and make its version live."""
        self.training.advance(step)
        self.complete(step)
        self.take(step)
        self.training.answer_take(step)
        self.training.commit(Commit(step, f"step_{step + 1:06d}"))
        self.window.live(step + 1)


def test_groups_are_admitted_once_a_version_is_live_up_to_the_window() -> None:
    desk = Desk()
    desk.training.advance(-1)
    assert desk.out.drain()[1] == []

    desk.training.advance(0)
    desk.training.advance(0)

    assert [type(record) for record in desk.out.drain()[1]] == [Admitted, Admitted]
    assert set(desk.groups.train) == {0, 1}


def test_a_dropped_group_is_replaced() -> None:
    desk = Desk()
    desk.training.advance(0)
    desk.training.give_up(desk.groups.train[0], "rollout: out of memory")
    desk.training.advance(0)

    records = desk.out.drain()[1]
    assert records[2] == Dropped(0, "rollout: out of memory", 0)
    assert set(desk.groups.train) == {1, 2}
    assert (desk.training.admission.num_needed, desk.training.num_failed) == (1, 1)


def test_a_trainer_has_computed_the_steps_from_its_first_take_on() -> None:
    desk = Desk()
    assert not desk.training.has_computed(0, "t.0")
    for step in (7, 8):
        desk.take(step, "t.1")
    assert [desk.training.has_computed(step, "t.1") for step in (6, 7, 8)] == [False, True, True]
    assert not desk.training.has_computed(8, "t.0")
    desk.take(5, "t.2")
    assert desk.training.has_computed(5, "t.2")


def test_a_take_waits_for_its_groups_and_is_forgotten_with_its_trainer() -> None:
    desk = Desk()
    desk.training.advance(0)
    desk.take(0)
    desk.training.answer_take(0)
    assert desk.out.drain()[0] == []

    desk.training.trainer_left()
    group = desk.complete(0)
    desk.training.answer_take(0)
    assert desk.out.drain()[0] == []

    for _ in range(2):
        desk.take(0, "t.1")
        desk.training.answer_take(0)
    outbox, records, _ = desk.out.drain()
    batch = Batch(0, [slot.scored_trajectory() for slot in group.slots], lr=desk.config.trainer.lr)
    assert [(o.peer, o.message, o.once_durable) for o in outbox] == [("t.1", batch, True)] * 2
    assert records == [Taken(0, [0])]


def test_groups_close_with_the_checkpoint_after_their_own() -> None:
    desk = Desk()
    desk.train(0)
    assert 0 in desk.groups.train
    desk.out.drain()

    desk.train(1)

    outbox, records, events = desk.out.drain()
    assert 0 not in desk.groups.train
    assert events[-1].fields == {"step": 1, "steps": 2, "path": "step_000002"}
    assert [o.message for o in outbox if isinstance(o.message, Trim)] == [Trim(1)]
    assert Committed(1, "step_000002") in records
    desk.training.commit(Commit(1, "step_000002"))
    assert desk.out.drain() == ([], [], []), "a resumed trainer repeats its checkpoint"
    desk.take(0)
    with pytest.raises(RunFailed, match="asks for step 1, whose payloads are gone"):
        desk.training.answer_take(1)
