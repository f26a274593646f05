from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.records.history import StepHistory
from asyncrl.records.run_directory import RunSummary
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.tools.dashboard import overview as page
from asyncrl.tools.dashboard.cluster_view import nodes
from asyncrl.tools.dashboard.overview import Tile, overview, samples_sentence, timeline_sentence
from asyncrl.tools.dashboard.time_bands import TimeBands
from tests.recorded_runs import MakeRun

MakeSummary = Callable[..., RunSummary]


def record(metrics: Sequence[Mapping[str, Any]] = (), **fields: Any) -> RunRecord:
    values: dict[str, Any] = {
        "name": "a", "config": {"run.steps": 100}, "summary": None, "events": [], "pictured": [],
        "notes": [],
        "silent_s": 3.0,
    }  # fmt: skip
    return RunRecord(step_history=StepHistory(metrics), **values | fields)


def sentence(run: RunRecord, waits: Mapping[str, Mapping[str, float]], silent_s: float | None = 3.0) -> str:
    return str(page.state_line(replace(run, silent_s=silent_s), waits))


def tiles(run: RunRecord) -> list[Tile]:
    return page.tiles(run, run.measures())


STEPS = [
    {"step": step, "time_s": 10.0 * step, "step_s": 10.0, "wait_s": 4.0, "wait_rollout_s": 7.0 * (step > 9)}
    for step in range(20)
]


def test_a_running_run_says_where_it_is_how_long_it_takes_and_who_waits() -> None:
    said = sentence(record(metrics=STEPS), {}, silent_s=3.0)
    left = "Running at step 20 of 100, about 13 min 20 s left."
    assert said == f"{left} All is well. Most in the way: the trainer waited 40 % of the time of all 20 steps."
    busy = [line | {"wait_s": 0.5, "wait_rollout_s": 0.5} for line in STEPS]
    assert sentence(record(metrics=busy), {}).endswith("All is well. Nothing is in the way: nobody waits for long.")
    waits = {
        "reward": {"waiting for sampling": 1.0},
        "rollout": {"sampling": 0.3, "waiting for the trainer": 0.5, "waiting for newer weights": 0.1, "asleep": 0.1},
        "trainer": {"training": 1.0},
    }
    told = "rollouts waited 35 %, mostly for the trainer and newer weights."
    assert told in timeline_sentence(record(metrics=STEPS), waits)
    free = [line | {"wait_s": 0.5} for line in STEPS]
    told = (
        "Most in the way: rollouts waited 35 % of the time of all 20 steps, mostly for the trainer and newer weights."
    )
    assert sentence(record(metrics=free), waits).endswith(told)


def test_nodes_that_are_gone_are_named_until_they_are_back() -> None:
    lost = [
        {"event": "node.lost", "node": f"rollout-{n}", "role": "rollout", "cause": "silent for 10 s"} for n in (0, 1)
    ]
    told = "2 nodes (rollout-0, rollout-1) were lost: silent for 10 s."
    assert told in sentence(record(metrics=STEPS, events=lost), {}, 3.0)
    assert told in sentence(record(metrics=STEPS, events=lost), {}, 500.0)
    assert [overview(record(events=events), {})["num_lost"] for events in ([], lost)] == [0, 2]
    back = {"event": "node.joined", "node": "rollout-1", "role": "rollout"}
    assert "rollout-0 was lost: silent" in sentence(record(metrics=STEPS, events=[*lost, back]), {}, 3.0)


