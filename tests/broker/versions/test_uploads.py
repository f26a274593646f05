"""The newest version is uploaded while a rollout outside the collective is connected, which then fetches it."""

import pytest

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.versions.transfers import MAX_FAILURES, NO_GROUP, RETRY_S, UploadBook
from asyncrl.errors import RunFailed
from asyncrl.messages.session import Hello, Ready
from asyncrl.messages.weights import Publishing, Transfer, Upload, Uploaded
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import WeightsVia


class Stage:
    """An UploadBook, and rollouts that fetch from the spool."""

    def __init__(self, *fetchers: str) -> None:
        self.book, self.nodes, self.now_s = UploadBook(), NodeBook(), 0.0
        self.live_version = -1
        self.staged: Publishing | None = None
        self.trainer = self.nodes.join("trainer", Hello(PROTOCOL, "trainer", "trainer", "0"), 0.0)
        for name in fetchers:
            self.join(name)

    def join(self, name: str, weights: WeightsVia = "spool") -> Node:
        node = self.nodes.join(name, Hello(PROTOCOL, "rollout", name, "0"), 0.0)
        self.nodes.ready(node, Ready(weights=weights))
        return node

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        assert node
        return node

    def upload(self) -> Upload | None:
        return self.book.upload(self.nodes, self.staged, self.live_version, self.now_s)

    def stage(self, version: int) -> Upload | None:
        self.staged = Publishing(version, next_step=2 * version)
        return self.upload()

    def store(self, version: int, problem: str = "") -> None:
        self.book.uploaded(Uploaded(version, 0.1, 5, problem), self.now_s)

    def publish(self, version: int) -> None:
        assert self.stage(version) == Upload(version)
        self.store(version)

    def asked(self) -> dict[str, int]:
        """Version that each rollout is told to fetch now."""
        fetches = self.book.fetches(self.nodes, self.now_s)
        assert all(transfer == Transfer(NO_GROUP, transfer.policy_version, [], False, 0.0) for _, transfer in fetches)
        return {node.name: transfer.policy_version for node, transfer in fetches}

    def fetch(self, name: str, version: int) -> None:
        node = self.node(name)
        node.policy_version = node.received_version = version
        self.book.fetched(node, self.now_s, failed=False)

    def fail(self, name: str) -> None:
        self.book.fetched(self.node(name), self.now_s, failed=True)

    def live(self) -> tuple[int, int] | None:
        return self.book.live(self.nodes, self.live_version)


# ── uploads ─────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_uploaded_while_every_rollout_is_in_the_collective() -> None:
    stage = Stage()
    stage.join("near", "collective")
    assert stage.stage(0) is None
    stage.join("far")
    assert stage.upload() == Upload(0)


def test_each_version_is_uploaded_once() -> None:
    stage = Stage("far")
    assert stage.upload() is None, "nothing is staged"
    stage.publish(0)
    assert stage.upload() is None
    assert stage.stage(1) == Upload(1)


def test_one_version_is_uploaded_at_a_time_and_then_the_newest() -> None:
    stage = Stage("far")
    stage.stage(0)
    assert stage.stage(1) is None
    assert stage.stage(2) is None
    stage.store(0)
    assert stage.upload() == Upload(2)


def test_versions_that_a_resumed_trainer_repeats_are_not_uploaded_before_the_live_one() -> None:
    stage = Stage("far")
    stage.live_version = 5
    assert stage.stage(4) is None
    assert stage.stage(5) == Upload(5)


def test_a_failed_upload_is_tried_again_after_a_while() -> None:
    stage = Stage("far")
    stage.stage(0)
    stage.store(0, problem="the spool did not answer")
    assert stage.upload() is None
    assert stage.asked() == {}
    stage.now_s += RETRY_S
    assert stage.upload() == Upload(0)


def test_uploads_that_keep_failing_end_the_run_and_name_the_cause() -> None:
    stage = Stage("far")
    for _ in range(MAX_FAILURES - 1):
        stage.stage(0)
        stage.store(0, problem="No space left on device")
        stage.now_s += RETRY_S
    stage.stage(0)
    with pytest.raises(RunFailed, match="version 0 could not be stored at the spool in 5 tries: No space left"):
        stage.store(0, problem="No space left on device")


