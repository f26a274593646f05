"""What idle nodes wait for follows from the state of the groups."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from asyncrl.broker.failures import EVENT
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.reader import Head
from asyncrl.broker.ledger.records import Written
from asyncrl.broker.metrics.run_files import FORGET_S, RunFiles, TimeBook, idle_causes
from asyncrl.broker.nodes.node import Node
from asyncrl.errors import RunFailed
from asyncrl.files.json_lines import encoded
from asyncrl.messages.session import Beat, Hello, MachineUse
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Prompt, Unit
from asyncrl.messages.weights import Live
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role
from asyncrl.records.events import EventKind
from asyncrl.records.run_directory import RunDirectory
from tests.broker.driver import Cluster, Reward, Rollout, Trainer, a_config, a_scheduler


class Scene:
    """A rollout, a reward node and a trainer that has published its first weights; the rollout has all four groups."""

    def __init__(self, *, staleness: float = 1.0, num_groups: int = 2) -> None:
        schedule: dict[str, object] = {"groups_per_step": num_groups, "group_size": 4, "staleness": staleness}
        self.cluster = Cluster(a_config(run={"steps": 3}, schedule=schedule))
        self.rollout: Rollout = self.cluster.start_rollout("a", capacity=64)
        self.reward: Reward = self.cluster.start_reward("r")
        self.trainer: Trainer = self.cluster.start_trainer()
        self.cluster.exchange()

    def publish(self) -> None:
        for node in (self.trainer, self.rollout):
            node.transferred()
            self.cluster.exchange()
        self.rollout.swap()
        self.cluster.exchange()

    def sample(self, group_id: int, *indices: int) -> None:
        for index in indices:
            self.rollout.finish(Unit(group_id, index))
        self.cluster.exchange()

    def judge(self) -> None:
        while self.reward.in_hand:
            self.reward.judge()
            self.cluster.exchange()

    def cause(self, role: str) -> str:
        return {str(role): cause for role, cause in idle_causes(self.cluster.scheduler).items()}[role]


def test_before_the_first_version_is_live_all_wait_for_it() -> None:
    scene = Scene()
    assert scene.cause("trainer") == scene.cause("rollout") == "waiting for weights to arrive"
    assert scene.cause("reward") == "waiting for sampling"


def test_a_trainer_waits_for_the_stage_that_its_next_groups_are_in() -> None:
    scene = Scene()
    scene.publish()
    assert scene.cause("trainer") == "waiting for sampling"
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2)
    assert scene.cause("trainer") == "waiting for the last completions"
    scene.sample(1, 3)
    assert scene.cause("trainer") == "waiting for grading"


def test_a_rollout_without_a_lease_waits_for_what_the_trainer_waits_for() -> None:
    scene = Scene(staleness=0.0)
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    assert scene.cause("rollout") == scene.cause("trainer") == "waiting for grading"


def test_while_the_trainer_trains_a_rollout_waits_for_it_and_then_for_its_weights() -> None:
    scene = Scene(staleness=0.0)
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    scene.judge()
    assert scene.cause("rollout") == "waiting for the trainer"
    scene.trainer.train()
    scene.cluster.exchange()
    assert scene.cause("rollout") == scene.cause("trainer") == "waiting for weights to arrive"


def test_a_batch_that_is_formed_waits_for_its_record() -> None:
    scene = Scene()
    scene.publish()
    scene.sample(0, 0, 1, 2, 3)
    scene.sample(1, 0, 1, 2, 3)
    scene.judge()
    assert scene.cause("trainer") == "waiting for the ledger"


def test_without_rollouts_the_trainer_waits_for_some() -> None:
    scene = Scene()
    scene.publish()
    scene.cluster.kill(scene.rollout)
    assert scene.cause("trainer") == "waiting for rollouts"


def test_the_end_of_the_run_is_a_cause_of_its_own() -> None:
    scene = Scene(staleness=2.0)
    scene.publish()
    scene.cluster.exchange()
    assert scene.cause("rollout") == "waiting for the end of the run"


# ── test run files ────────────────────────────────────────────────────────────────────────────
# A run's files across a restart of its broker, with a fake clock.


class Life:
    """One broker process, started at ``now_s`` of its own clock."""

    def __init__(self, directory: RunDirectory, now_s: float) -> None:
        config = a_config()
        self.directory = directory
        self.now_s = now_s
        scheduler = a_scheduler(config)
        self.scheduler, self.failures, self.nodes = scheduler, scheduler.failures, scheduler.nodes
        self.written: list[Written] = []
        self.report = RunFiles(
            config, scheduler, directory, lambda: self.now_s, lambda: Head(17, "ab"), written=self.written.append
        )

    def event(self, kind: str) -> dict[str, Any]:
        return [event for event in self.directory.read_events() if event["event"] == kind][-1]


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def test_the_time_of_a_run_continues_after_a_restart(directory: RunDirectory) -> None:
    first = Life(directory, now_s=100.0)
    first.now_s += 7.0
    first.report.event("node.joined", node="a")
    assert first.event("node.joined")["time_s"] == 7.0

    second = Life(directory, now_s=5.0)
    second.now_s += 1.0
    second.report.event("node.left", node="a")
    assert second.event("node.left")["time_s"] == 8.0


def test_an_event_has_nothing_that_a_terminal_would_obey(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    with capture_logs() as logs:
        life.report.event("node.rejected", node="\x1b[2J", cause="x" * 90_000, nodes=["a\u202e"])
    event = life.event("node.rejected")
    assert (event["node"], event["nodes"]) == ("\\x1b[2J", ["a\\u202e"])
    assert len(event["cause"]) < 3000
    assert logs[0]["node"] == "\\x1b[2J"


def test_who_was_lost_is_absent_also_for_the_next_broker(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    life.report.event("node.joined", node="a", role="rollout")
    life.report.event("node.lost", node="a", role="rollout", cause="silent for 10 s")
    for report in (life.report, Life(directory, now_s=0.0).report):
        assert [(node.name, node.state) for node in report.node_states.absent] == [("a", "lost")]


def test_incidents_are_warnings_of_the_log_and_versions_are_left_to_debugging(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    with capture_logs() as logs:
        life.report.event("broker.slept", seconds=2.0)
        life.report.event("version.live", policy_version=3)
        life.report.event("node.joined", node="a", role="rollout")
    assert [line["log_level"] for line in logs] == ["warning", "debug", "info"]


@pytest.mark.parametrize(("event", "away_s"), [("node.lost", 2.0), ("node.left", None)])
def test_a_node_is_away_if_it_is_lost_but_not_if_it_left(
    directory: RunDirectory, event: EventKind, away_s: float | None
) -> None:
    life = Life(directory, now_s=0.0)
    for name in ("stays", "goes"):
        life.nodes.join(name, Hello(PROTOCOL, "rollout", name, "0"), 0.0)
    life.report.tick()
    life.nodes.leave("goes")
    life.report.event(event, node="goes", cause="any")
    life.now_s = 2.0
    life.report.tick()
    life.report.step(Stepped(0, 0, {"loss": 0.5}), [])

    (line,) = directory.read_times()
    assert line.nodes["goes"].seconds.get("away") == away_s


def test_a_step_has_one_line_however_often_it_is_said(directory: RunDirectory) -> None:
    first = Life(directory, now_s=0.0)
    first.report.swap_times.add(Live(-1, 0.25, 0.5))
    line = first.report.step(Stepped(0, 0, {"loss": 0.5}), [])
    assert line is not None
    assert (line["step"], line["loss"], line["pause_s"], line["receive_s"]) == (0, 0.5, 0.25, 0.5)
    assert line["ledger_records"] == 17
    assert first.report.step(Stepped(0, 0, {"loss": 0.5}), []) is None

    second = Life(directory, now_s=0.0)
    assert second.report.step(Stepped(0, 0, {"loss": 0.5}), []) is None
    assert second.report.step(Stepped(1, 1, {"loss": 0.4}), []) is not None
    assert [line["step"] for line in directory.read_metrics()] == [0, 1]
    assert second.event("step.repeated")["step"] == 0


def test_the_ledger_gets_the_digest_of_each_line_and_of_the_summary(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    life.report.step(Stepped(3, 0, {"loss": float("nan")}), [])
    life.report.step(Stepped(3, 0, {"loss": 0.5}), [])
    life.report.conclude("")
    line = directory.metrics.read_bytes().removesuffix(b"\n")
    assert life.written == [
        Written("metrics.jsonl", sha256(line).hexdigest(), 3),
        Written("summary.json", sha256(directory.summary.read_bytes()).hexdigest()),
    ]
    assert sha256(encoded(directory.read_metrics()[0])).hexdigest() == life.written[0].sha256, "as it is read back"


def test_the_summary_and_the_events_of_checkpoints_have_the_digest_of_the_ledger(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    life.report.event("checkpoint.written", step=1, steps=2, path="step_000002")
    life.report.conclude("")
    event, summary = life.event("checkpoint.written"), directory.read_summary()
    assert (event["ledger_records"], event["ledger_head"]) == (17, "ab")
    assert summary
    assert (summary.ledger_records, summary.ledger_head) == (17, "ab")


def test_a_step_that_is_only_reported_again_is_no_repeated_one(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    assert life.report.step(Stepped(0, 0, {}), [], is_computed=False) is not None
    assert life.report.step(Stepped(0, 0, {}), [], is_computed=False) is None
    assert not [event for event in directory.read_events() if event["event"] == "step.repeated"]


def test_a_line_of_times_has_the_verdicts_since_the_line_before_also_in_a_later_life(directory: RunDirectory) -> None:
    first = Life(directory, now_s=0.0)
    first.failures.attempted("reward", 5)
    first.failures.count("reward", "no number")
    first.report.step(Stepped(0, 0, {}), [])
    for fields in first.failures.events(0.0):
        first.report.event(EVENT, **fields)

    second = Life(directory, now_s=0.0)
    second.failures.attempted("reward", 2)
    second.report.step(Stepped(1, 1, {}), [])
    assert [line.verdicts for line in directory.read_times()] == [6, 2]


def test_the_summary_is_written_once_and_covers_all_restarts(directory: RunDirectory) -> None:
    Life(directory, now_s=0.0).report.step(Stepped(0, 0, {}), [])
    life = Life(directory, now_s=0.0)
    life.report.step(Stepped(1, 1, {}), [])
    assert life.report.conclude("the trainer died") == "the trainer died"
    assert life.report.conclude("") == ""

    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.cause, summary.steps, summary.steps_planned) == ("failed", "the trainer died", 2, 4)
    assert (summary.base_accuracy, summary.held_out_accuracy) == (None, None)
    assert len([event for event in directory.read_events() if event["event"] == "run.finished"]) == 1


def test_failures_are_in_the_line_of_a_step_and_in_the_summary_of_all_lives(directory: RunDirectory) -> None:
    first = Life(directory, now_s=0.0)
    first.failures.count("reward", "no number in 17", 3)
    for fields in first.failures.events(0.0):
        first.report.event(EVENT, **fields)
    assert (first.report.step(Stepped(0, 0, {}), []) or {})["failed"] == 3.0

    second = Life(directory, now_s=0.0)
    second.failures.count("reward", "no number in 18")
    assert (second.report.step(Stepped(1, 1, {}), []) or {})["failed"] == 1.0
    second.report.conclude("")

    summary = directory.read_summary()
    assert summary is not None
    assert summary.failed == {"reward: no number in 17": 4}
    assert second.event(EVENT)["count"] == 4


def test_the_summary_names_exceptions_by_their_place_and_counts_the_groups_that_they_cost(
    directory: RunDirectory,
) -> None:
    life = Life(directory, now_s=0.0)
    training, groups = life.scheduler.training, life.scheduler.groups.train
    training.advance(0)
    training.give_up(groups[0], "reward: the function raised KeyError: '21' (bad.py:4)")
    life.failures.count("reward", "the function raised KeyError: '21' (bad.py:4)", 3)
    life.report.conclude("")

    summary = directory.read_summary()
    assert summary is not None
    assert summary.failed == {"reward: KeyError at bad.py:4": 3}
    assert (summary.groups_issued, summary.groups_failed) == (4, 1)


def test_a_disk_that_takes_no_summary_is_a_cause_if_there_was_none(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RunFailed("cannot write summary.json: No space left on device")

    monkeypatch.setattr(directory, "write_summary", full)
    assert Life(directory, now_s=0.0).report.conclude("") == "cannot write summary.json: No space left on device"
    assert Life(directory, now_s=0.0).report.conclude("the trainer died") == "the trainer died"


def test_a_skipped_update_is_an_event_with_its_cause_once(directory: RunDirectory) -> None:
    life, group = Life(directory, now_s=0.0), Group(0, Prompt(text="?"), 2, min_version=0)
    life.report.step(Stepped(0, 0, {"skipped": 0.0}), [group])
    assert not [event for event in directory.read_events() if event["event"] == "step.skipped"]

    life.report.step(Stepped(1, 1, {"skipped": 2.0}), [group])
    life.report.step(Stepped(1, 1, {"skipped": 2.0}), [group])
    life.report.step(Stepped(2, 2, {"skipped": 1.0}), [])
    life.report.step(Stepped(3, 3, {"skipped": 1.0, "skipped_empty": 1.0}), [group])
    life.report.step(Stepped(4, 4, {"skipped": 2.0, "skipped_empty": 1.0}), [group])

    skipped = [event for event in directory.read_events() if event["event"] == "step.skipped"]
    assert [(event["step"], event["updates"], event["cause"]) for event in skipped] == [
        (1, 2, "a loss or a gradient was not finite"),
        (2, 1, "every group of the step was refused"),
        (3, 1, "the correction or a mask rejected every token"),
        (4, 2, "the correction or a mask rejected every token, in others a loss or a gradient was not finite"),
    ]


# ── test time book ────────────────────────────────────────────────────────────────────────────
# Seconds of a node add up to the time that it was connected, and idle ones have a cause.

CAUSES: dict[Role, str] = {
    "rollout": "waiting for the trainer",
    "reward": "waiting for sampling",
    "trainer": "waiting for grading",
}


def a_node(name: str = "rollout-0", incarnation: str = "1") -> Node:
    node = Node(f"{name}.{incarnation}", name, incarnation, "rollout", 0.0)
    node.is_ready = True
    return node


def seconds_of(book: TimeBook, now_s: float, name: str = "rollout-0") -> dict[str, float]:
    return book.take(now_s)[1][name].seconds


def test_idle_seconds_are_those_of_what_was_waited_for_meanwhile() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    book.tick(1.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 2.0, "idle": 2.0}, tokens=7)
    book.tick(4.0, [node], CAUSES | {"rollout": "waiting for grading"})

    span_s, nodes = book.take(4.0)
    assert span_s == 4.0
    assert nodes["rollout-0"].seconds == {
        "sampling": 2.0,
        "waiting for the trainer": 0.5,
        "waiting for grading": 1.5,
    }
    assert nodes["rollout-0"].tokens == 7


def test_busy_cores_are_a_mean_over_the_heartbeats() -> None:
    book, node = TimeBook(0.0), a_node()
    for sampled_s, busy in ((0.0, 0.0), (3.0, 1.0), (4.0, 0.2)):
        node.beat = Beat(seconds={"sampling": sampled_s}, cores_busy=busy)
        book.tick(sampled_s, [node], CAUSES)
    assert book.take(4.0)[1]["rollout-0"].cores_busy == pytest.approx(0.8)


def test_a_line_has_how_full_the_machine_was_at_its_end() -> None:
    book, node = TimeBook(0.0), a_node()
    for sampled_s, memory in ((0.0, 0.1), (3.0, 0.6)):
        node.beat = Beat(seconds={"sampling": sampled_s}, machine=MachineUse(memory, 0.25, 0.5, 0.75))
        book.tick(sampled_s, [node], CAUSES)
    found = book.take(3.0)[1]["rollout-0"]
    assert (found.memory, found.device_memory, found.disk, found.device_busy) == (0.6, 0.25, 0.5, 0.75)


def test_a_node_that_has_no_role_yet_is_loading() -> None:
    book, node = TimeBook(0.0), a_node()
    node.is_ready = False
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat()
    book.tick(3.0, [node], CAUSES)
    assert seconds_of(book, 3.0) == {"loading": 3.0}


def test_a_node_that_was_sampling_before_this_session_brings_nothing_of_that_along() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1000.0}, tokens=10**6)
    book.tick(0.5, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1000.5}, tokens=10**6 + 7)
    book.tick(1.0, [node], CAUSES)
    found = book.take(1.0)[1]["rollout-0"]
    assert (found.seconds, found.tokens) == ({"unknown": 0.5, "sampling": 0.5}, 7)


def test_a_lost_node_is_away_until_it_joins_again() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1.0})
    book.tick(1.0, [node], CAUSES)
    book.tick(2.0, [], CAUSES)
    again = a_node(incarnation="2")
    book.tick(4.0, [again], CAUSES)
    again.beat = Beat(seconds={"sampling": 1.0})
    book.tick(5.0, [again], CAUSES)
    assert seconds_of(book, 5.0) == {"sampling": 2.0, "away": 3.0}


def test_a_drained_node_is_gone_once_the_lines_have_all_of_it() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat, node.is_draining = Beat(seconds={"sampling": 1.0}), True
    book.tick(1.0, [node], CAUSES)
    book.tick(2.0, [], CAUSES)
    assert seconds_of(book, 2.0) == {"sampling": 1.0}
    book.tick(3.0, [], CAUSES)
    assert book.take(3.0)[1] == {}


def test_a_node_that_leaves_on_purpose_between_two_ticks_is_not_away() -> None:
    book, node = TimeBook(0.0), a_node()
    book.tick(0.0, [node], CAUSES)
    node.beat = Beat(seconds={"sampling": 1.0})
    book.tick(1.0, [node], CAUSES)
    book.departed("rollout-0")
    book.departed("a supervisor")
    book.tick(2.0, [], CAUSES)
    assert seconds_of(book, 2.0) == {"sampling": 1.0}
    book.tick(3.0, [], CAUSES)
    assert book.take(3.0)[1] == {}


def test_a_lost_node_that_does_not_come_back_is_forgotten_once_the_lines_have_all_of_it() -> None:
    book = TimeBook(0.0)
    book.tick(0.0, [a_node()], CAUSES)
    book.tick(FORGET_S, [], CAUSES)
    book.tick(2 * FORGET_S, [], CAUSES)
    assert seconds_of(book, 2 * FORGET_S) == {"away": 2 * FORGET_S}
    book.tick(2 * FORGET_S + 1.0, [], CAUSES)
    assert book.take(2 * FORGET_S + 1.0)[1] == {}


def test_nodes_that_were_forgotten_do_not_make_lines_rare() -> None:
    book = TimeBook(0.0)
    book.tick(0.0, [a_node(str(n)) for n in range(1000)], CAUSES)
    now_s = 2 * FORGET_S
    for passed_s in (0.0, now_s, now_s + 1.0):
        book.tick(passed_s, [a_node()], CAUSES)
        book.take(passed_s)
    book.tick(now_s + 2.0, [a_node()], CAUSES)
    assert book.is_due(now_s + 2.0)


def test_supervisors_and_spools_have_no_times() -> None:
    book, supervisor = TimeBook(0.0), Node("s.1", "s", "1", "supervisor", 0.0)
    book.tick(0.0, [supervisor], CAUSES)
    supervisor.beat = Beat()
    book.tick(1.0, [supervisor], CAUSES)
    assert book.take(1.0) == (1.0, {})


def test_few_nodes_have_a_line_for_each_step_and_many_one_from_time_to_time() -> None:
    few, many = TimeBook(0.0), TimeBook(0.0)
    few.tick(0.0, [a_node(str(n)) for n in range(100)], CAUSES)
    many.tick(0.0, [a_node(str(n)) for n in range(1000)], CAUSES)
    assert few.is_due(0.1)
    assert not many.is_due(99.0)
    assert many.is_due(100.0)


@given(st.lists(st.tuples(st.floats(0.05, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=20))
def test_seconds_add_up_to_the_time_between_joining_and_the_last_beat(beats: list[tuple[float, float]]) -> None:
    book, node, now_s, seconds = TimeBook(0.0), a_node(), 0.0, {"sampling": 0.0, "idle": 0.0}
    book.tick(0.0, [node], CAUSES)
    for passed_s, share in beats:
        now_s += passed_s
        seconds = {
            "sampling": seconds["sampling"] + share * passed_s,
            "idle": seconds["idle"] + (1 - share) * passed_s,
        }
        node.beat = Beat(seconds=dict(seconds))  # type: ignore[arg-type]  # both are activities
        book.tick(now_s, [node], CAUSES)
    assert sum(seconds_of(book, now_s).values()) == pytest.approx(now_s)