def test_a_run_before_its_first_step_says_how_long_it_has_started_and_what_it_waits_for() -> None:
    joined = {"event": "node.joined", "node": "rollout-0", "role": "rollout", "time_s": 9.0}
    begun = "Running before the first step, 12.0 s after its start."
    told = "No trainer, spool or reward node has joined yet"
    assert sentence(record(events=[joined]), {}) == f"{begun} All is well. {told}: normal in the first 60 s."
    late = f"Take note. {told}, though 60 s are over: start one, or look at its log."
    assert sentence(record(events=[joined]), {}, silent_s=55.0).endswith(late)
    waiting = {"event": "run.waiting", "cause": "no trainer has joined"}
    assert sentence(record(events=[joined, waiting]), {}) == f"{begun} Not well. It waits: no trainer has joined."
    rest = [joined | {"node": role, "role": role} for role in ("trainer", "spool", "reward")]
    loading = record(config={"broker.node_ttl_s": 10.0}, events=[joined, *rest])
    told = "The nodes load the model: normal, and longer for a larger one. One that is silent for 10 s is named here."
    assert sentence(loading, {}) == f"{begun} All is well. {told}"
    live = {"event": "version.live", "policy_version": 0}
    assert sentence(record(events=[joined, *rest, live]), {}).endswith("All is well. The first step comes next.")


def test_a_run_that_stopped_says_what_is_known_and_then_what_to_do() -> None:
    lost = {"event": "node.lost", "node": "rollout-0", "role": "rollout", "cause": "silent for 10 s"}
    waiting = {"event": "run.waiting", "cause": "no rollout is connected"}
    what_to_do = "No broker serves it on this machine: `asyncrl resume` continues it."
    told = f"rollout-0 was lost: silent for 10 s. It waited: no rollout is connected. {what_to_do}"
    stopped = record(metrics=STEPS, events=[lost, waiting], silent_s=500.0)
    begun = "Stopped after step 20 of 100, 8 min 20 s ago. All below is from then."
    assert sentence(stopped, {}, 500.0) == f"{begun} Not well. {told}"
    live = {"event": "version.live", "policy_version": 20}
    assert "It waited" not in sentence(record(events=[waiting, live]), {}, 500.0)


def test_a_silent_run_without_an_end_has_stopped_unless_its_steps_are_long_or_it_is_served() -> None:
    slow = [line | {"time_s": 300.0 * line["step"]} for line in STEPS]
    assert sentence(record(metrics=slow), {}, silent_s=500.0).startswith("Running")
    served = sentence(record(metrics=STEPS, is_served=True), {}, silent_s=500.0)
    told = "Running at step 20 of 100, about 13 min 20 s left. Take note. Its broker runs, and has recorded nothing"
    assert served.startswith(told)
    paused = record(metrics=STEPS, events=[{"event": "sampling.paused"}], is_served=True)
    told = "Paused at step 20 of 100: an operator paused it, and `asyncrl unpause` lets it go on. All is well."
    assert sentence(paused, {}, silent_s=500.0).startswith(told)
    told = "No trainer, rollout, spool or reward node has joined yet: normal"
    begun = f"Running before the first step. All is well. {told}"
    assert sentence(record(is_served=True), {}, silent_s=None).startswith(begun)


def test_a_role_is_missing_until_a_node_of_it_joins_and_a_run_that_is_over_misses_none(summary: MakeSummary) -> None:
    joined = {"event": "node.joined", "node": "rollout-0", "role": "rollout"}
    started = record(events=[joined])
    (node,) = nodes(started.events, TimeBands(), {})
    told = "1 rollout loading · no trainer, spool or reward node has joined yet"
    assert page.cluster_sentence(started, [node]) == told

    every = [joined | {"node": role, "role": role} for role in ("trainer", "rollout", "spool", "reward")]
    whole = record(events=every)
    assert page.events_sentence(whole) == "No trouble now."
    gone = {"event": "node.left", "node": "reward", "role": "reward"}
    before = [{"event": kind, "node": "reward-7", "role": "reward"} for kind in ("node.joined", "node.lost")]
    assert "Every reward node has left." in sentence(record(events=[*before, *every, gone]), {})
    over = record(events=every, summary=summary())
    assert page.events_sentence(over) == "The run is over."
    assert timeline_sentence(over, {}) == ""
    found = nodes(every, TimeBands(), {}, is_over=True)
    assert page.cluster_sentence(over, found) == "All 4 nodes have left: the run is over."


