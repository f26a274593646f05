from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.records.history import StepHistory
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.dashboard.cluster_view import (
    MATTERS,
    EventQuery,
    columns,
    groups,
    histograms,
    members,
    nodes,
    settings,
    trouble_sentence,
)
from asyncrl.tools.dashboard.sample_index import NEWEST_STEPS, SampleIndex
from asyncrl.tools.dashboard.time_bands import TimeBands
from tests.recorded_runs import MakeRun
from tests.tools.dashboard.browser_free import a_sample, write


def event(kind: str, node: str = "rollout-0", **fields: Any) -> dict[str, Any]:
    return {"event": f"node.{kind}", "node": node, "role": "rollout", **fields}


def states(*events: dict[str, Any]) -> list[tuple[str, str]]:
    return [(node.name, node.state) for node in nodes(events, TimeBands(), {})]


def test_a_node_is_what_its_last_event_says() -> None:
    assert states(event("joined")) == [("rollout-0", "loading")]
    assert states(event("joined"), event("ready")) == [("rollout-0", "ready")]
    assert states(event("joined"), event("ready"), event("quiet")) == [("rollout-0", "silent")]
    assert states(event("ready"), event("quiet"), event("heard")) == [("rollout-0", "ready")]
    assert states(event("ready"), event("left", cause="done")) == [("rollout-0", "left")]


def test_a_reward_node_is_ready_once_it_has_joined() -> None:
    assert states(event("joined", "reward-0", role="reward")) == [("reward-0", "ready")]


def test_losses_are_counted_once_and_their_cause_goes_when_the_node_is_back() -> None:
    loss = [
        event("joined", time_s=1.0),
        event("exited", cause="was killed by SIGKILL", time_s=5.0),
        event("lost", cause="its connection is gone", time_s=6.0),
    ]
    (lost,) = nodes(loss, TimeBands(), {})
    assert (lost.state, lost.cause) == ("exited", "was killed by SIGKILL")
    (back,) = nodes([*loss, event("joined", time_s=9.0), event("ready", time_s=11.0)], TimeBands(), {"rollout-0": 4})
    assert (back.state, back.losses, back.joined, back.since_s) == ("ready", 1, 2, 11.0)
    assert (back.cause, back.version) == ("", 4)


def test_shares_of_time_are_those_of_the_last_spans_and_add_nodes_without_events() -> None:
    bands = TimeBands()
    for step in range(30):
        work = {"training": 1.0} if step < 10 else {"training": 0.5, "waiting for sampling": 1.5}
        bands.add(TimesLine(step, 2.0 * step, 2.0, {"trainer-0": NodeTimes("trainer", work)}))
    found = nodes([event("ready")], bands, {})
    assert [(node.name, node.role) for node in found] == [("trainer-0", "trainer"), ("rollout-0", "rollout")]
    assert found[0].shares == {"waiting for sampling": 0.75, "training": 0.25}
    assert found[1].shares == {}


def test_events_without_a_node_and_hostile_ones_are_passed_over() -> None:
    assert states({"event": "node.lost"}, {"event": "node.lost", "node": 3}, {"event": ["x"]}, {}) == []


# ── test curves ───────────────────────────────────────────────────────────────────────────────


def test_metrics_become_columns_from_a_step_on(make_run: MakeRun) -> None:
    record = read_run(make_run().path)
    found = columns(record, 7)
    assert (found["step"], found["reward"]) == ([7, 8, 9], [0.7, 0.8, 0.9])
    assert found["grad_norm"] == [None] * 3  # NaN was recorded as null
    assert columns(record, 10)["reward"] == []


def filled(folder: Path) -> SampleIndex:
    index = SampleIndex(folder, newest=NEWEST_STEPS)
    index.advance(60)
    return index


