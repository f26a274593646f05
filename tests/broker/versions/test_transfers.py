"""One transfer at a time; a group is reused while its members are the same; late members are named."""

import pytest

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.versions.transfers import MAX_FAILURES, OngoingTransfer, TransferBook
from asyncrl.config.sections.broker import Broker
from asyncrl.errors import RunFailed
from asyncrl.messages.session import Hello
from asyncrl.messages.weights import Abort, Member, Publishing
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role

DEADLINE_S = 30.0
NOTICE_S, STALL_S = 2.0, 1.0


class Stage:
    """A TransferBook, a trainer, and obedient rollouts."""

    def __init__(self, *rollouts: str, swaps_at_once: bool = True, is_patient: bool = False) -> None:
        self.book = TransferBook(DEADLINE_S, STALL_S, swaps_at_once=swaps_at_once, is_patient=is_patient)
        self.nodes = NodeBook(Broker(notice_s=NOTICE_S))
        self.now_s = 0.0
        self.join("trainer", "trainer")
        for name in rollouts:
            self.join("rollout", name)

    def join(self, role: Role, name: str) -> Node:
        node = self.nodes.join(name, Hello(PROTOCOL, role, name, "0"), 0.0)
        node.is_ready = True
        return node

    def silence(self, name: str) -> None:
        node = self.nodes.get(name)
        assert node
        node.is_quiet = True

    def hear(self, name: str) -> None:
        node = self.nodes.get(name)
        assert node
        node.is_quiet = False

    def abort(self, now_s: float) -> tuple[Abort, list[str]] | None:
        return self.book.abort(self.nodes, now_s)

    def leave(self, name: str) -> None:
        self.nodes.leave(name)
        self.book.departed(name, name)

    @property
    def ongoing(self) -> OngoingTransfer:
        assert self.book.ongoing
        return self.book.ongoing

    def publish(self, version: int) -> OngoingTransfer | None:
        self.book.stage(Publishing(version, next_step=version))
        return self.start()

    def start(self, now_s: float = 0.0) -> OngoingTransfer | None:
        return self.book.start(self.nodes, now_s)

    def report(self, *names: str, failure: str = "") -> None:
        ongoing = self.ongoing
        for name in names:
            node = self.nodes.get(name)
            if node and not failure:
                node.received_version = ongoing.message.policy_version
            self.book.reported(name, ongoing.message.transfer_group, self.now_s, failure)

    def swap(self, *names: str) -> None:
        for name in names:
            node = self.nodes.get(name)
            assert node
            node.policy_version = node.received_version
            self.book.live(name, node.policy_version)

    def finish(self) -> OngoingTransfer | None:
        """All members complete the ongoing transfer."""
        receivers = self.ongoing.peers[1:]
        self.report(*self.ongoing.peers)
        self.swap(*receivers)
        return self.book.conclude([])

    def fail(self) -> OngoingTransfer | None:
        self.report(*self.ongoing.peers, failure="connection closed")
        return self.book.conclude([])


def members(ongoing: OngoingTransfer | None) -> list[str]:
    assert ongoing
    return [member.node for member in ongoing.message.members]


def transfer_group(ongoing: OngoingTransfer | None) -> int:
    assert ongoing
    return ongoing.message.transfer_group


def test_a_rollout_that_was_told_to_leave_is_in_no_new_transfer() -> None:
    stage = Stage("a", "b")
    leaving = stage.nodes.get("a")
    assert leaving
    leaving.is_draining = True
    assert members(stage.publish(0)) == ["trainer", "b"]


def test_a_version_is_live_when_every_rollout_decodes_with_it() -> None:
    stage = Stage("a", "b")
    started = stage.publish(0)
    assert started
    assert started.message.members == [Member("trainer", "0"), Member("a", "0"), Member("b", "0")]
    assert started.message.keep
    assert stage.start() is None, "one at a time"

    stage.report("trainer", "a", "b")
    stage.swap("a")
    assert stage.book.conclude([]) is None
    stage.swap("b")

    assert stage.book.conclude([]) is started
    assert stage.book.live_version == 0
    assert stage.start() is None


def test_a_rollout_that_swaps_before_the_trainer_has_reported_is_not_waited_for_again() -> None:
    stage = Stage("a")
    started = stage.publish(0)
    stage.report("a")
    stage.swap("a")
    assert stage.book.conclude([]) is None

    stage.report("trainer")

    assert stage.book.conclude([]) is started


def test_nothing_is_sent_without_a_trainer_or_rollouts_or_a_version() -> None:
    stage = Stage()
    assert stage.start() is None
    assert stage.publish(0) is None
    stage.join("rollout", "a")
    assert members(stage.start()) == ["trainer", "a"]