def test_what_is_wrong_stands_on_every_page_and_a_trouble_that_lasts_is_noted() -> None:
    lost = {"event": "node.lost", "node": "rollout-0", "role": "rollout", "cause": "silent for 10 s", "time_s": 9.0}
    run = record(metrics=STEPS, events=[lost])
    assert sentence(run, {}).endswith("Not well. rollout-0 was lost at 9.0 s: silent for 10 s.")
    dropped = {"event": "group.dropped", "time_s": 9.0, "cause": "no verdict"}
    told = "Take note. 1 event of trouble, and nothing has ended the last: group.dropped at 9.0 s (no verdict). Most in"
    assert told in sentence(record(metrics=STEPS, events=[dropped]), {})
    alarm = {"event": "completions.cut", "step": 3, "truncated": 0.95, "advice": ""}
    assert page.events_sentence(record(events=[alarm], metrics=STEPS)).startswith("1 event of trouble")


def test_the_cluster_is_told_by_role_and_state() -> None:
    joined = [
        {"event": "node.joined", "node": f"{role}-{n}", "role": role}
        for role, many in (("trainer", 1), ("rollout", 3), ("reward", 2), ("spool", 1))
        for n in range(many)
    ]
    ready = {"event": "node.ready", "node": "rollout-0", "role": "rollout"}
    run = record(events=[*joined, ready])
    told = "1 trainer loading · 3 rollouts: 1 ready, 2 loading · 2 reward nodes ready · 1 spool ready"
    assert page.cluster_sentence(run, nodes(run.events, TimeBands(), {})) == told


def test_an_evaluation_that_goes_on_is_told_however_long_it_takes() -> None:
    started = {"event": "eval.started", "policy_version": 0, "num_prompts": 32}
    said = sentence(record(events=[started], is_served=True), {}, silent_s=80.0)
    assert said.startswith("Running before the first step. v0 is being evaluated on 32 prompts. All is well.")
    finished = {"event": "eval.finished", "policy_version": 0}
    assert "is being evaluated" not in sentence(record(events=[started, finished], is_served=True), {}, silent_s=3.0)


def test_a_held_out_reward_is_told_beside_the_accuracy_that_it_is_not() -> None:
    for reward, told in ((0.5, "v3"), (0.75, "v3, reward 0.75")):
        finished = {"event": "eval.finished", "policy_version": 3, "accuracy": 0.5, "num_prompts": 8, "reward": reward}
        assert [tile.note for tile in tiles(record(events=[finished])) if tile.label == "held-out accuracy"] == [told]


def test_restarts_are_told_for_the_charts() -> None:
    resumed = {"event": "run.resumed", "start": 2, "time_s": 45.0}
    (restart,) = overview(record(metrics=STEPS, events=[resumed]), {})["restarts"]
    assert (restart.step, restart.time_s) == (5, 45.0)


def test_each_end_is_told_with_its_cause(make_run: MakeRun, summary: MakeSummary) -> None:
    directory, result = make_run(), "; held-out accuracy rose from 25.0 % to 75.0 %"
    resume = "`asyncrl resume` continues it."
    ends = {
        "finished": f"Finished 10 of 10 steps in 20.0 s{result}. All is well. It ended as planned.",
        "failed": f"Failed after step 10 of 10{result}. Not well. It failed: the disk is full.",
        "interrupted": f"Interrupted after step 10 of 10{result}. Take note. It ended early; {resume}",
    }
    for status, expected in ends.items():
        directory.write_summary(summary(status=status, cause="the disk is full" if status == "failed" else ""))
        assert sentence(read_run(directory.path), {}) == expected
    directory.write_summary(summary(status="interrupted", cause="on_step raised ValueError: no figure (plot.py:3)"))
    told = "Take note. It ended early: on_step raised ValueError: no figure (plot.py:3); `asyncrl resume` continues it."
    assert sentence(read_run(directory.path), {}).endswith(told)
    directory.append_event("sampling.paused", by="me")
    directory.write_summary(summary(status="interrupted"))
    told = "`asyncrl resume` continues it, paused as it was: `asyncrl unpause` then lets it go on."
    assert sentence(read_run(directory.path), {}).endswith(told)
    directory.write_summary(summary(goal="accuracy >= .7"))
    assert sentence(read_run(directory.path), {}).startswith(
        "Finished 10 of 10 steps (run.stop_when: accuracy >= .7) in "
    )