def test_every_sample_of_the_newest_steps_is_in_one_bin(tmp_path: Path) -> None:
    for step in range(60):
        tokens = [np.zeros(step * 7 + i, "<i4").tobytes() for i in range(3)]
        rows = [a_sample(step, index=i, completion_ids=ids, reward=i / 2, staleness=i) for i, ids in enumerate(tokens)]
        write(tmp_path, *rows)
    found = histograms(filled(tmp_path))
    assert found["steps"] == {"from": 10, "to": 59}
    for name in ("staleness", "reward", "length"):
        assert sum(found[name]["counts"]) == 150
        assert len(found[name]["edges"]) == len(found[name]["counts"]) + 1
    assert (found["staleness"]["edges"], found["staleness"]["counts"]) == ([-0.5, 0.5, 1.5, 2.5], [50, 50, 50])


@pytest.mark.parametrize("reward", [0.0, float("nan")])
def test_equal_and_missing_rewards_do_not_break_a_histogram(tmp_path: Path, reward: float) -> None:
    write(tmp_path, a_sample(reward=reward), a_sample(index=1, reward=reward))
    assert sum(histograms(filled(tmp_path))["reward"]["counts"]) == (2 if reward == 0 else 0)


def test_a_run_without_samples_has_empty_histograms(tmp_path: Path) -> None:
    assert histograms(filled(tmp_path)) == {
        "files_waiting": 0,
        "steps": {},
        **{name: {"edges": [], "counts": []} for name in ("staleness", "reward", "length")},
    }


# ── test event groups ─────────────────────────────────────────────────────────────────────────

EVENTS: list[dict[str, Any]] = [
    {"event": "run.started", "at": "t0", "name": "a", "time_s": 0.0},
    *(
        {"event": "node.lost", "node": f"rollout-{i % 3}", "cause": f"no beat for {10 + i}.5 s", "time_s": 1.0 + i}
        for i in range(6)
    ),
    {"event": "node.lost", "node": "rollout-9", "cause": "was killed by SIGKILL", "time_s": 9.0},
    {"event": "units.failed", "cause": "reward: KeyError: 'answer'", "count": 12, "time_s": 3.0},
    {"event": "units.failed", "cause": "reward: KeyError: 'score'", "count": 41, "time_s": 5.0},
    {"event": "eval.finished", "accuracy": 0.123456789, "policy_version": 10, "time_s": 50.0},
]  # fmt: skip


def test_events_of_one_kind_and_cause_are_one_group() -> None:
    found = groups(EVENTS, EventQuery())
    by_kind = [(group.kind, group.cause, group.num) for group in found]
    assert by_kind == [
        ("node.lost", "was killed by SIGKILL", 1),
        ("node.lost", "no beat for 15.5 s", 6),
        ("units.failed", "reward: KeyError: 'score'", 2),
        ("eval.finished", "", 1),
        ("run.started", "", 1),
    ]
    beat = found[1]
    assert (beat.nodes, beat.first_s, beat.last_s) == (["rollout-0", "rollout-1", "rollout-2"], 1.0, 6.0)
    assert (found[2].counted, found[3].details) == (41, "v10: accuracy 12.3 % of ? prompts")
    assert [group.weight for group in found] == ["trouble", "trouble", "trouble", "news", "news"]


def details(*events: dict[str, Any]) -> list[str]:
    return [group.details for group in groups(events, EventQuery())]


def test_a_group_says_what_all_its_events_have_and_what_only_the_last_has() -> None:
    assert details(event("joined"), event("joined", "rollout-1")) == ["role rollout; last: node rollout-1"]
    assert details(event("joined"), event("joined", "spool", role="spool")) == ["last: node spool, role spool"]
    assert details(event("joined"), event("joined")) == ["role rollout"]
    evaluations = [{"event": "eval.finished", "policy_version": v, "accuracy": 0.5, "num_prompts": 8} for v in (1, 2)]
    assert details(*evaluations) == ["last: v2: accuracy 50.0 % of 8 prompts"]
    assert details({"event": "checkpoint.written", "ledger_head": "0123456789abcdef" * 4}) == [
        "ledger_head 0123456789ab…"
    ]


def weights(*events: dict[str, Any]) -> list[str]:
    return [group.weight for group in groups(events, EventQuery())]


