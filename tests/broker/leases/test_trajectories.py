"""Each result, reward and failure of a trajectory counts once, and only for its own lease or grading."""

from msgspec.structs import replace

from asyncrl.broker.groups.book import GroupBook
from asyncrl.broker.groups.group import Group, State
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.leases.trajectories import Trajectories
from asyncrl.broker.ledger.records import Duplicate, FailedAttempt, Reissued, Result, Rewarded
from asyncrl.broker.nodes.node import Node
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.config.sections import Evaluation
from asyncrl.messages import (
    Failed,
    Grade,
    GradeItem,
    Leased,
    Prompt,
    ScoredItem,
    Settled,
    SpoolRef,
    Stored,
    StoredItem,
    TrajectorySummary,
    Unit,
)
from tests.broker.driver import a_config

REF = SpoolRef("spool", 0, 64, 100, 7)
STOPPED = StoredItem(Unit(0, 0), 5, REF, TrajectorySummary(8, 4, 0, 0, 1, "stop"))


class Desk:
    """Group 0 of two trajectories, both leased with id 5, and a reward node with two credits."""

    def __init__(self) -> None:
        groups, self.out, config = GroupBook(), Outbox(), a_config(schedule={"max_attempts": 2})
        evaluation = EvaluationBook(Evaluation(), [], 4, groups)
        self.group = Group(0, Prompt(text="?"), 2, min_version=0)
        groups.add(self.group)
        self.trajectories = Trajectories(
            config, groups, Dispatcher(config, groups, evaluation, self.out, 1), GradeBook(), self.out
        )
        self.judge = Node("r.0", "r", "0", "reward", 0.0, credit_limit=2)
        self.trajectories.credits.update(self.judge)
        for slot in self.group.slots:
            slot.lease(5)

    def graded(self) -> GradeItem:
        """Store trajectory 0 and send it to the reward node."""
        self.trajectories.stored(Stored("a", "0", [STOPPED]))
        self.trajectories.grade()
        ((_, grade),) = [(o.peer, o.message) for o in self.out.drain()[0] if isinstance(o.message, Grade)]
        (item,) = grade.items
        return item


def test_every_report_is_settled_and_the_first_result_counts() -> None:
    desk = Desk()
    unfinished = replace(STOPPED, unit=Unit(0, 1), summary=replace(STOPPED.summary, finish_reason="unfinished"))

    desk.trajectories.stored(Stored("a", "0", [STOPPED, unfinished]))
    desk.trajectories.stored(Stored("b", "0", [replace(STOPPED, lease_id=9)]))

    outbox, records, _ = desk.out.drain()
    assert [(o.peer, o.message, o.once_durable) for o in outbox] == [
        ("a.0", Settled([Leased(Unit(0, 0), 5)], [Leased(Unit(0, 1), 5)]), True),
        ("b.0", Settled([Leased(Unit(0, 0), 9)]), True),
    ]
    assert [type(record).__name__ for record in records] == ["Progressed", "Result", "Duplicate"]
    assert records[1:] == [Result(Unit(0, 0), 5, REF, STOPPED.summary), Duplicate(Unit(0, 0), 9, 8)]
    assert [slot.state for slot in desk.group.slots] == [State.STORED, State.LEASED]


def test_a_reward_counts_once_and_only_for_its_own_grading() -> None:
    desk = Desk()
    item = desk.graded()
    reward = ScoredItem(Unit(0, 0), 0.5, {}, item.lease_id, "42")

    assert desk.trajectories.rewarded(replace(reward, lease_id=item.lease_id + 1)) is None
    assert desk.trajectories.rewarded(reward) is desk.group
    assert desk.trajectories.rewarded(reward) is None

    assert desk.out.drain()[1] == [Rewarded(Unit(0, 0), 0.5)]
    assert (desk.group.slots[0].reward, desk.group.slots[0].answer) == (0.5, "42")


def test_a_failed_grading_is_repeated_until_the_last_attempt() -> None:
    desk = Desk()
    failed = Failed(Unit(0, 0), desk.graded().lease_id, "reward", "the verifier raised", True)
    assert desk.trajectories.failed(failed) == ""
    desk.trajectories.grade()
    again = desk.group.slots[0].lease_id
    assert again > failed.lease_id

    assert desk.trajectories.failed(replace(failed, lease_id=again)) == "reward: the verifier raised"

    assert desk.judge.credits == 0
    assert [(r.attempts, r.is_final) for r in desk.out.drain()[1] if isinstance(r, FailedAttempt)] == [
        (1, False),
        (2, True),
    ]


def test_a_failed_generation_is_leased_again_and_a_late_failure_is_ignored() -> None:
    desk = Desk()
    failed = Failed(Unit(0, 1), 5, "rollout", "out of memory", True)

    assert desk.trajectories.failed(failed) == ""
    assert desk.trajectories.failed(failed) == ""

    records = desk.out.drain()[1]
    assert [type(record) for record in records] == [FailedAttempt, Reissued]
    assert desk.group.indices(State.MISSING) == [1]


def test_a_lost_reward_node_gives_its_trajectories_back() -> None:
    desk = Desk()
    first = desk.graded()
    desk.trajectories.revoke("r.0")
    desk.trajectories.grade()
    assert desk.out.drain()[0] == [], "no node is left"

    desk.trajectories.credits.update(Node("s.0", "s", "0", "reward", 0.0, credit_limit=1))
    desk.trajectories.grade()

    ((peer, grade),) = [(o.peer, o.message) for o in desk.out.drain()[0]]
    assert isinstance(grade, Grade)
    assert (peer, grade.items[0].unit) == ("s.0", Unit(0, 0))
    assert grade.items[0].lease_id > first.lease_id
