"""A version is transferred, goes live, and is evaluated on a held node; messages, records and events say so."""

from asyncrl.broker.groups.admission import Window
from asyncrl.broker.groups.group import GroupBook
from asyncrl.broker.handlers import rule
from asyncrl.broker.ledger.records import Measured, VersionLive
from asyncrl.broker.nodes.device_turns import DeviceTurnBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.versions.evaluation import EvaluationBook
from asyncrl.broker.versions.transfers import NO_GROUP, TransferBook
from asyncrl.broker.versions.versions import Versions
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Hold, Release
from asyncrl.messages.session import Hello, Ready
from asyncrl.messages.trainer import Evaluating
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.messages.weights import (
    Abort,
    Live,
    Published,
    Publishing,
    Transfer,
    TransferFailed,
    Transferred,
    Upload,
    Uploaded,
)
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role


class Desk:
    """A trainer and a rollout that are ready, and one held-out prompt to evaluate at version 0."""

    def __init__(self) -> None:
        self.groups, self.out, self.window, self.nodes = GroupBook(), Outbox(), Window(4), NodeBook()
        self.transfers = TransferBook(30.0, 2.0)
        self.evaluation = EvaluationBook(Evaluation(at_start=True), [Prompt(text="?")], 4, self.groups)
        turns = DeviceTurnBook(self.nodes, self.out, is_used=False)
        self.versions = Versions(self.transfers, self.evaluation, self.nodes, self.window, turns=turns, out=self.out)
        self.trainer, self.rollout = self.join("trainer", "t"), self.join("rollout", "a")

    def join(self, role: Role, name: str) -> Node:
        node = self.nodes.join(f"{name}.0", Hello(PROTOCOL, role, name, "0"), 0.0)
        node.is_ready = True
        self.versions.ready(node)
        return node

    def say(self, node: Node, message: Message, now_s: float = 0.0) -> None:
        rule.table(self.versions)[type(message)](message, node, now_s)

    def sent(self) -> list[tuple[str, object]]:
        """Advance, and take the messages sent until then."""
        self.versions.advance(0.0)
        return [(outgoing.peer, outgoing.message) for outgoing in self.out.drain()[0]]

    def offer(self, version: int = 0) -> Transfer:
        """The trainer offers a version, and its transfer starts."""
        self.say(self.trainer, Publishing(version, version))
        (_, transfer), _ = self.sent()
        assert isinstance(transfer, Transfer)
        return transfer

    def receive(self, transfer: Transfer) -> None:
        """Both sides of the transfer end, and the rollout swaps."""
        for node in (self.trainer, self.rollout):
            self.say(node, Transferred(transfer.transfer_group, transfer.policy_version, 0.1, 8))
        self.say(self.rollout, Live(transfer.policy_version, 0.1, 0.1))


def test_a_version_goes_live_and_is_evaluated_on_a_held_node() -> None:
    desk = Desk()
    desk.receive(desk.offer())
    desk.versions.advance(0.0)

    outbox, records, events = desk.out.drain()

    assert [(o.peer, o.message) for o in outbox] == [
        ("t.0", Published(0)),
        ("a.0", Hold(0)),
        ("t.0", Evaluating(0)),
    ]
    assert records == [VersionLive(0, 0)]
    assert [event.kind for event in events] == ["version.live", "eval.started"]
    assert desk.versions.held == ["a.0"]


def test_the_last_held_out_completion_releases_the_node_and_reports_the_result() -> None:
    desk = Desk()
    desk.receive(desk.offer())
    desk.sent()

    desk.versions.settle_held_out(Unit(0, 0, "held_out"), failed=True)

    outbox, records, _ = desk.out.drain()
    (result,) = desk.evaluation.results
    assert [(o.peer, o.message) for o in outbox] == [("a.0", Release()), ("t.0", result)]
    assert [type(record) for record in records] == [Measured]
    desk.versions.ready(desk.trainer)
    assert desk.sent() == [("t.0", result)], "a trainer that is ready again gets all results"