def test_trouble_that_is_over_is_below_what_lasts_and_above_news_and_routine() -> None:
    interrupted = {"event": "run.finished", "status": "interrupted", "time_s": 5.0}
    resumed = {"event": "run.resumed", "time_s": 6.0}
    cut = {"event": "completions.cut", "time_s": 1.0}
    live = {"event": "version.live", "time_s": 9.0}
    assert weights(event("lost", cause="silent")) == ["trouble"]
    assert weights(event("lost", cause="silent"), event("joined", "rollout-1")) == ["trouble", "routine"]
    assert weights(event("lost", cause="silent"), event("joined")) == ["over", "routine"]
    assert weights(interrupted, resumed, live, cut) == ["trouble", "over", "news", "routine"]
    assert weights(event("lost"), {"event": "run.finished", "status": "finished"}) == ["over", "news"]
    assert weights({"event": "eval.lost"}, {"event": "eval.finished", "accuracy": 0.5}) == ["over", "news"]
    assert weights(cut, {"event": "run.finished", "status": "finished"}) == ["trouble", "news"]


def test_the_page_begins_with_whether_anything_is_wrong_now() -> None:
    lost = event("lost", cause="silent", time_s=3.0, at="2026-01-31T12:00:03Z")
    back = event("joined", time_s=9.0, at="2026-01-31T12:00:09Z")
    assert trouble_sentence([], "No trouble now.") == "No trouble now."
    told = "1 event of trouble, and nothing has ended the last: node.lost of rollout-0 at 3.0 s (silent)."
    assert trouble_sentence([lost], "No trouble now.") == told
    healed = "No trouble now. The last trouble was node.lost of rollout-0 at 3.0 s (silent), over after 6.0 s."
    assert trouble_sentence([lost, back], "No trouble now.") == healed
    assert [group.end for group in groups([lost, back], EventQuery())] == ["over after 6.0 s", ""]


def test_a_group_weighs_as_much_as_its_heaviest_event() -> None:
    both = [event("lost"), event("joined"), event("lost", "rollout-1")]
    assert weights(*both) == ["trouble", "routine"]


def test_a_node_that_does_not_come_back_after_a_resume_is_not_shown_as_ready() -> None:
    begun = [event("joined"), event("ready"), event("joined", "rollout-1"), event("lost", "rollout-1")]
    resumed: dict[str, Any] = {"event": "run.resumed"}
    assert states(*begun, resumed) == [("rollout-0", "silent"), ("rollout-1", "lost")]
    assert states(*begun, resumed, event("joined"), event("ready"))[0] == ("rollout-0", "ready")


def test_the_end_of_a_run_is_the_end_of_its_nodes() -> None:
    finished = {"event": "run.finished", "time_s": 40.0}
    joined = event("joined", "spool", role="spool", time_s=1.0)
    (spool,) = nodes([joined, finished], TimeBands(), {}, is_over=True)
    assert (spool.state, spool.cause, spool.since_s) == ("left", "the run is over", 40.0)
    (lost,) = nodes([event("lost", cause="silent for 10 s")], TimeBands(), {}, is_over=True)
    assert (lost.state, lost.cause) == ("lost", "silent for 10 s")


def test_a_node_shows_how_full_its_machine_is() -> None:
    bands = TimeBands()
    for cores, memory in ((0.1, 0.2), (0.9, 0.75)):
        bands.add(TimesLine(0, 1.0, 1.0, {"a": NodeTimes("rollout", {"sampling": 1.0}, 0, 0.0, 0.0, cores, memory)}))
    assert nodes([], bands, {})[0].use == {"cores": 0.9, "memory": 0.75}


def test_a_group_opens_to_its_last_events() -> None:
    lost = groups(EVENTS, EventQuery())[1]
    assert members(EVENTS, EventQuery(), lost.id) == EVENTS[1:7]
    assert members(EVENTS * 100, EventQuery(node="rollout-1"), lost.id)[-1] == EVENTS[5]
    assert len(members(EVENTS * 100, EventQuery(), lost.id)) == 200
    assert members(EVENTS, EventQuery(), "0") == []