def test_the_transfer_group_is_kept_while_the_members_are_the_same() -> None:
    stage = Stage("a", "b")
    transfer_groups = []
    for version in range(3):
        transfer_groups.append(transfer_group(stage.publish(version)))
        stage.finish()

    assert transfer_groups == [1, 1, 1]


def test_a_loss_makes_a_new_transfer_group_without_the_lost() -> None:
    stage = Stage("a", "b")
    first = transfer_group(stage.publish(0))
    stage.finish()
    stage.leave("a")

    second = stage.publish(1)

    assert transfer_group(second) > first
    assert members(second) == ["trainer", "b"]


def test_a_failed_transfer_is_repeated_in_a_new_transfer_group() -> None:
    stage = Stage("a", "b")
    first = transfer_group(stage.publish(0))
    stage.report("a")
    stage.report("trainer", "b", failure="connection closed")
    assert stage.book.conclude([]) is None
    assert stage.book.live_version == -1

    again = stage.start()

    assert transfer_group(again) > first
    assert members(again) == ["trainer", "a", "b"]


def test_a_rollout_that_has_the_version_from_a_failed_try_is_not_waited_for() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.report("a")
    stage.swap("a")
    stage.report("trainer", "b", failure="connection closed")
    stage.book.conclude([])
    stage.start()

    stage.report("trainer", "a", "b")
    stage.swap("b")

    assert stage.book.conclude([]), "a swaps once, and says Live once"


def test_a_version_that_failed_for_one_rollout_is_live_with_the_others_and_only_that_one_gets_it_again() -> None:
    stage = Stage("a", "b")
    first = transfer_group(stage.publish(0))
    stage.report("trainer", "a")
    stage.report("b", failure="b: a checksum does not match")
    assert stage.book.conclude([]) is None, "a has it, but does not decode with it yet"
    stage.swap("a")
    assert stage.book.conclude([])
    assert stage.book.live_version == 0

    pair = stage.start()
    assert members(pair) == ["trainer", "b"]
    assert pair
    assert not pair.message.keep
    stage.finish()
    assert transfer_group(stage.publish(1)) > first, "b's side of the first group is closed"
    assert members(stage.ongoing) == ["trainer", "a", "b"]


def test_a_rollout_that_keeps_failing_alone_is_given_up_and_the_run_goes_on() -> None:
    stage = Stage("a", "bad")
    for version in range(MAX_FAILURES):
        assert stage.book.given_up() == []
        stage.publish(version)
        stage.report("trainer", "a")
        stage.swap("a")
        stage.report("bad", failure="bad: no space left")
        assert stage.book.conclude([])

    assert stage.book.given_up() == ["bad"]
    assert stage.start() is None
    stage.leave("bad")
    assert members(stage.publish(MAX_FAILURES)) == ["trainer", "a"]


def test_a_transfer_that_failed_for_all_rollouts_left_is_repeated() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.report("trainer", "a")
    stage.report("b", failure="b: a checksum does not match")
    stage.book.conclude([])
    stage.leave("a")

    assert stage.book.conclude([]) is None
    assert stage.book.live_version == -1
    assert members(stage.start()) == ["trainer", "b"]


def test_a_joiner_gets_the_live_version_by_itself_and_the_group_of_the_others_stays_good() -> None:
    stage = Stage("a")
    kept = transfer_group(stage.publish(0))
    stage.finish()
    stage.join("rollout", "late")

    pair = stage.start()
    assert members(pair) == ["trainer", "late"]
    assert pair
    assert not pair.message.keep
    assert transfer_group(pair) > kept
    stage.finish()

    stage.leave("late")
    assert transfer_group(stage.publish(1)) == kept


def test_joiners_are_brought_up_to_date_one_after_the_other() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.finish()
    stage.join("rollout", "b")
    stage.join("rollout", "c")

    order = []
    while started := stage.start():
        order.append(members(started)[1])
        stage.finish()

    assert order == ["b", "c"]


def test_members_that_have_not_reported_in_twice_the_deadline_are_named() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.report("trainer", "a")

    assert stage.book.limit_s == 60.0
    assert stage.book.expired(59.9, []) == []
    assert stage.book.expired(60.0, []) == ["b"]

    stage.leave("b")
    stage.swap("a")
    assert stage.book.conclude([]), "the others have it"
    assert members(stage.publish(1)) == ["trainer", "a"]


def test_a_rollout_that_has_the_weights_and_does_not_swap_is_named_too() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.report("trainer", "a", "b")
    stage.swap("a")

    assert stage.book.expired(59.9, []) == []
    assert stage.book.expired(60.0, []) == ["b"]


