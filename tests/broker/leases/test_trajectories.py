import math

import pytest
from msgspec.structs import replace

from asyncrl.broker.failures import FailureBook
from asyncrl.broker.groups.group import Group, GroupBook, SlotState
from asyncrl.broker.leases.dispatcher import Dispatcher
from asyncrl.broker.leases.grading import GradeBook
from asyncrl.broker.leases.trajectories import (
    LEAST_IDLE_S,
    LEAST_KNOWN,
    LEAST_S,
    RECENT,
    TIMES,
    UNKNOWN_S,
    Durations,
    Trajectories,
    VerdictLimits,
)
from asyncrl.broker.ledger.records import Duplicate, FailedAttempt, Refused, Reissued, Result, Rewarded
from asyncrl.broker.nodes.faults import FaultBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.nodes.spools import SpoolBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import TransferBook
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.reward import Grade, GradeItem, ScoredItem
from asyncrl.messages.rollout import Failed, Leased, Settled, StartedOver
from asyncrl.messages.session import Held
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.trajectory import Prompt, TrajectoryLimits, TrajectorySummary, Unit
from asyncrl.messages.weights import Publishing
from tests.broker.driver import a_config


def test_while_nothing_has_come_back_only_those_that_may_not_take_long_are_overdue() -> None:
    durations = Durations()
    assert durations.limit_s("rollout", 16_000) == math.inf
    assert durations.limit_s("rollout", 16_000, is_idle=True) == UNKNOWN_S
    assert durations.limit_s("reward") == UNKNOWN_S
    assert durations.limit_s("reward", least_s=200.0) == 200.0


def test_the_less_is_known_the_longer_is_the_limit_but_it_never_lacks() -> None:
    durations = Durations()
    durations.took("reward", 1.0)
    assert durations.limit_s("reward") == TIMES["reward"] * LEAST_KNOWN
    for _ in range(LEAST_KNOWN - 1):
        durations.took("reward", 1.0)
    assert durations.limit_s("reward") == TIMES["reward"]
    for _ in range(RECENT):
        durations.took("reward", 0.1)
    assert durations.limit_s("reward") == LEAST_S["reward"]


def test_the_limit_follows_the_slowest_of_the_last_pieces_of_work() -> None:
    durations = Durations()
    durations.took("reward", 30.0)
    for _ in range(RECENT - 1):
        durations.took("reward", 4.0)
    assert durations.limit_s("reward") == 30.0 * TIMES["reward"]
    durations.took("reward", 4.0)
    assert durations.limit_s("reward") == 4.0 * TIMES["reward"]


def test_the_longest_completion_at_the_slowest_pace_is_not_overdue() -> None:
    durations = Durations()
    for _ in range(LEAST_KNOWN):
        durations.took("rollout", 0.05)
    assert durations.limit_s("rollout", 16_000) == pytest.approx(16_000 * 0.05 * TIMES["rollout"])


def test_a_rollout_that_does_nothing_has_less_time() -> None:
    durations = Durations()
    for _ in range(LEAST_KNOWN):
        durations.took("rollout", 0.001)
    assert durations.limit_s("rollout", 100) == LEAST_S["rollout"]
    assert durations.limit_s("rollout", 100, is_idle=True) == LEAST_IDLE_S
    assert durations.limit_s("rollout", 10_000, is_idle=True) == pytest.approx(10.0 * TIMES["rollout"])


# ── test trajectories ─────────────────────────────────────────────────────────────────────────
# Each result, reward and failure of a trajectory counts once, and only for its own lease or grading.

SPOOL = "spool"
REF = SpoolRef(SPOOL, 0, 64, 100, 7)
STOPPED = StoredItem(Unit(0, 0), 5, REF, TrajectorySummary(8, 4, 0, 0, 1, "stop"))