def test_filters_are_by_kind_node_and_text() -> None:
    assert [group.num for group in groups(EVENTS, EventQuery(kind="node.lost"))] == [1, 6]
    assert [group.num for group in groups(EVENTS, EventQuery(node="rollout-1"))] == [2]
    assert [group.kind for group in groups(EVENTS, EventQuery(text="KEYERROR"))] == ["units.failed"]
    assert groups(EVENTS, EventQuery(kind="node.lost", text="keyerror")) == []


def test_hostile_events_do_not_break_the_list() -> None:
    hostile: list[dict[str, Any]] = [
        {}, {"event": None, "cause": ["x"], "node": {"a": 1}, "time_s": "soon", "count": True},
        {"event": "x" * 10_000, "cause": "<script>alert(1)</script>" * 1000},
    ]  # fmt: skip
    found = groups(hostile, EventQuery(text="<SCRIPT>"))
    assert [len(group.cause) for group in found] == [400]
    assert len(groups(hostile, EventQuery())) == 3


# ── test settings view ────────────────────────────────────────────────────────────────────────


def shown(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    record = RunRecord(
        name="a", config=config, summary=None, step_history=StepHistory(), events=[], pictured=[], notes=[]
    )
    return {row["key"]: row for row in settings(record)}


def test_every_setting_has_value_default_and_meaning_and_changed_ones_are_marked() -> None:
    rows = shown({"run.steps": 40, "run.seed": 0, "model.path": "m", "run.epochs": ""})
    assert (rows["run.steps"]["value"], rows["run.steps"]["default"], rows["run.steps"]["is_changed"]) == (
        "40",
        "60",
        True,
    )
    assert rows["run.steps"]["meaning"].startswith("Optimizer steps to train")
    assert (rows["run.seed"]["is_changed"], rows["run.epochs"]["is_changed"]) == (False, False)
    assert (rows["model.path"]["default"], rows["model.path"]["is_changed"]) == ("required", False)
    assert rows["schedule.staleness"]["value"] == rows["schedule.staleness"]["default"]
    assert len(rows) > 150


def test_the_settings_that_matter_most_come_first_whether_they_are_the_default_or_not() -> None:
    rows = list(shown({"run.steps": 40, "future.setting": 1}).values())
    assert [row["key"] for row in rows[: len(MATTERS)]] == list(MATTERS)
    assert [row["matters"] for row in rows] == [True] * len(MATTERS) + [False] * (len(rows) - len(MATTERS))
    assert rows[-1]["key"] == "future.setting"


def test_a_setting_that_changed_while_the_run_went_on_says_so() -> None:
    change = {"event": "setting.changed", "key": "trainer.lr", "value": 1e-4, "time_s": 10.0}
    record = RunRecord(
        name="a",
        config={"trainer.lr": 2e-4},
        summary=None,
        step_history=StepHistory(),
        events=[change],
        pictured=[],
        notes=[],
    )
    (row,) = (row for row in settings(record) if row["key"] == "trainer.lr")
    assert (row["value"], row["is_changed"]) == ("0.0002; 0.0001 before the first step was done (10.0 s)", True)


def test_a_table_with_keys_of_its_own_is_one_setting() -> None:
    rows = shown({"model.overrides.rope_scaling.factor": 2, "model.overrides.a": "b"})
    assert rows["model.overrides"]["value"] == '{"rope_scaling.factor":2,"a":"b"}'
    assert rows["model.overrides"]["is_changed"]


def test_secrets_are_hidden() -> None:
    rows = shown({"trackers.wandb_api_key": "hunter2", "reward.options.token": "hunter2", "a.password": "hunter2"})
    assert "hunter2" not in str(rows)
    assert "hidden" in str(rows)


def test_keys_that_this_version_does_not_know_are_shown() -> None:
    assert shown({"future.setting": [1]})["future.setting"]["value"] == "[1]"
