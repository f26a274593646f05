"""Every place that shows a measure of a run shows the same number, which is computed here a second time."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncrl.broker.groups.group import Group
from asyncrl.broker.metrics.batch_metrics import RunTotals, line
from asyncrl.broker.metrics.readings import Readings
from asyncrl.cli.status import file_lines
from asyncrl.messages.supervisor import Evaluated, Progress
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Prompt, TrajectorySummary
from asyncrl.records import formatting
from asyncrl.records.measures import RECENT, ends_of, measures
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.records.run_record import overview, read_run
from asyncrl.records.times import NodeTimes, TimesLine, kind_of, waited_share
from asyncrl.runtime.screen import step_line
from asyncrl.tools.dashboard.overview import overview as dashboard
from asyncrl.tools.report.report import headline
from asyncrl.tools.track import Follower
from asyncrl.tools.why_lines import why_of, why_text
from tests.broker.driver import a_config, a_scheduler

STEPS = 14
LASTS_S = [9.0, *(0.25 * (1 + step * step % 7) for step in range(1, STEPS))]
"""Seconds of each step: the first waits long for its batch, the third hardly at all."""
TOKENS = [40 + 30 * (step % 4) for step in range(STEPS)]
STALENESS = [(step % 3, step % 3 + step % 2) for step in range(STEPS)]
"""Of the two trajectories of each step."""
WAITED_S = [8.0, *(0.4 * lasts_s for lasts_s in LASTS_S[1:])]
"""Seconds that the trainer waited for each step's batch."""
ROLLOUTS_WAITED = [0.5, *(step % 5 / 10 for step in range(1, STEPS))]
BEFORE_S = 21.0
"""Seconds of loading."""


