"""A step has one number wherever a person reads or types it; files and answers for programs count from 0."""

import json
from pathlib import Path

import pytest

from asyncrl.broker.failures import StepFailures
from asyncrl.broker.metrics.incidents import IncidentBook
from asyncrl.errors import RunFailed
from asyncrl.messages.supervisor import Progress
from asyncrl.records.alarms import alarms
from asyncrl.records.events import news
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run
from asyncrl.runtime.screen import step_line
from asyncrl.tools.dashboard.api import Api
from asyncrl.tools.dashboard.query import Query
from asyncrl.tools.report.charts import draw
from tests.cli.invoke import asyncrl
from tests.recorded_runs import MakeRun
from tests.runtime.test_screen import METRICS
from tests.tools.dashboard.browser_free import a_sample, an_episode, write

STEP, NUMBER = 7, 8
"""The eighth step, as files and as people count."""


@pytest.fixture
def run(make_run: MakeRun) -> RunDirectory:
    directory = make_run()
    for step in (STEP - 1, STEP):
        write(directory.samples, an_episode(step), a_sample(step, 1))
    write(directory.samples, a_sample(NUMBER, 2), held_out=True)
    directory.append_event("step.failed", step=STEP, reason="no memory")
    directory.append_event("signal.back", step=STEP)
    directory.append_event("ess.low", step=STEP, ess=0.6, advice="lower trainer.lr")
    return directory


def test_the_screen_and_sentences_count_from_1(run: RunDirectory) -> None:
    assert step_line(Progress(STEP, 10, METRICS), None).startswith(f"step   {NUMBER}/10")
    record = read_run(run.path)
    (incident, *_) = IncidentBook([event for event in record.events if event["event"] == "step.failed"]).told(0.0)
    assert incident.sentence == f"the trainer failed at step {NUMBER}: no memory"
    told = [news(event) for event in record.events if event["event"] == "signal.back"]
    assert told == [f"rewards of a group differ again by step {NUMBER}"]
    assert f"At step {NUMBER} " in alarms(record.events, [])[-1].sentence


def test_the_number_of_a_failure_is_the_one_to_skip() -> None:
    failures = StepFailures()
    failures.failed(STEP, "no memory")
    with pytest.raises(RunFailed, match=rf"at step {NUMBER} .*--skip-step {NUMBER}"):
        failures.failed(STEP, "no memory")


def test_commands_show_the_number_and_take_it(run: RunDirectory) -> None:
    assert asyncrl("events", run.path, "--only", "step.failed").output.count(f" step={NUMBER} ") == 1
    for newest_or_named in ((), ("--step", NUMBER)):
        shown = asyncrl("samples", run.path, *newest_or_named).output
        assert f"step_{STEP:06d}.parquet: 2 of 2 samples of step {NUMBER}," in shown
        assert f"asyncrl episode show {run.path} --step {NUMBER} --group 0 --index 0" in shown
        assert asyncrl("episode", "show", run.path, *newest_or_named).output.startswith(f"step {NUMBER}, ")
    held_out = asyncrl("samples", run.path, "--held-out", "--step", NUMBER).output
    assert f" samples after {NUMBER} steps," in held_out, "those of the weights that the step made"


def test_charts_of_the_report_count_from_1(run: RunDirectory) -> None:
    charts, _ = draw([read_run(run.path)])
    assert f"<title>step {NUMBER}: {STEP / 10}</title>" in charts[0]


def test_pages_filter_by_the_number_and_answers_keep_the_step(run: RunDirectory) -> None:
    found = Api([run.path])
    query = Query(f"step_min={NUMBER}&step_max={NUMBER}".encode())
    rows = json.loads(found.answer(["runs", "0", "samples"], query)[1])["rows"]
    assert [(row["split"], row["step"], row["number"]) for row in rows] == [
        *[("train", STEP, NUMBER)] * 2,
        ("held_out", NUMBER, NUMBER),
    ]


def test_what_programs_read_counts_from_0(run: RunDirectory) -> None:
    shown = json.loads(asyncrl("samples", run.path, "--step", NUMBER, "--json").output)
    assert {row["step"] for row in shown["rows"]} == {STEP}
    assert [Path(shown["file"]).name, run.read_metrics()[STEP]["step"]] == [f"step_{STEP:06d}.parquet", STEP]