def test_the_headline_numbers_are_the_same_ones_whatever_was_recorded(make_run: MakeRun) -> None:
    full, empty = tiles(read_run(make_run().path)), tiles(record())
    assert [tile.label for tile in full] == [tile.label for tile in empty]
    assert [tile.value for tile in full] == ["0.7", "75.0 %", "500", "2 s", "25 / 50 %", "30", "0.5", "2.0e−6"]
    assert [tile.note for tile in full] == [
        "last 5 steps; 0.2 in the first 5 steps",
        "v10, from 25.0 %",
        "last 10 steps; 500 in all",
        "last 10 steps; 2 s in all",
        "trainer / rollouts, last 10 steps; 25 / 50 % in all",
        "tokens, last 10 steps",
        "versions, mean of all 10 steps; 1 at most",
        "nats, mean of all 10 steps",
    ]
    assert {tile.value for tile in empty} == {"–"}


def test_the_spans_of_the_headline_numbers_stay_when_the_run_ends(make_run: MakeRun, summary: MakeSummary) -> None:
    directory = make_run()
    while_running = tiles(read_run(directory.path))
    directory.write_summary(summary())
    assert tiles(read_run(directory.path)) == while_running


def test_shares_of_waiting_come_from_metrics_without_times(make_run: MakeRun) -> None:
    shown = overview(read_run(make_run().path), {})
    assert shown["waits"] == {
        "trainer": {"working": 0.75, "waiting": 0.25},
        "rollout": {"working": 0.5, "waiting": 0.5},
    }
    assert (shown["waits_are_whole"], shown["waited"]) == (False, {"trainer": "waits 25 %", "rollout": "waits 50 %"})
    waits = {"trainer": {"training": 0.4, "publishing": 0.1, "waiting for sampling": 0.4, "waiting for prompts": 0.1}}
    scaled = overview(record(metrics=STEPS), waits)["waits"]
    assert scaled == {
        "trainer": pytest.approx(
            {"training": 0.48, "publishing": 0.12, "waiting for sampling": 0.32, "waiting for prompts": 0.08}
        )
    }, "the share that every place shows, divided as times.jsonl says"
    whole = {"trainer": {"training": 1.0}}
    assert overview(record(), whole)["waits"] == whole


def test_every_role_has_its_waiting_beside_its_bar_in_parts_that_add_up() -> None:
    waits = {
        "trainer": {"training": 0.4, "waiting for sampling": 0.2, "waiting for grading": 0.2, "waiting for data": 0.2},
        "rollout": {"sampling": 0.2, **{f"waiting for {cause}": 0.2 for cause in "abcd"}},
        "reward": {"grading": 0.3, "waiting for sampling": 0.7},
    }
    assert overview(record(metrics=STEPS), waits)["waited"] == {
        "trainer": "waits 40 %: sampling 14 %, grading 13 %, data 13 %",
        "rollout": "waits 35 %: a 9 %, b 9 %, c 9 %, among others",
        "reward": "waits 70 %: sampling 70 %",
    }


def test_a_run_says_what_it_trains_and_how() -> None:
    config = {"model.path": "/a/b/model", "data.train": "/a/c/train.parquet", "trainer.lr": 2e-4}
    assert page.settings_sentence(record(config=config)).startswith(
        "Trains b/model on c/train.parquet: trainer.lr 0.0002, "
    )
    assert page.settings_sentence(record(config={})) == ""
    begins = overview(record(config=config), {})["begins"]
    assert begins.startswith("Trains b/model on"), "before the first step there is nothing else to say"
    assert overview(record(config=config, metrics=STEPS), {})["begins"] == ""


