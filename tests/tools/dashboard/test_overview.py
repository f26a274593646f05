from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.records.run_directory import RunSummary
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.tools.dashboard import overview as page
from asyncrl.tools.dashboard.overview import Tile, overview, samples_sentence, timeline_sentence
from tests.recorded_runs import MakeRun

MakeSummary = Callable[..., RunSummary]


def record(**fields: Any) -> RunRecord:
    values: dict[str, Any] = {
        "name": "a", "config": {"run.steps": 100}, "summary": None, "metrics": [], "events": [], "pictured": [],
        "notes": [],
    }  # fmt: skip
    return RunRecord(**values | fields)


def sentence(run: RunRecord, waits: Mapping[str, Mapping[str, float]], silent_s: float | None) -> str:
    return page.sentence(run, waits, silent_s, run.measures())


def tiles(run: RunRecord) -> list[Tile]:
    return page.tiles(run, run.measures())


STEPS = [
    {"step": step, "time_s": 10.0 * step, "step_s": 10.0, "wait_s": 4.0, "wait_rollout_s": 7.0 * (step > 9)}
    for step in range(20)
]


def test_a_running_run_says_where_it_is_how_long_it_takes_and_who_waits() -> None:
    said = sentence(record(metrics=STEPS), {}, silent_s=3.0)
    left = "Running at step 20 of 100, about 13 min 20 s left."
    assert said == f"{left} Of the time of all steps, the trainer waited 40%; rollouts waited 35%."
    waits = {
        "reward": {"waiting for sampling": 1.0},
        "rollout": {"sampling": 0.3, "waiting for the trainer": 0.6, "waiting for newer weights": 0.1},
        "trainer": {"training": 1.0},
    }
    told = "rollouts waited 35% (for the trainer 30%, for newer weights 5%)."
    assert told in sentence(record(metrics=STEPS), waits, 3.0)


def test_nodes_that_are_gone_are_named_until_they_are_back() -> None:
    lost = [
        {"event": "node.lost", "node": f"rollout-{n}", "role": "rollout", "cause": "silent for 10 s"} for n in (0, 1)
    ]
    told = "2 nodes (rollout-0, rollout-1) were lost: silent for 10 s."
    assert told in sentence(record(metrics=STEPS, events=lost), {}, 3.0)
    assert told in sentence(record(metrics=STEPS, events=lost), {}, 500.0)
    assert [overview(record(events=events), {}, 3.0)["num_lost"] for events in ([], lost)] == [0, 2]
    back = {"event": "node.joined", "node": "rollout-1", "role": "rollout"}
    assert "rollout-0 was lost: silent" in sentence(record(metrics=STEPS, events=[*lost, back]), {}, 3.0)


def test_a_run_before_its_first_step_says_what_it_waits_for() -> None:
    joined = {"event": "node.joined", "node": "rollout-0", "role": "rollout"}
    assert sentence(record(events=[joined]), {}, 3.0) == (
        "Running before the first step: no trainer or reward has joined yet."
    )
    waiting = {"event": "run.waiting", "cause": "no trainer has joined"}
    assert sentence(record(events=[joined, waiting]), {}, 3.0) == (
        "Running before the first step: no trainer has joined."
    )


def test_a_silent_run_without_an_end_may_have_been_killed_unless_it_is_served() -> None:
    assert "was stopped or killed, and `asyncrl resume` continues it" in sentence(
        record(metrics=STEPS), {}, silent_s=500.0
    )
    slow = [line | {"time_s": 300.0 * line["step"]} for line in STEPS]
    assert sentence(record(metrics=slow), {}, silent_s=500.0).startswith("Running")
    served = sentence(record(metrics=STEPS, is_served=True), {}, silent_s=500.0)
    assert served.startswith("Running at step 20 of 100, about 13 min 20 s left. Its broker runs, and has recorded")
    begun = "Running before the first step: no trainer or rollout or reward has joined yet."
    assert sentence(record(is_served=True), {}, silent_s=None) == begun


def test_an_evaluation_that_goes_on_is_told_however_long_it_takes() -> None:
    started = {"event": "eval.started", "policy_version": 0, "num_prompts": 32}
    said = sentence(record(events=[started], is_served=True), {}, silent_s=80.0)
    assert said == "Running before the first step. v0 is being evaluated on 32 prompts."
    finished = {"event": "eval.finished", "policy_version": 0}
    assert "is being evaluated" not in sentence(record(events=[started, finished], is_served=True), {}, silent_s=3.0)


def test_a_held_out_reward_is_told_beside_the_accuracy_that_it_is_not() -> None:
    for reward, told in ((0.5, "v3"), (0.75, "v3, reward 0.75")):
        finished = {"event": "eval.finished", "policy_version": 3, "accuracy": 0.5, "num_prompts": 8, "reward": reward}
        assert [tile.note for tile in tiles(record(events=[finished])) if tile.label == "held-out accuracy"] == [told]