def test_the_evaluation_of_a_lost_node_waits_for_another_and_its_transfer_ends() -> None:
    desk = Desk()
    desk.receive(desk.offer())
    desk.sent()
    desk.nodes.leave("a.0")

    desk.versions.departed(desk.rollout)

    assert (desk.versions.held, desk.evaluation.is_waiting, list(desk.groups.held_out)) == ([], True, [0])
    desk.versions.departed(desk.trainer)
    assert desk.transfers.staged_version == -1


def causes_of_left_out(desk: Desk) -> list[str]:
    return [event.fields["cause"] for event in desk.out.drain()[2] if event.kind == "eval.left_out"]


def test_an_evaluation_that_is_left_out_after_its_node_has_left_names_that_node() -> None:
    desk = Desk()
    desk.receive(desk.offer())
    desk.sent()
    desk.nodes.leave("a.0")
    desk.versions.departed(desk.rollout)
    other = desk.join("rollout", "b")
    other.policy_version = other.received_version = 1
    desk.transfers.went_live(1)
    desk.versions.advance(0.0)
    assert causes_of_left_out(desk) == ["a had begun it and has it no more, and the other rollouts had v1 by then"]


def test_an_evaluation_that_is_left_out_while_a_rollout_leaves_names_that_rollout() -> None:
    desk = Desk()
    desk.evaluation.every_versions = 1
    first = desk.offer(0)
    desk.rollout.is_draining = True
    desk.receive(first)
    desk.sent()
    desk.rollout = desk.join("rollout", "b")
    desk.receive(desk.offer(1))
    desk.versions.advance(0.0)
    assert causes_of_left_out(desk) == ["a was told to leave, and the other rollouts had v1 by then"]


def test_a_failed_transfer_is_an_event_and_starts_again() -> None:
    desk = Desk()
    transfer = desk.offer()
    for node in (desk.trainer, desk.rollout):
        desk.say(node, TransferFailed(transfer.transfer_group, 0, "connection closed"))
    desk.versions.advance(0.0)

    outbox, records, events = desk.out.drain()

    again = outbox[0].message
    assert isinstance(again, Transfer)
    assert again.transfer_group > transfer.transfer_group
    assert (records, [event.kind for event in events]) == ([], ["transfer.failed"] * 2)


def test_a_trainer_behind_the_live_version_is_answered_at_once() -> None:
    desk = Desk()
    desk.receive(desk.offer(2))
    desk.sent()

    desk.say(desk.trainer, Publishing(1, 1))

    assert ("t.0", Published(2)) in desk.sent()


def test_nothing_is_sent_unless_something_changed() -> None:
    desk = Desk()
    desk.offer()
    desk.say(desk.rollout, Live(0, 0.1, 0.1))
    desk.sent()

    assert desk.sent() == []


# ── rollouts outside the collective ─────────────────────────────────────────────────────────