def test_timeline_and_samples_begin_with_what_is_seen_and_whether_all_is_well() -> None:
    lines = [line | {"reward": line["step"] / 20, "truncated": 0.25, "zero_advantage_fraction": 0.5} for line in STEPS]
    joined = {"event": "node.joined", "node": "rollout-0", "role": "rollout"}
    waited = "Of the time of all 20 steps, the trainer waited 40 %; rollouts waited 35 %."
    waited = f"Steps were made from 0.0 s to 3 min 10 s. {waited}"
    last = "The last record is of 3 min 10 s, written 3.0 s ago."
    told = timeline_sentence(record(metrics=lines, events=[joined]), {})
    assert told == f"{waited} {last}"
    still = {"event": "run.waiting", "cause": "no rollout is connected", "time_s": 260.0}
    told = timeline_sentence(record(metrics=lines, events=[joined, still]), {})
    assert told.startswith(
        "Steps were made from 0.0 s to 3 min 10 s. Nothing has moved since. The last record is of 4 min"
    )

    assert samples_sentence(record()) == "What the policy wrote, and what it was rewarded with."
    assert samples_sentence(record(metrics=lines)) == (
        "What the policy wrote, and what it was rewarded with. The mean reward was 0.725 (last 10 steps; 0.225 in the "
        "first 10 steps); 25.0 % of the completions of the last 10 steps were cut at their limit; 50.0 % of the "
        "completions taught nothing, as all rewards of their group were equal, which is usual where prompts are too "
        "easy or too hard."
    )


def test_the_result_of_a_run_without_held_out_prompts_is_its_reward() -> None:
    lines = [line | {"reward": line["step"] / 20} for line in STEPS]
    told = "Running at step 20 of 100, about 13 min 20 s left; mean reward rose from 0.225 to 0.725 (last 10 steps)."
    assert sentence(record(metrics=lines), {}).startswith(told)


def test_an_alarm_is_noted_on_a_run_that_goes_on_and_on_one_that_finished(summary: MakeSummary) -> None:
    lines = [line | {"zero_advantage_fraction": 0.925, "grad_norm": 0.1, "reward": 0.5} for line in STEPS]
    raised = {"event": "signal.none", "step": 9, "advice": "take easier problems"}
    told = (
        "Take note. 92.5 % of the completions of the last 10 steps taught nothing, because all rewards of their group "
        "were equal; the mean reward was 0.5: see Events."
    )
    assert told in sentence(record(metrics=lines, events=[raised]), {})
    assert told.replace(": see Events", "") in sentence(record(metrics=lines), {}), "also without the event"
    assert sentence(record(metrics=lines, events=[raised], summary=summary()), {}).endswith(told)


def test_an_alarm_that_applies_no_more_leaves_a_run_well(summary: MakeSummary) -> None:
    raised = {"event": "completions.cut", "step": 3, "advice": "raise sampling.max_tokens"}
    lines = [line | {"zero_advantage_fraction": 0.4, "truncated": 0.95, "accuracy": 0.48} for line in STEPS]
    assert "All is well. Most in the way" in sentence(record(metrics=lines, events=[raised]), {})
    assert sentence(record(metrics=lines, events=[raised], summary=summary()), {}).endswith("It ended as planned.")


def test_a_run_that_has_solved_its_prompts_is_well_and_says_so() -> None:
    lines = [line | {"zero_advantage_fraction": 0.95, "accuracy": 0.5 if line["step"] < 10 else 0.97} for line in STEPS]
    assert "All is well. 97.0 % of the completions of the last 10 steps were right" in sentence(
        record(metrics=lines), {}
    )