class Desk:
    """Group 0 of two trajectories, both leased with id 5, and a reward node with two credits."""

    def __init__(self) -> None:
        self.failures, self.faults = FailureBook(), FaultBook()
        groups = self.groups = GroupBook()
        self.out, config = Outbox(), a_config(schedule={"max_attempts": 2})
        evaluation = EvaluationBook(Evaluation(), [], 4, groups)
        self.group = Group(0, Prompt(text="?"), 2, min_version=0)
        groups.add(self.group)
        self.transfers = TransferBook(deadline_s=60.0, stall_s=1.0)
        self.transfers.newest_version = 3
        self.grading = GradeBook()
        self.dispatcher = Dispatcher(config, groups, evaluation, SpoolBook(60.0), out=self.out, broker_term=1)
        self.trajectories = Trajectories(
            config,
            groups,
            dispatcher=self.dispatcher,
            grading=self.grading,
            transfers=self.transfers,
            nodes=NodeBook(),
            out=self.out,
            failures=self.failures,
            faults=self.faults,
        )
        self.judge = Node("r.0", "r", "0", "reward", 0.0, credit_limit=2)
        self.trajectories.credits.update(self.judge)
        for slot in self.group.slots:
            slot.lease(5)

    def failed(self, message: Failed) -> str:
        """A failure of the reward node, or of the rollout with a lease of another session."""
        return self.trajectories.failed(message, self.judge.peer if message.stage in ("reward", "payload") else "")

    def rewarded(self, item: ScoredItem) -> Group | None:
        return self.trajectories.rewarded(item, self.judge.peer)

    def graded(self) -> GradeItem:
        """Store trajectory 0 and send it to the reward node."""
        self.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL)
        self.trajectories.grade()
        ((_, grade),) = [(o.peer, o.message) for o in self.out.drain()[0] if isinstance(o.message, Grade)]
        (item,) = grade.items
        return item


def test_every_report_is_settled_and_the_first_result_counts() -> None:
    desk = Desk()
    unfinished = replace(STOPPED, unit=Unit(0, 1), summary=replace(STOPPED.summary, finish_reason="unfinished"))

    desk.trajectories.stored(Stored("a", "0", [STOPPED, unfinished]), SPOOL)
    desk.trajectories.stored(Stored("b", "0", [replace(STOPPED, lease_id=4)]), SPOOL)

    outbox, records, _ = desk.out.drain()
    assert [(o.peer, o.message, o.once_durable) for o in outbox] == [
        ("a.0", Settled([Leased(Unit(0, 0), 5)], [Leased(Unit(0, 1), 5)]), True),
        ("b.0", Settled([Leased(Unit(0, 0), 4)]), True),
    ]
    assert [type(record).__name__ for record in records] == ["Progressed", "Result", "Duplicate"]
    assert records[1:] == [Result(Unit(0, 0), 5, REF, STOPPED.summary), Duplicate(Unit(0, 0), 4, 8)]
    assert [slot.state for slot in desk.group.slots] == [SlotState.STORED, SlotState.LEASED]


def test_a_trajectory_that_its_node_sends_again_is_no_second_one() -> None:
    """The answer to the first was lost when the broker was restarted; nothing is thrown away."""
    desk = Desk()
    desk.graded()
    desk.trajectories.stored(Stored("a", "1", [STOPPED]), SPOOL)
    outbox, records, _ = desk.out.drain()
    assert [o.message for o in outbox] == [Settled([Leased(Unit(0, 0), 5)])]
    assert [type(record).__name__ for record in records] == []


def test_a_trajectory_of_a_restarted_group_is_thrown_away_though_it_was_stored_before() -> None:
    desk = Desk()
    desk.graded()
    desk.group.restart(3)
    desk.group.slots[0].lease(6)
    desk.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL)
    assert [type(record).__name__ for record in desk.out.drain()[1]][-1] == "Duplicate"


def test_a_reward_counts_once_and_only_for_its_own_grading() -> None:
    desk = Desk()
    item = desk.graded()
    reward = ScoredItem(Unit(0, 0), 0.5, {}, item.lease_id, "42")

    assert desk.rewarded(replace(reward, lease_id=item.lease_id + 1)) is None
    assert desk.rewarded(reward) is desk.group
    assert desk.rewarded(reward) is None

    assert desk.out.drain()[1] == [Rewarded(Unit(0, 0), 0.5)]
    assert (desk.group.slots[0].reward, desk.group.slots[0].answer) == (0.5, "42")


def test_a_failed_grading_is_repeated_until_the_last_attempt() -> None:
    desk = Desk()
    failed = Failed(Unit(0, 0), desk.graded().lease_id, "reward", "the verifier raised", True)
    assert desk.failed(failed) == ""
    desk.trajectories.grade()
    again = desk.group.slots[0].lease_id
    assert again > failed.lease_id

    assert desk.failed(replace(failed, lease_id=again)) == "reward: the verifier raised"

    assert desk.judge.credits == 0
    assert [(r.attempts, r.is_final) for r in desk.out.drain()[1] if isinstance(r, FailedAttempt)] == [
        (1, False),
        (2, True),
    ]