class FarDesk(Desk):
    """A desk whose rollout ``a`` is in the collective, and a rollout ``far`` that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.far = self.join("rollout", "far")
        self.nodes.ready(self.far, Ready(weights="spool"))

    def publish(self, version: int) -> list[tuple[str, object]]:
        self.say(self.trainer, Publishing(version, version))
        return self.sent()

    def uploaded(self, version: int) -> None:
        self.say(self.trainer, Uploaded(version, 0.1, 8))

    def fetched(self, version: int) -> None:
        self.say(self.far, Transferred(NO_GROUP, version, 0.1, 0))
        self.say(self.far, Live(version, 0.1, 0.1))


def test_a_rollout_outside_the_collective_is_no_member_and_fetches_the_version() -> None:
    desk = FarDesk()

    sent = desk.publish(0)
    transfer = sent[0][1]
    desk.uploaded(0)

    assert isinstance(transfer, Transfer)
    assert [member.node for member in transfer.members] == ["t", "a"]
    assert sent[2:] == [("t.0", Upload(0))]
    assert desk.sent() == [("far.0", Transfer(NO_GROUP, 0, [], keep=False, deadline_s=0.0))]


def test_the_members_make_a_version_live_without_waiting_for_the_others() -> None:
    desk = FarDesk()
    transfer = desk.publish(0)[0][1]
    assert isinstance(transfer, Transfer)
    desk.uploaded(0)
    desk.receive(transfer)

    assert ("t.0", Published(0)) in desk.sent()
    assert desk.far.policy_version == -1


def test_a_rollout_outside_the_collective_that_is_first_does_not_make_a_version_live() -> None:
    desk = FarDesk()
    desk.publish(0)
    desk.uploaded(0)
    desk.fetched(0)

    assert all(message != Published(0) for _, message in desk.sent())
    assert (desk.far.policy_version, desk.transfers.live_version) == (0, -1)


def test_without_members_the_first_that_decodes_with_a_version_makes_it_live() -> None:
    desk = FarDesk()
    desk.nodes.leave("a.0")
    desk.versions.departed(desk.rollout)
    assert desk.publish(0) == [("t.0", Upload(0))]
    desk.uploaded(0)
    desk.sent()
    desk.fetched(0)

    sent = desk.sent()

    assert ("t.0", Published(0)) in sent
    assert ("far.0", Hold(0)) in sent, "and version 0 is evaluated there"
    assert desk.window.num_open == 0


def test_a_rollout_that_lags_or_is_fetching_is_not_held_for_an_evaluation() -> None:
    desk = FarDesk()
    transfer = desk.publish(0)[0][1]
    assert isinstance(transfer, Transfer)
    desk.rollout.is_draining = True
    desk.uploaded(0)
    desk.receive(transfer)
    assert all(not isinstance(message, Hold) for _, message in desk.sent())
    desk.say(desk.far, Live(0, 0.1, 0.1))
    desk.far.received_version = 0
    assert desk.far.is_fetching
    assert all(not isinstance(message, Hold) for _, message in desk.sent())

    desk.say(desk.far, Transferred(NO_GROUP, 0, 0.1, 0))

    assert ("far.0", Hold(0)) in desk.sent()


def test_a_rollout_that_may_have_received_all_of_an_aborted_transfer_is_not_held_until_it_tells() -> None:
    desk = Desk()
    first = desk.offer(0)
    desk.rollout.is_draining = True
    desk.receive(first)
    desk.sent()
    desk.rollout.is_draining = False
    desk.say(desk.trainer, Publishing(1, 1))
    ongoing = desk.transfers.start(desk.nodes, 0.0)
    assert ongoing
    transfer = ongoing.message
    desk.nodes.leave("t.0")
    desk.versions.departed(desk.trainer)
    desk.versions.advance(10.0)
    assert desk.transfers.ongoing is None
    assert [type(message) for _, message in desk.sent()] == [Abort]

    desk.say(desk.rollout, TransferFailed(transfer.transfer_group, 1, "aborted"), 10.0)

    assert desk.sent() == [("a.0", Hold(0))]


def test_a_failed_fetch_and_a_failed_upload_are_events() -> None:
    desk = FarDesk()
    desk.publish(0)
    desk.say(desk.trainer, Uploaded(0, 0.1, 0, "No space left on device"))
    desk.versions.advance(2.0)
    desk.uploaded(0)
    desk.versions.advance(2.0)
    desk.say(desk.far, TransferFailed(NO_GROUP, 0, "part 3 of 7 is damaged"), 2.0)

    events = [(event.kind, event.fields) for event in desk.out.drain()[2]]

    assert events == [
        ("upload.failed", {"policy_version": 0, "cause": "No space left on device"}),
        ("version.uploaded", {"policy_version": 0, "seconds": 0.1, "num_bytes": 8}),
        ("transfer.failed", {"node": "far", "role": "rollout", "policy_version": 0, "cause": "part 3 of 7 is damaged"}),
    ]
    assert desk.transfers.ongoing, "the transfer of the members goes on"
