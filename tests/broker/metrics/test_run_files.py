"""A run's files across a restart of its broker, with a fake clock."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from asyncrl.broker.failures import EVENT
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.chain import Head
from asyncrl.broker.ledger.records import Written
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.errors import RunFailed
from asyncrl.files.json_lines import encoded
from asyncrl.messages.session import Hello
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Prompt
from asyncrl.messages.weights import Live
from asyncrl.messages.wire import PROTOCOL
from asyncrl.observe.run_directory import RunDirectory
from tests.broker.driver import a_config, a_scheduler


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


def test_incidents_are_warnings_of_the_log_and_versions_are_left_to_debugging(directory: RunDirectory) -> None:
    life = Life(directory, now_s=0.0)
    with capture_logs() as logs:
        life.report.event("broker.slept", seconds=2.0)
        life.report.event("version.live", policy_version=3)
        life.report.event("node.joined", node="a", role="rollout")
    assert [line["log_level"] for line in logs] == ["warning", "debug", "info"]


@pytest.mark.parametrize(("event", "away_s"), [("node.lost", 2.0), ("node.left", None)])
def test_a_node_is_away_if_it_is_lost_but_not_if_it_left(
    directory: RunDirectory, event: str, away_s: float | None
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
    first.report.swapped(Live(-1, 0.25, 0.5))
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