def test_a_grading_whose_spool_is_away_is_no_attempt_and_waits_for_the_spool() -> None:
    desk = Desk()
    away = Failed(Unit(0, 0), desk.graded().lease_id, "payload", "the spool is away", True, is_unreachable=True)
    desk.grading.park(REF.spool)
    assert desk.failed(away) == ""
    desk.trajectories.grade()
    assert desk.out.drain()[:2] == ([], [])

    desk.grading.unpark(REF.spool)
    desk.trajectories.grade()
    assert [type(o.message) for o in desk.out.drain()[0]] == [Grade]
    assert desk.group.slots[0].attempts == 0


def test_a_failed_generation_is_leased_again_and_a_late_failure_is_ignored() -> None:
    desk = Desk()
    failed = Failed(Unit(0, 1), 5, "rollout", "out of memory", True)

    assert desk.failed(failed) == ""
    assert desk.failed(failed) == ""

    records = desk.out.drain()[1]
    assert [type(record) for record in records] == [FailedAttempt, Reissued]
    assert desk.group.indices(SlotState.MISSING) == [1]


def test_an_episode_that_begins_anew_keeps_its_lease_and_loses_its_stored_part() -> None:
    desk = Desk()
    part = replace(STOPPED, summary=replace(STOPPED.summary, finish_reason="unfinished"))
    desk.trajectories.stored(Stored("a", "0", [part]), SPOOL)
    desk.out.drain()
    slot = desk.group.slots[0]
    anew = StartedOver(Unit(0, 0), 5, 12, "the sandbox is gone")

    desk.trajectories.started_over(replace(anew, lease_id=4), "")
    assert (slot.ref, desk.out.drain()[1]) == (REF, []), "of another lease"

    desk.trajectories.started_over(anew, "")
    _, records, events = desk.out.drain()
    assert (slot.state, slot.ref, slot.summary, slot.attempts) == (SlotState.LEASED, None, None, 0)
    assert records == [Reissued(Unit(0, 0), 5, "environment_lost", 12)]
    assert [(event.kind, event.fields["reason"]) for event in events] == [
        ("episode.started_over", "the sandbox is gone")
    ]

    desk.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL)
    desk.out.drain()
    desk.trajectories.started_over(anew, "")
    assert (slot.ref, desk.out.drain()[1]) == (REF, []), "its result is stored already"


def test_a_failed_environment_is_an_attempt_that_begins_at_the_prompt() -> None:
    desk = Desk()
    desk.group.slots[1].progress(REF, STOPPED.summary)
    assert desk.failed(Failed(Unit(0, 1), 5, "environment", "KeyError: 'x'", True)) == ""
    assert (desk.group.slots[1].state, desk.group.slots[1].ref) == (SlotState.MISSING, None)
    assert desk.out.drain()[1][-1] == Reissued(Unit(0, 1), 5, "failed", 8)
    assert desk.failures.counts == {"environment: KeyError: 'x'": 1}


def test_failures_are_counted_by_stage_and_cause() -> None:
    desk = Desk()
    grading = Failed(Unit(0, 0), desk.graded().lease_id, "reward", "no number in 17", True)
    desk.failed(grading)
    desk.failed(Failed(Unit(0, 1), 5, "rollout", "out of memory", True))
    desk.failed(Failed(Unit(0, 1), 5, "rollout", "out of memory", True))

    assert desk.failures.counts == {"reward: no number in 17": 1, "rollout: out of memory": 1}


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


DAMAGED = "impossible log-prob: nan at position 3, expected -1000 .. 0"


def test_a_grade_names_the_summary_and_the_limits_of_what_it_sends() -> None:
    desk = Desk()
    desk.transfers.stage(Publishing(3, 3))
    desk.trajectories.vocab_size = 100
    desk.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL)
    desk.trajectories.grade()

    (grade,) = [o.message for o in desk.out.drain()[0] if isinstance(o.message, Grade)]
    assert grade.items[0].summary == STOPPED.summary
    assert grade.limits == TrajectoryLimits(100, 128, 512, 3, max_turns=0, seats=1)


def test_a_damaged_payload_is_sampled_again_and_its_result_is_void() -> None:
    desk = Desk()
    grading = desk.graded().lease_id
    failed = Failed(Unit(0, 0), grading, "payload", DAMAGED, True)

    assert desk.failed(failed) == ""
    assert desk.failed(failed) == "", "told twice"

    assert desk.out.drain()[1] == [
        FailedAttempt(Unit(0, 0), "payload", DAMAGED, 1, False),
        Refused(Unit(0, 0), grading, DAMAGED, 8),
    ]
    slot = desk.group.slots[0]
    assert (slot.state, slot.ref, slot.summary) == (SlotState.MISSING, None, None)
    assert desk.dispatcher.unleased.first() is desk.group


