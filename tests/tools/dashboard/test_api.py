"""The dashboard's answers: a run that grows is followed, and a query has bounds."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.history import MOST_LINES
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import read_run
from asyncrl.tools.dashboard.api import Api, FollowedRun
from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from tests.recorded_runs import MakeRun
from tests.tools.dashboard.browser_free import a_picture, a_sample, an_episode, write


def test_a_run_is_read_as_a_report_reads_it(make_run: MakeRun) -> None:
    directory = make_run()
    now_s = directory.metrics.stat().st_mtime + 5
    run = FollowedRun(directory.path, lambda: now_s)
    assert run.refresh()
    assert run.record == read_run(directory.path, wall_clock=lambda: now_s)


def test_only_what_is_new_is_read(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    assert not run.refresh()
    before = len(run.record.metrics), len(run.record.events)
    directory.append_metrics({"step": 10, "reward": 0.5})
    directory.append_event("node.lost", node="rollout-0")
    assert run.refresh()
    assert (len(run.record.metrics), len(run.record.events)) == (before[0] + 1, before[1] + 1)
    assert run.record.metrics[-1]["reward"] == 0.5
    assert (run.revision, run.rewrites) == (2, 0)


def test_a_line_counts_once_it_is_whole(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    with directory.metrics.open("a") as file:
        file.write('{"step": 10, "rew')
        file.flush()
        run.refresh()
        assert len(run.record.metrics) == 10
        file.write('ard": 1}\n')
    run.refresh()
    assert run.record.metrics[-1] == {"step": 10, "reward": 1}


def test_a_step_that_is_recorded_again_counts_as_a_rewrite(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    directory.append_metrics({"step": 7, "reward": 9.0})
    run.refresh()
    assert run.rewrites == 1
    assert [line["step"] for line in run.record.metrics] == list(range(10))
    assert run.record.metrics[7]["reward"] == 9.0


def test_a_file_that_was_replaced_is_read_anew(make_run: MakeRun) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    directory.metrics.write_text('{"step": 0, "reward": 3.0}\n')
    run.refresh()
    assert (run.record.metrics, run.rewrites) == ([{"step": 0, "reward": 3.0}], 1)


def test_the_end_of_a_run_and_its_resumption_are_noticed(make_run: MakeRun, summary) -> None:
    directory = make_run()
    run = FollowedRun(directory.path)
    run.refresh()
    assert (run.record.status, run.record.notes) == ("running", [])
    directory.write_summary(summary())
    run.refresh()
    assert (run.record.status, run.record.notes) == ("finished", [])
    directory.summary.unlink()
    run.refresh()
    assert run.record.summary is None


def test_damaged_files_become_notes_and_the_others_are_read(make_run: MakeRun) -> None:
    directory = make_run()
    directory.config.write_text("[run")
    directory.summary.write_text("{}")
    with directory.events.open("a") as file:
        file.write("nonsense\n")
    run = FollowedRun(directory.path)
    run.refresh()
    assert len(run.record.metrics) == 10
    assert len(run.record.notes) == 3
    assert any("events.jsonl" in note for note in run.record.notes)


def test_the_last_change_is_that_of_metrics_or_events(make_run: MakeRun) -> None:
    directory = make_run()
    os.utime(directory.metrics, (1000, 1000))
    os.utime(directory.events, (2000, 2000))
    run = FollowedRun(directory.path, lambda: 2005.0)
    run.refresh()
    assert (run.record.silent_s, run.record.status) == (5.0, "running")
    assert FollowedRun(directory.path, lambda: 2500.0).record.silent_s == 500.0


def test_a_folder_that_is_not_there_or_has_runs_is_refused_and_an_empty_one_is_an_open_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        FollowedRun(tmp_path / "none")
    (tmp_path / "runs/toy").mkdir(parents=True)
    (tmp_path / "runs/toy/config.toml").touch()
    with pytest.raises(ConfigError, match=r"did you mean .*toy"):
        FollowedRun(tmp_path / "runs")
    run = FollowedRun(tmp_path)
    run.refresh()
    assert (run.record.status, run.record.metrics, run.record.silent_s) == ("stopped", [], None)
    RunDirectory(tmp_path).append_event("run.started")
    run.refresh()
    assert len(run.record.events) == 1


PNG = b"\x89PNG\r\n\x1a\n rest"


@pytest.fixture
def directory(make_run: MakeRun) -> RunDirectory:
    directory = make_run()
    write(directory.samples, a_sample(0, **a_picture(PNG)), a_sample(0, index=1), an_episode(0, group_id=1))
    write(directory.samples, a_sample(4, 9), held_out=True)
    return directory


@pytest.fixture
def api(directory: RunDirectory) -> Api:
    return Api([directory.path], wall_clock=lambda: directory.metrics.stat().st_mtime + 5)


def ask(api: Api, path: str) -> Any:
    name, _, query = path.partition("?")
    kind, body = api.answer(name.split("/"), Query(query.encode()))
    assert kind == "application/json"
    return json.loads(body)


def test_every_view_of_a_run_answers(api: Api) -> None:
    told = {"name": "tiny", "revision": 1, "status": "running", "num_lost": 0, "is_over": False}
    assert ask(api, "runs") == {"runs": [told]}
    assert ask(api, "comparison")["settings"] == {}
    assert ask(api, "runs/0/state")["doing"].startswith("Running at step 10 of 10")
    assert ask(api, "runs/0/curves")["columns"]["reward"][-1] == 0.9
    assert ask(api, "runs/0/histograms")["staleness"]["counts"] == [3]
    assert [node["name"] for node in ask(api, "runs/0/cluster")["nodes"]] == []
    assert ask(api, "runs/0/timeline")["source"] == "metrics.jsonl"
    assert ask(api, "runs/0/events")["num_events"] == 3
    assert len(ask(api, "runs/0/settings")["settings"]) > 100
    assert ask(api, "runs/0/samples")["total"] == 4


def test_a_listed_sample_leads_to_its_texts_its_group_and_its_pictures(api: Api) -> None:
    rows = ask(api, "runs/0/samples?sort=group&order=ascending&split=train")["rows"]
    where = f"split={rows[0]['split']}&file={rows[0]['file']}"
    assert ask(api, f"runs/0/excerpts?{where}&rows=0,2")["excerpts"][0] == {"prompt": "2 + 3 = ?", "completion": "5"}
    assert [sample["index"] for sample in ask(api, f"runs/0/group?{where}&group=0")["samples"]] == [0, 1]
    assert api.answer(["runs", "0", "picture"], Query(f"{where}&group=0&number=0".encode())) == ("image/png", PNG)
    held_out = ask(api, "runs/0/samples?split=held_out")["rows"][0]
    assert ask(api, f"runs/0/group?split=held_out&file={held_out['file']}&group=9")["samples"][0]["step"] == 4


def test_runs_are_numbered_in_the_order_of_the_setting_that_differs(make_run: MakeRun) -> None:
    runs = [make_run(name, staleness=staleness) for name, staleness in (("loose", 2.0), ("strict", 0.5))]
    api = Api([run.path for run in runs])
    assert [run["name"] for run in api.revisions()] == ["strict", "loose"]
    assert ask(api, "runs/0/overview")["name"] == "strict"


def test_curves_go_on_where_the_page_has_them_and_begin_anew_after_a_rewrite(api: Api, directory: RunDirectory) -> None:
    found = ask(api, "runs/0/curves?start=8&rewrites=0")
    assert (found["start"], found["columns"]["step"]) == (8, [8, 9])
    directory.append_metrics({"step": 5, "reward": 1.0})
    found = ask(api, "runs/0/curves?start=10&rewrites=0")
    assert (found["start"], found["rewrites"], len(found["columns"]["step"])) == (0, 1, 10)
    assert ask(api, "runs/0/curves?start=999&rewrites=1")["start"] == 0


def test_a_run_with_times_shows_them(api: Api, directory: RunDirectory) -> None:
    nodes = {"rollout-0": {"role": "rollout", "seconds": {"sampling": 1.5, "waiting for weights": 0.5}}}
    line = {"step": 0, "time_s": 2.0, "span_s": 2.0, "nodes": nodes}
    (directory.path / "times.jsonl").write_text(json.dumps(line) + "\n")
    assert ask(api, "runs/0/timeline")["source"] == "times.jsonl"
    overview = ask(api, "runs/0/overview")
    assert overview["waits"] == {"rollout": {"sampling": 0.5, "waiting for weights": 0.5}}, "as the steps say"
    assert overview["kinds"] == {"sampling": "works", "waiting for weights": "waits for a neighbour"}
    assert ask(api, "runs/0/cluster")["nodes"][0]["shares"] == {"sampling": 0.75, "waiting for weights": 0.25}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 404),
        ("runs/1/overview", 404),
        ("runs/-1/overview", 404),
        ("runs/٠/overview", 404),
        ("runs/tiny/overview", 404),
        ("runs/0/secret", 404),
        ("runs/0", 404),
        ("runs/0/overview/more", 404),
        ("runs/0/../config.toml", 404),
        ("runs/0/curves?start=x", 400),
        ("runs/0/samples?sort=x", 400),
        ("runs/0/excerpts?file=step_000000.parquet&rows=0,x", 400),
        ("runs/0/excerpts?file=step_000000.parquet&rows=99", 404),
        ("runs/0/excerpts?file=..%2F..%2Fconfig.toml&rows=0", 404),
        ("runs/0/group?file=step_000000.parquet&group=99", 404),
        ("runs/0/group?split=else&file=step_000000.parquet&group=0", 400),
        ("runs/0/picture?file=step_000000.parquet&group=1", 404),
        ("runs/0/timeline?columns=100000", 400),
    ],
)
def test_malformed_requests_are_refused_with_a_sentence(api: Api, path: str, status: int) -> None:
    with pytest.raises(RefusedAnswer) as refused:
        ask(api, path)
    assert refused.value.status == status
    assert len(refused.value.message) > 10


def test_a_damaged_samples_file_is_told(api: Api, directory: RunDirectory) -> None:
    (directory.samples / "step_000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(RefusedAnswer, match="cannot be read") as refused:
        ask(api, "runs/0/group?file=step_000000.parquet&group=0")
    assert refused.value.status == 409
    assert ask(api, "runs/0/samples")["problems"]


def test_a_dashboard_needs_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 to 64 runs, got 0"):
        Api([])
    with pytest.raises(ConfigError, match="not a run directory"):
        Api([tmp_path / "none"])


def test_values_are_typed() -> None:
    query = Query(b"a=%C3%A9&n=-1.5&k=7&c=two&empty=")
    assert (query.text("a"), query.number("n"), query.count("k", 0, most=9)) == ("é", -1.5, 7)
    assert (query.choice("c", ("one", "two")), query.choice("d", ("one", "two"))) == ("two", "one")
    assert (query.number("empty"), query.count("absent", 5, most=9), query.text("absent")) == (None, 5, "")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a=1&a=2", "names a value twice"),
        (b"a=%ff", "not percent-encoded UTF-8"),
        (b"\xff", "not percent-encoded UTF-8"),
        (b"n=nan", "n is 'nan', expected a number"),
        (b"n=1e999", "expected a number"),
        (b"n=x", "n is 'x', expected a number"),
        (b"k=10", "k is '10', expected a whole number from 0 to 9"),
        (b"k=-1", "expected a whole number"),
        ("k=٣".encode(), "not percent-encoded UTF-8"),
        (b"k=%D9%A3", "expected a whole number"),
        (b"c=three", "c is 'three', expected one of one, two"),
        (b"a=" + b"x" * 201, "a has 201 characters, expected at most 200"),
        (b"a=" + b"x" * 5000, "the query has 5002 bytes"),
    ],
)
def test_what_is_not_of_its_kind_is_refused_with_a_sentence(raw: bytes, message: str) -> None:
    with pytest.raises(RefusedAnswer, match=message) as refused:
        read(raw)
    assert 400 <= refused.value.status < 500


def read(raw: bytes) -> None:
    query = Query(raw)
    query.text("a")
    query.number("n")
    query.count("k", 0, most=9)
    query.choice("c", ("one", "two"))


def test_a_page_of_a_run_that_was_followed_is_that_of_one_read_at_once(tmp_path: Path) -> None:
    """Updates come at any time, and a step is recorded again where one begins: 5,000 steps, each told once."""
    directory = RunDirectory.create(tmp_path, "long")
    directory.append_event("run.started", time_s=0.0)
    followed = Api([directory.path], wall_clock=lambda: 0.0)
    for step in [*range(2500), *range(2490, 5000)]:
        directory.append_metrics({"step": step, "time_s": 1.0 * step, "step_s": 1.0, "reward": step / 5000})
        directory.append_event("version.live", policy_version=step + 1, time_s=1.0 * step)
        if step % 333 == 0:
            ask(followed, "runs/0/overview")
    pages = ("state", "overview", "cluster", "events", "settings", "timeline")
    anew = Api([directory.path], wall_clock=lambda: 0.0)
    assert [ask(followed, f"runs/0/{page}") for page in pages] == [ask(anew, f"runs/0/{page}") for page in pages]
    curves = [ask(api, "runs/0/curves")["columns"] for api in (followed, anew)]
    assert curves[0] == curves[1]
    assert len(curves[0]["step"]) <= MOST_LINES
    assert ask(anew, "runs/0/overview")["steps"] == 5000
    (live,) = (group for group in ask(followed, "runs/0/events")["groups"] if group["kind"] == "version.live")
    assert (live["num"], len(followed.runs[0].record.events) < 2500) == (5010, True)