def test_the_time_limit_of_a_held_rollout_starts_at_its_release() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.report("trainer", "a")

    assert stage.book.expired(1000.0, ["a"]) == []
    assert stage.book.expired(1059.9, []) == []
    assert stage.book.expired(1060.0, []) == ["a"]


def test_rollouts_that_let_generations_finish_first_have_no_swap_deadline() -> None:
    stage = Stage("a", swaps_at_once=False)
    stage.publish(0)
    assert stage.book.expired(60.0, []) == ["a", "trainer"]
    stage.report("trainer", "a")
    assert stage.book.expired(60.0, []) == []


def test_a_rollout_lost_after_its_side_was_done_breaks_nothing() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.report("trainer", "a", "b")
    stage.swap("a")

    stage.leave("b")

    assert stage.book.conclude([])
    assert stage.book.live_version == 0


def test_a_member_that_fell_silent_is_named_to_the_others_and_the_next_try_goes_without_it() -> None:
    stage = Stage("a", "b")
    first = transfer_group(stage.publish(0))
    stage.silence("b")

    assert stage.abort(NOTICE_S) == (Abort(first, "b was silent"), ["a", "b", "trainer"])
    assert stage.book.conclude([]) is None
    again = stage.start(NOTICE_S)

    assert members(again) == ["trainer", "a"]
    assert transfer_group(again) > first
    assert stage.finish()
    stage.hear("b")
    assert members(stage.start()) == ["trainer", "b"], "it gets the version as a joiner"


def test_an_abort_is_sent_once() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.silence("b")
    assert stage.abort(NOTICE_S)
    assert stage.abort(NOTICE_S) is None


@pytest.mark.parametrize("sign", ["bucket", "report"])
def test_a_transfer_that_goes_on_is_not_aborted_for_a_silent_member(sign: str) -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.silence("b")
    for beat in range(20):
        if sign == "bucket":
            stage.book.sent(beat + 1, 0.5 * beat)
        else:
            stage.now_s = 0.5 * beat
            stage.report("a")
        assert stage.abort(0.5 * beat + STALL_S / 2) is None
    assert stage.abort(10.0 + STALL_S)


def test_a_slow_transfer_with_every_member_heard_is_never_aborted() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    assert stage.abort(DEADLINE_S) is None


def test_a_silent_member_that_has_yet_to_swap_does_not_delay_the_version() -> None:
    stage = Stage("a", "b")
    started = stage.publish(0)
    stage.report("trainer", "a", "b")
    stage.swap("a")
    stage.silence("b")
    assert stage.book.conclude([]) is None

    assert stage.abort(NOTICE_S) is None, "nobody is inside the transfer"
    assert stage.book.conclude([]) is started
    stage.hear("b")
    assert stage.start() is None, "it has the version, and swaps when it goes on"


def test_a_version_that_arrived_at_one_rollout_is_live_after_an_abort() -> None:
    stage = Stage("a", "b", "c")
    started = stage.publish(0)
    stage.report("trainer", "a")
    stage.swap("a")
    stage.silence("b")

    assert stage.abort(NOTICE_S) == (Abort(1, "b was silent"), ["b", "c"])
    assert stage.book.conclude([]) is started
    assert members(stage.start()) == ["trainer", "c"]


def test_a_lost_member_is_named_to_those_that_are_still_inside_the_transfer() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.leave("b")
    assert stage.abort(STALL_S / 2) is None, "they may fail by themselves, or arrive"
    assert stage.abort(STALL_S) == (Abort(1, "b was lost"), ["a", "trainer"])


def test_a_lost_trainer_is_named_to_all_rollouts() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    stage.leave("trainer")
    assert stage.abort(STALL_S) == (Abort(1, "trainer was lost"), ["a", "b"])


def test_a_silent_trainer_is_waited_for_and_asked_for_nothing() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.silence("trainer")
    assert stage.abort(DEADLINE_S) is None
    stage.fail()
    assert stage.start() is None
    stage.hear("trainer")
    assert stage.start()


def test_a_silent_member_is_waited_for_if_no_other_rollout_waits() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.silence("a")
    assert stage.abort(DEADLINE_S) is None


def test_a_silent_joiner_delays_a_new_version_no_longer_than_others_do() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.finish()
    stage.join("rollout", "joiner")
    pair = transfer_group(stage.start())
    stage.silence("joiner")
    assert stage.abort(DEADLINE_S) is None, "nobody else waits"

    stage.book.stage(Publishing(1, next_step=1))

    assert stage.abort(DEADLINE_S) == (Abort(pair, "joiner was silent"), ["joiner", "trainer"])
    assert stage.book.conclude([]) is None
    assert members(stage.start()) == ["trainer", "a"]