def test_one_success_forgives_the_failures_before() -> None:
    stage = Stage("far")
    for version in range(MAX_FAILURES + 1):
        stage.stage(version)
        stage.store(version, problem="the spool did not answer")
        stage.now_s += RETRY_S
        stage.publish(version)


def test_a_trainer_that_is_back_uploads_its_version_again_and_late_answers_are_ignored() -> None:
    stage = Stage("far")
    stage.publish(0)
    stage.stage(1)
    stage.book.departed(stage.trainer, stage.nodes, 0)
    stage.store(1)
    assert stage.book.stored_version == -1
    assert stage.stage(0) == Upload(0)


# ── fetches ─────────────────────────────────────────────────────────────────────────────────


def test_every_rollout_that_lacks_the_stored_version_is_told_once() -> None:
    stage = Stage("a", "b")
    stage.join("near", "collective")
    stage.publish(0)
    assert stage.asked() == {"a": 0, "b": 0}
    assert stage.asked() == {}
    stage.fetch("a", 0)
    stage.publish(1)
    assert stage.asked() == {"a": 1}, "b is still fetching"
    stage.fetch("b", 0)
    assert stage.asked() == {"b": 1}


def test_a_rollout_that_joins_fetches_what_is_stored() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.asked()
    stage.join("late")
    assert stage.asked() == {"late": 0}


def test_a_silent_rollout_is_told_once_it_is_heard() -> None:
    stage = Stage("a")
    stage.publish(0)
    stage.node("a").is_quiet = True
    assert stage.asked() == {}
    stage.node("a").is_quiet = False
    assert stage.asked() == {"a": 0}


def test_a_failed_fetch_is_tried_again_and_too_many_end_the_rollout() -> None:
    stage = Stage("a", "b")
    stage.publish(0)
    for _ in range(MAX_FAILURES):
        assert stage.book.given_up() == []
        assert "a" in stage.asked()
        stage.fail("a")
        assert stage.asked() == {}
        stage.now_s += RETRY_S
    assert stage.book.given_up() == ["a"]
    stage.book.departed(stage.node("a"), stage.nodes, 0)
    assert stage.book.given_up() == []


def test_versions_beyond_the_live_one_are_fetched_again_from_the_next_trainer() -> None:
    stage = Stage("a", "b")
    for version in (0, 1):
        stage.publish(version)
        stage.asked()
        stage.fetch("a", version)
    stage.fetch("b", 0)
    stage.live_version = 0
    stage.book.departed(stage.trainer, stage.nodes, 0)
    stage.publish(0)
    assert stage.asked() == {}
    stage.publish(1)
    assert stage.asked() == {"a": 1, "b": 1}


# ── live ────────────────────────────────────────────────────────────────────────────────────


def test_the_first_rollout_that_decodes_with_a_version_makes_it_live() -> None:
    stage = Stage("a", "b")
    stage.publish(3)
    stage.asked()
    assert stage.live() is None
    stage.fetch("b", 3)
    assert stage.live() == (3, 6)
    stage.live_version = 3
    stage.fetch("a", 3)
    assert stage.live() is None, "it is live already"


def test_a_rollout_outside_the_collective_makes_nothing_live_while_there_are_members() -> None:
    stage = Stage("far")
    near = stage.join("near", "collective")
    stage.publish(3)
    stage.asked()
    stage.fetch("far", 3)
    assert stage.live() is None
    stage.nodes.leave(near.peer)
    assert stage.live() == (3, 6)


def test_the_version_before_goes_live_although_a_newer_one_is_uploaded() -> None:
    stage = Stage("far")
    stage.publish(3)
    stage.asked()
    stage.publish(4)
    stage.fetch("far", 3)
    assert stage.live() == (3, 6)


def test_a_version_of_an_earlier_broker_is_not_made_live_by_its_number() -> None:
    stage = Stage()
    stage.join("far").policy_version = 7
    assert stage.live() is None