def test_restarts_are_told_for_the_charts() -> None:
    resumed = {"event": "run.resumed", "start": 2, "time_s": 45.0}
    (restart,) = overview(record(metrics=STEPS, events=[resumed]), {}, 3.0)["restarts"]
    assert (restart.step, restart.time_s) == (5, 45.0)


def test_each_end_is_told_with_its_cause(make_run: MakeRun, summary: MakeSummary) -> None:
    directory = make_run()
    ends = {
        "finished": "Finished 10 of 10 steps in 20.0 s; held-out accuracy rose from 25.0 % to 75.0 %.",
        "failed": "Failed after step 10 of 10: the disk is full.",
        "interrupted": "Interrupted after step 10 of 10; `asyncrl resume` continues it.",
    }
    for status, expected in ends.items():
        directory.write_summary(summary(status=status, cause="the disk is full" if status == "failed" else ""))
        assert sentence(read_run(directory.path), {}, 0.0) == expected


def test_the_headline_numbers_are_the_same_ones_whatever_was_recorded(make_run: MakeRun) -> None:
    full, empty = tiles(read_run(make_run().path)), tiles(record())
    assert [tile.label for tile in full] == [tile.label for tile in empty]
    assert [tile.value for tile in full] == ["0.7", "75.0 %", "500", "2 s", "25% / 50%", "30", "0.5", "2.0e−6"]
    assert [tile.note for tile in full] == [
        "last 5 steps; 0.2 in the first 5 steps",
        "v10, from 25.0 %",
        "last 10 steps; 500 in all",
        "last 10 steps; 2 s in all",
        "trainer / rollouts, last 10 steps",
        "tokens, last 10 steps",
        "versions, mean of all 10 steps; 1 at most",
        "nats, mean of all 10 steps",
    ]
    assert {tile.value for tile in empty} == {"–"}


@pytest.mark.parametrize("silent_s", [None, 1.0])
def test_shares_of_waiting_come_from_metrics_without_times(make_run: MakeRun, tmp_path: Path, silent_s: float) -> None:
    shown = overview(read_run(make_run().path), {}, silent_s)
    assert shown["waits"] == {
        "trainer": {"working": 0.75, "waiting": 0.25},
        "rollout": {"working": 0.5, "waiting": 0.5},
    }
    assert (shown["waits_are_whole"], shown["status"]) == (False, "stopped" if silent_s is None else "running")
    waits = {"trainer": {"training": 0.4, "publishing": 0.1, "waiting for sampling": 0.4, "waiting for prompts": 0.1}}
    scaled = overview(record(metrics=STEPS), waits, silent_s)["waits"]
    assert scaled == {
        "trainer": pytest.approx(
            {"training": 0.48, "publishing": 0.12, "waiting for sampling": 0.32, "waiting for prompts": 0.08}
        )
    }, "the share that every place shows, divided as times.jsonl says"
    whole = {"trainer": {"training": 1.0}}
    assert overview(record(), whole, silent_s)["waits"] == whole


def test_timeline_and_samples_begin_with_what_is_seen_and_whether_all_is_well() -> None:
    lines = [line | {"reward": line["step"] / 20, "truncated": 0.25, "zero_advantage_fraction": 0.5} for line in STEPS]
    joined = {"event": "node.joined", "node": "rollout-0", "role": "rollout"}
    lost = {"event": "node.lost", "node": "rollout-0", "role": "rollout", "cause": "silent for 10 s", "time_s": 9.0}
    shown = "What each node did: the height of a colour is its share of the time."
    waited = " Of the time of all steps, the trainer waited 40%; rollouts waited 35%."
    assert timeline_sentence(record(metrics=lines, events=[joined]), {}) == f"{shown}{waited} No node is missing."
    told = timeline_sentence(record(metrics=lines, events=[joined, lost]), {})
    assert told == f"{shown}{waited} rollout-0 was lost at 9.0 s: silent for 10 s."
    assert timeline_sentence(record(), {}) == f"{shown} Nobody waited for long."

    assert samples_sentence(record()) == "What the policy wrote, and what it was rewarded with."
    assert samples_sentence(record(metrics=lines)) == (
        "What the policy wrote, and what it was rewarded with. The mean reward was 0.725 (last 10 steps; 0.225 in the "
        "first 10 steps); 25.0 % of the completions of the last 10 steps were cut at their limit; 50.0 % of them "
        "taught nothing, as their group had equal rewards."
    )
    cut = {"event": "completions.cut", "step": 3, "truncated": 0.95, "advice": ""}
    assert "95% of the completions had been cut" in samples_sentence(record(metrics=lines, events=[cut]))