def test_receivers_that_an_abort_would_end_wait_until_the_silent_one_is_lost() -> None:
    stage = Stage("a", "b", is_patient=True)
    stage.publish(0)
    stage.silence("b")
    assert stage.abort(DEADLINE_S) is None
    stage.leave("b")
    assert stage.abort(DEADLINE_S)


def test_rollouts_that_fall_silent_in_turn_neither_end_the_run_nor_are_aborted_for_ever() -> None:
    stage = Stage(*"abcdefgh")
    stage.publish(0)
    for name in "abcdefg":
        stage.silence(name)
        assert stage.abort(NOTICE_S)
        stage.book.conclude([])
        stage.hear(name)
        assert members(stage.start())[1:] == list("abcdefgh"["abcdefgh".index(name) + 1 :])
    stage.leave("h")
    stage.book.reported("trainer", 8, 0.0, "connection closed")
    stage.book.conclude([])

    assert members(stage.start())[1:] == list("abcdefg")
    stage.silence("a")
    assert stage.abort(DEADLINE_S) is None, "this time they are waited for"


def test_if_all_receivers_are_lost_the_next_to_join_gets_the_version_anew() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.report("trainer", "a")
    stage.leave("a")
    assert stage.book.conclude([]) is None
    assert stage.book.live_version == -1

    stage.join("rollout", "b")

    assert members(stage.start()) == ["trainer", "b"]
    assert stage.finish()


def test_reports_of_an_earlier_transfer_group_are_ignored() -> None:
    stage = Stage("a")
    old = transfer_group(stage.publish(0))
    stage.fail()
    stage.start()

    stage.book.reported("trainer", old, 0.0)
    stage.book.reported("a", old, 0.0, "late")

    assert stage.book.ongoing
    assert stage.book.ongoing.unreported == {"trainer", "a"}
    assert stage.finish()


def test_five_failures_of_one_version_end_the_run_with_the_reason() -> None:
    stage = Stage("a")
    stage.publish(0)
    for _ in range(MAX_FAILURES - 1):
        stage.fail()
        stage.start()

    with pytest.raises(RunFailed, match="version 0 could not be published in 5 tries: connection closed"):
        stage.fail()


def test_failures_of_earlier_versions_are_forgiven() -> None:
    stage = Stage("a")
    for version in range(2 * MAX_FAILURES):
        stage.publish(version)
        stage.fail()
        stage.start()
        stage.finish()

    assert stage.book.live_version == 2 * MAX_FAILURES - 1


def test_a_joiner_nobody_can_reach_is_given_up_and_the_run_goes_on() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.finish()
    stage.join("rollout", "unreachable")
    for _ in range(MAX_FAILURES):
        assert stage.book.given_up() == []
        stage.start()
        stage.fail()

    assert stage.book.given_up() == ["unreachable"]
    assert stage.start() is None

    stage.leave("unreachable")
    assert stage.book.given_up() == []
    stage.publish(1)
    assert stage.finish()


def test_a_joiner_in_trouble_does_not_keep_the_next_one_waiting() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.finish()
    stage.join("rollout", "troubled")
    stage.join("rollout", "well")
    stage.start()
    stage.fail()

    assert members(stage.start()) == ["trainer", "well"]


def test_a_held_node_is_not_waited_for() -> None:
    stage = Stage("a", "held")
    stage.publish(0)
    stage.finish()
    stage.publish(1)
    stage.report("trainer", "a", "held")
    stage.swap("a")

    assert stage.book.conclude(["held"])
    assert stage.book.live_version == 1
    assert stage.start() is None, "what it received lies staged: it needs no second transfer"


def test_if_all_are_held_the_first_released_makes_the_version_live() -> None:
    stage = Stage("held")
    stage.publish(0)
    stage.finish()
    stage.publish(1)
    stage.report("trainer", "held")
    assert stage.book.conclude(["held"]) is None
    assert stage.book.conclude([]) is None

    stage.swap("held")

    assert stage.book.conclude([])


def test_a_trainer_that_is_gone_has_nothing_staged() -> None:
    stage = Stage()
    stage.publish(0)
    stage.leave("trainer")
    stage.book.staged = None
    stage.join("trainer", "next")
    stage.join("rollout", "a")

    assert stage.start() is None
    assert members(stage.publish(0)) == ["next", "a"]


def test_while_the_trainer_is_behind_the_live_version_a_joiner_waits() -> None:
    stage = Stage("a")
    for version in range(3):
        stage.publish(version)
        stage.finish()
    stage.join("rollout", "joiner")

    assert stage.publish(1) is None
    assert members(stage.publish(2)) == ["trainer", "joiner"]