def test_a_refused_result_that_is_put_again_is_a_duplicate_and_the_next_lease_gives_a_new_one() -> None:
    desk = Desk()
    grading = desk.graded().lease_id
    desk.failed(Failed(Unit(0, 0), grading, "payload", DAMAGED, True))
    desk.out.drain()
    lease_id = desk.dispatcher.leases.next_id()

    desk.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL)
    desk.trajectories.stored(Stored("b", "0", [replace(STOPPED, lease_id=lease_id)]), SPOOL)

    records = desk.out.drain()[1]
    assert records == [
        Duplicate(Unit(0, 0), 5, 8),
        Result(Unit(0, 0), lease_id, REF, STOPPED.summary, num_refused=1),
    ]


def test_a_rollout_that_still_holds_a_refused_result_is_told_to_forget_it() -> None:
    desk = Desk()
    desk.failed(Failed(Unit(0, 0), desk.graded().lease_id, "payload", DAMAGED, True))
    rollout = Node("a.1", "a", "1", "rollout", 0.0)
    desk.dispatcher.adopt(rollout, [Held(Unit(0, 0), 5, 0)], now_s=0.0)
    assert desk.group.slots[0].state is SlotState.MISSING


def test_a_result_that_says_it_is_older_than_its_group_is_a_failure_of_its_lease() -> None:
    desk = Desk()
    desk.group.min_version = 3
    assert desk.trajectories.stored(Stored("a", "0", [STOPPED]), SPOOL) == []
    records = desk.out.drain()[1]
    reason = "impossible policy version: 0 as the oldest one, expected 3 or newer"
    assert records[0] == FailedAttempt(Unit(0, 0), "rollout", reason, 1, False)
    assert desk.group.indices(SlotState.MISSING) == [0], "it is leased again, and no lease is left open for ever"

    desk.group.slots[0].lease(6)
    again = Stored("a", "0", [replace(STOPPED, lease_id=6)])
    assert desk.trajectories.stored(again, SPOOL) == [(Unit(0, 0), f"rollout: {reason}")]


def test_a_failed_attempt_at_a_held_out_prompt_names_its_row() -> None:
    desk = Desk()
    group = Group(0, Prompt(text="?"), 1, min_version=0, split="held_out", row=6)
    desk.groups.add(group)
    group.slots[0].lease(5)
    desk.failed(Failed(Unit(0, 0, "held_out"), 5, "rollout", "too long", False))
    assert desk.out.drain()[1] == [FailedAttempt(Unit(0, 0, "held_out"), "rollout", "too long", 1, True, 6)]


def test_a_unit_that_is_damaged_each_time_is_given_up_with_the_cause() -> None:
    desk = Desk()
    failed = Failed(Unit(0, 0), desk.graded().lease_id, "payload", DAMAGED, True)
    desk.failed(failed)
    desk.judge.credit_limit += 1
    desk.trajectories.credits.update(desk.judge)
    desk.trajectories.stored(Stored("b", "0", [replace(STOPPED, lease_id=desk.dispatcher.leases.next_id())]), SPOOL)
    desk.trajectories.grade()
    again = desk.group.slots[0].lease_id

    assert desk.failed(replace(failed, lease_id=again)) == f"payload: {DAMAGED}"


# ── test verdicts ─────────────────────────────────────────────────────────────────────────────
# Verdicts beyond a limit fail their trajectory alone.

UNIT = Unit(0, 1)
METRICS = {f"metric {number}": 1.0 for number in range(60)}
HUGE = a_config(schedule={"groups_per_step": 200_000, "group_size": 2})


def test_a_verdict_within_the_limits_is_no_failure() -> None:
    assert VerdictLimits(a_config()).failure(ScoredItem(UNIT, 1.0, METRICS, 7)) is None


def test_a_reward_that_is_no_number_fails_and_may_be_tried_again() -> None:
    failed = VerdictLimits(a_config()).failure(ScoredItem(UNIT, math.nan, {}, 7))
    assert failed is not None
    assert (failed.unit, failed.lease_id, failed.stage, failed.retryable) == (UNIT, 7, "reward", True)
    assert failed.reason == "the reward is nan, expected a finite number of at most 1e+06 either way"


def test_a_verdict_that_a_large_step_has_no_room_for_fails_for_good() -> None:
    limits = VerdictLimits(HUGE)
    failed = limits.failure(ScoredItem(UNIT, 1.0, METRICS, 7))
    assert failed is not None
    assert not failed.retryable
    assert f"but at most {limits.max_bytes} are allowed where a step has 400000 trajectories" in failed.reason
