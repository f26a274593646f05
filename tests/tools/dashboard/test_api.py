import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.run_directory import RunDirectory
from asyncrl.tools.dashboard.api import Api
from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from tests.recorded_runs import MakeRun
from tests.tools.dashboard.browser_free import a_picture, a_sample, an_episode, write

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
    assert ask(api, "runs") == {"runs": [{"name": "tiny", "revision": 1, "is_over": False}]}
    assert ask(api, "runs/0/overview")["sentence"].startswith("Training, step 10 of 10")
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
    assert overview["waits"] == {"rollout": {"sampling": 0.75, "waiting for weights": 0.25}}
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
    with pytest.raises(ConfigError, match="no such run"):
        Api([tmp_path / "none"])