def expected(newest: int) -> dict[str, float]:
    own = range(STEPS - newest, STEPS)
    seconds = sum(LASTS_S[step] for step in own)
    return {
        "tokens / s": sum(TOKENS[step] for step in own) / seconds,
        "a step": seconds / newest,
        "trainer waits": sum(WAITED_S[step] for step in own) / seconds,
        "rollouts wait": sum(ROLLOUTS_WAITED[step] * LASTS_S[step] for step in own) / seconds,
        "staleness, mean": sum(sum(STALENESS[step]) / 2 for step in own) / newest,
        "staleness, max": max(max(STALENESS[step]) for step in own),
        "held-out accuracy": 0.8125,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that the broker's functions have recorded, with its summary."""
    directory = RunDirectory.create(tmp_path, "measured")
    directory.config.write_text(f"[run]\nsteps = {STEPS}\n")
    directory.append_event("run.started", time_s=0.0)
    directory.append_event("eval.finished", policy_version=0, accuracy=0.125, num_prompts=16, time_s=20.0)
    lines: list[dict[str, Any]] = []
    time_s = BEFORE_S
    for step in range(STEPS):
        time_s += LASTS_S[step]
        group = Group(step, Prompt(text="?"), 2, min_version=0)
        for slot, staleness in zip(group.slots, STALENESS[step], strict=True):
            slot.summary = TrajectorySummary(TOKENS[step] // 2, 5, 5 - staleness, 5, 1, "stop")
        timing = {"wait_s": WAITED_S[step], "train_s": LASTS_S[step] - WAITED_S[step], "stage_s": 0.0}
        stepped = Stepped(step, 5, timing | {"loss": 0.5})
        lines.append(line(stepped, [group], ROLLOUTS_WAITED[step], time_s, recent=lines[-RECENT:]))
        directory.append_metrics(lines[-1])
        seconds = {"training": LASTS_S[step] - WAITED_S[step], "waiting for sampling": WAITED_S[step]}
        directory.append_times(TimesLine(step, time_s, LASTS_S[step], {"trainer-0": NodeTimes("trainer", seconds)}))
    directory.append_event("eval.finished", policy_version=5, accuracy=0.8125, num_prompts=16, time_s=time_s)
    directory.write_summary(
        RunSummary(
            name="measured", status="finished", seed=0, steps=STEPS, steps_planned=STEPS, versions=5, wall_s=time_s,
            base_accuracy=0.125, held_out_accuracy=0.8125, **RunTotals(lines).as_summary(),
        )
    )  # fmt: skip
    return directory


def test_all_steps_have_the_same_measures_in_summary_report_why_and_dashboard(run: RunDirectory) -> None:
    record, truth = read_run(run.path), expected(STEPS)
    summary, report = run.read_summary(), headline(record)
    assert summary is not None
    why = why_text("measured", why_of(run.path, is_predicted=False))
    page = dashboard(record, {"trainer": {"training": 0.5, "waiting for sampling": 0.4, "publishing": 0.1}})
    tiles = {tile.label: tile for tile in page["tiles"]}
    rate, share = formatting.count(truth["tokens / s"]), formatting.share
    numbers = {
        "tokens / s": summary.tokens_per_s,
        "a step": summary.step_s,
        "trainer waits": summary.wait_trainer,
        "rollouts wait": summary.wait_rollout,
        "staleness, mean": summary.staleness_mean,
        "staleness, max": summary.staleness_max,
        "held-out accuracy": summary.held_out_accuracy,
    }
    assert numbers == pytest.approx(truth)
    assert {name: report[name] for name in report if name in EXPECTED_LABELS} == {
        "trained tokens / s": rate,
        "a step, mean": f"{truth['a step']:.3g} s",
        "trainer waiting": share(truth["trainer waits"]),
        "rollouts waiting": share(truth["rollouts wait"]),
        "staleness, mean": f"{truth['staleness, mean']:.3g}",
        "staleness, max": f"{truth['staleness, max']:g}",
        "held-out accuracy after": share(truth["held-out accuracy"]),
    }
    for text in (
        f"{truth['a step']:.3g} s a step, {rate} trained tokens / s",
        f"trainer waits {share(truth['trainer waits'])}, rollouts wait {share(truth['rollouts wait'])}",
    ):
        assert text in why
    waits = f"{100 * truth['trainer waits']:.0f} / {100 * truth['rollouts wait']:.0f} %"
    in_all = {"tokens / s": rate, "a step": f"{truth['a step']:.3g} s", "waiting": waits}
    notes = {name: tiles[name].note for name in in_all}
    assert {name: note for name, note in notes.items() if not note.endswith(f"; {in_all[name]} in all")} == {}
    assert tiles["staleness"].value == f"{truth['staleness, mean']:.3g}"
    assert tiles["staleness"].note == f"versions, mean of all {STEPS} steps; {truth['staleness, max']:g} at most"
    assert tiles["held-out accuracy"].value == share(truth["held-out accuracy"])
    assert (
        page["waited"]["trainer"]
        == f"waits {share(truth['trainer waits'], 0)}: sampling {share(truth['trainer waits'], 0)}"
    )


EXPECTED_LABELS = (
    "trained tokens / s", "a step, mean", "trainer waiting", "rollouts waiting", "staleness, mean", "staleness, max",
    "held-out accuracy after",
)  # fmt: skip


class Recorder:
    """A tracker that keeps the last value of each metric."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def start(self, run: Any, /) -> None: ...
    def log(self, step: int, metrics: Mapping[str, float], /) -> None:
        self.last |= metrics

    def event(self, step: int, kind: str, fields: Mapping[str, Any], /) -> None: ...
    def finish(self, summary: Any, /) -> None: ...


def test_the_last_steps_have_the_same_measures_on_screen_status_metrics_trackers_and_dashboard(
    run: RunDirectory,
) -> None:
    truth = expected(RECENT)
    last = run.read_metrics()[-1]
    rate, waits = truth["tokens / s"], (truth["trainer waits"], truth["rollouts wait"])

    screen = step_line(Progress(STEPS - 1, STEPS, {"accuracy": 0.0, **last}), None)
    assert f"tok/s {rate:.0f} wait t/r {waits[0]:.0%}/{waits[1]:.0%}" in screen

    told = f"{formatting.count(round(rate))} tok/s, {truth['a step']:.3g} s a step"
    status = "\n".join(file_lines(overview(run.path)))
    assert f"{told}, trainer waits {waits[0]:.0%}, rollouts wait {waits[1]:.0%}" in status
    assert f"last {RECENT} steps" in status
    assert f"{formatting.share(truth['held-out accuracy'])} at the last evaluation" in status

    scheduler = a_scheduler(a_config(run={"steps": STEPS}))
    scheduler.evaluation.results.append(Evaluated(5, 0.8125, 16))
    ledger: Any = SimpleNamespace(head=SimpleNamespace(num_records=0), num_transactions=0, transactions_s=0.0)
    readings = Readings(a_config(), scheduler, ledger, RunTotals(run.read_metrics()))
    readings.stepped(last)
    found = {sample.name.removeprefix("asyncrl_broker_"): sample.value for sample in readings}
    of_metrics = {
        "tokens / s": found["recent_tokens_per_second"],
        "a step": found["recent_step_seconds"],
        "trainer waits": found["recent_trainer_waiting_ratio"],
        "rollouts wait": found["recent_rollouts_waiting_ratio"],
        "held-out accuracy": found["evaluation_accuracy"],
    }
    assert of_metrics == pytest.approx({name: truth[name] for name in of_metrics})

    tracker = Recorder()
    follower = Follower(run, tracker, "recorder", timeout_s=60.0)
    follower.start()
    assert follower.advance()
    names = {"tokens / s": "tokens_per_s", "a step": "step_recent_s", "trainer waits": "wait_trainer"}
    tracked = {place: tracker.last[f"train/{name}"] for place, name in names.items()}
    assert tracked == pytest.approx({name: truth[name] for name in tracked})

    tiles = {tile.label: tile for tile in dashboard(read_run(run.path), {})["tiles"]}
    assert tiles["tokens / s"].value == formatting.count(rate)
    assert tiles["a step"].value == f"{truth['a step']:.3g} s"
    assert tiles["waiting"].value == f"{100 * waits[0]:.0f} / {100 * waits[1]:.0f} %"
    whole = expected(STEPS)["tokens / s"]
    assert tiles["tokens / s"].note == f"last {RECENT} steps; {formatting.count(whole)} in all"


def test_a_step_that_waits_for_nothing_does_not_multiply_the_rate() -> None:
    lines = [{"time_s": 10.0 * step, "tokens": 1000, "step_s": 10.0 if step % 5 else 0.1} for step in range(1, 21)]
    assert measures(lines, RECENT).tokens_per_s == pytest.approx(100.0)


def test_a_pause_and_the_loading_of_a_resumed_run_are_no_part_of_its_pace() -> None:
    lines = [{"time_s": 10.0 * step, "tokens": 1000} for step in range(1, 21)]
    later = [line | {"time_s": line["time_s"] + 500.0} for line in lines[10:]]
    later[0] |= {"apart_s": 500.0}
    found = measures([*lines[:10], *later], RECENT)
    assert found.tokens_per_s == pytest.approx(100.0)
    assert found.step_s == pytest.approx(10.0)


def test_runs_of_older_versions_have_shares_in_place_of_seconds() -> None:
    old: list[dict[str, float | None]] = [
        {"step_s": 1.0, "wait_trainer": 0.1, "wait_rollout": 0.5},
        {"step_s": 3.0, "wait_trainer": 0.5, "wait_rollout": None},
    ]
    found = measures(old)
    assert found.wait_trainer == pytest.approx(0.4)
    assert (found.wait_rollout, found.step_s) == (0.5, 2.0)


def test_nothing_recorded_measures_nothing() -> None:
    found = measures([])
    assert (found.tokens_per_s, found.step_s, found.wait_trainer, found.staleness_mean) == (None,) * 4


def test_each_activity_is_of_one_of_five_kinds() -> None:
    kinds = {
        "training": "works",
        "publishing": "moves data",
        "waiting for grading": "waits for a neighbour",
        "asleep": "waits for a neighbour",
        "idle": "waits for a neighbour",
        "waiting for the trainer": "waits for room",
        "waiting for the end of the run": "away",
        "away": "away",
    }
    assert {activity: kind_of(activity) for activity in kinds} == kinds
    assert waited_share({"sampling": 1.0, "storing": 1.0, "idle": 1.0, "waiting for the trainer": 1.0}) == 0.5
    assert waited_share({}) == 0.0


def test_the_ends_of_a_short_run_share_no_step() -> None:
    def told(*values: float) -> tuple[float, str, float, str]:
        found = ends_of(values)
        assert found
        return found.first, found.told("first"), found.last, found.told("last")

    assert ends_of([]) is None
    assert told(0.5) == (0.5, "the only step", 0.5, "the only step")
    assert told(0.25, 9.0, 0.5) == (0.25, "first step", 0.5, "last step")
    assert told(1.0, 2.0, 3.0, 4.0) == (1.5, "first 2 steps", 3.5, "last 2 steps")
    assert told(*[0.0] * 12, *[1.0] * 12) == (0.0, "first 10 steps", 1.0, "last 10 steps")
