"""A step's metrics, computed by hand."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.broker.groups.group import Group
from asyncrl.broker.metrics.batch_metrics import ModelShare, RunTotals, SwapTimes, WaitShare, batch_metrics, line
from asyncrl.broker.nodes.node import Node
from asyncrl.messages.session import Beat, ModelUse
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.trajectory import Prompt, TrajectorySummary
from asyncrl.messages.weights import Live
from asyncrl.records.step_keys import STEP_KEYS


def a_group() -> Group:
    """Two trajectories: 10 tokens by version 4, correct; 30 tokens by versions 3 and 4, truncated and wrong."""
    group = Group(0, Prompt(text="?"), 2, min_version=3)
    right, wrong = group.slots
    right.summary, right.reward, right.metrics = TrajectorySummary(10, 5, 4, 4, 1, "stop"), 1.5, {"correct": 1.0}
    wrong.summary, wrong.reward = TrajectorySummary(30, 5, 3, 4, 2, "length"), 0.0
    return group


def test_batch_metrics() -> None:
    assert batch_metrics([a_group()], policy_version=5) == {
        "reward": 0.75,
        "accuracy": 0.5,
        "length_mean": 20.0,
        "length_max": 30.0,
        "truncated": 0.5,
        "staleness_mean": 1.5,
        "staleness_max": 2.0,
        "spans_mean": 1.5,
        "tokens": 40.0,
    }


def test_episodes_are_counted_by_turns_branches_and_what_their_environment_took() -> None:
    group = a_group()
    for slot, turns, branches in zip(group.slots, (2, 5), (1, 2), strict=True):
        assert slot.summary
        slot.summary = replace(
            slot.summary, num_turns=turns, num_branches=branches, context_tokens=10 * turns, environment_s=turns / 4
        )
    plain = batch_metrics([group], policy_version=5)
    metrics = batch_metrics([group], policy_version=5, has_turns=True)
    assert {name: value for name, value in metrics.items() if name not in plain} == {
        "turns_mean": 3.5,
        "turns_max": 5.0,
        "branches_mean": 1.5,
        "context_tokens_mean": 35.0,
        "environment_s_mean": 0.875,
    }
    assert batch_metrics([], policy_version=5, has_turns=True)["turns_mean"] == 0.0


def test_the_table_of_keys_has_what_is_told_of_a_batch() -> None:
    told = batch_metrics([a_group()], policy_version=5, max_staleness=1, has_turns=True)
    filtered = {"filtered_groups", "filtered_share"}
    assert told.keys() | filtered == {
        key.name for key in STEP_KEYS.values() if key.subject == "batch" and "*" not in key.name
    }


def test_a_verifier_metric_is_a_mean_over_the_trajectories_that_have_it() -> None:
    group = a_group()
    group.slots[0].metrics = {"correct": 1.0, "form": 0.5, "terse": 0.2}
    group.slots[1].metrics = {"correct": 0.0, "form": 0.1}
    metrics = batch_metrics([group], policy_version=5)

    assert {name: value for name, value in metrics.items() if name.startswith("reward/")} == pytest.approx(
        {"reward/form": 0.3, "reward/terse": 0.2}
    )


def test_greedy_trajectories_are_no_part_of_the_batch() -> None:
    group = Group(0, Prompt(text="?"), 3, min_version=3, num_greedy=1)
    for slot, reward in zip(group.slots, (1.0, 0.0, 1.0), strict=True):
        slot.summary, slot.reward = TrajectorySummary(10, 5, 4, 4, 1, "stop"), reward
    metrics = batch_metrics([group], policy_version=5)
    assert (metrics["reward"], metrics["tokens"]) == (0.5, 20.0)


def test_a_line_has_the_step_the_batch_and_the_trainers_own_numbers() -> None:
    made = line(Stepped(3, 5, {"loss": -0.25}), [a_group()], wait_rollout=0.1, time_s=9.0, recent=[{"time_s": 5.0}])

    assert made | batch_metrics([a_group()], 5) == made
    assert {key: made[key] for key in ("step", "version", "time_s", "loss", "step_s", "wait_rollout_s")} == {
        "step": 3,
        "version": 5,
        "time_s": 9.0,
        "loss": -0.25,
        "step_s": 4.0,
        "wait_rollout_s": 0.4,
    }
    assert (made["tokens_per_s"], made["wait_rollout"]) == (10.0, 0.1)


def test_a_pause_and_the_loading_before_the_first_step_of_a_start_are_apart() -> None:
    spent = {"wait_s": 3.0, "train_s": 1.0, "stage_s": 0.5}
    before = [{"time_s": 5.0}]
    paused = line(Stepped(3, 5, spent), [a_group()], 0.1, 10.0, recent=before, apart_s=2.5)
    assert (paused["step_s"], paused["wait_s"], paused["apart_s"]) == (2.5, 0.5, 2.5)
    loaded = line(Stepped(3, 5, spent), [a_group()], 0.1, 30.0, recent=before, is_first=True)
    assert (loaded["step_s"], loaded["wait_s"], loaded["apart_s"]) == (4.5, 3.0, 20.5)
    usual = line(Stepped(3, 5, spent), [a_group()], 0.1, 10.0, recent=before)
    assert usual["step_s"] == 5.0
    assert "apart_s" not in usual


def test_the_wait_share_is_of_the_time_since_the_last_step() -> None:
    node = Node("a.0", "a", "0", "rollout", 0.0)
    shares = WaitShare()
    node.beat = Beat(seconds={"sampling": 2.0, "swapping": 1.0, "idle": 1.0})
    assert shares.share([node]) == pytest.approx(0.25)

    node.beat = Beat(seconds={"sampling": 3.0, "swapping": 1.0, "idle": 4.0})
    assert shares.share([node]) == pytest.approx(0.75)
    assert shares.share([node]) == pytest.approx(0.75), "no beat since: the last answer again"


def test_a_swap_is_as_slow_as_its_slowest_rollout() -> None:
    swap_times = SwapTimes()
    for live in (Live(0, 9.0, 9.0), Live(1, 0.2, 1.0), Live(1, 0.1, 3.0), Live(2, 0.5, 0.5)):
        swap_times.add(live)

    assert swap_times.metrics(1) == {"pause_s": 0.2, "receive_s": 3.0}
    assert swap_times.metrics(2) == {"pause_s": 0.5, "receive_s": 0.5}
    assert swap_times.metrics(1) == {"pause_s": 0.0, "receive_s": 0.0}, "earlier versions are forgotten"


def test_totals_of_a_run() -> None:
    totals = RunTotals()
    assert totals.as_summary()["staleness_mean"] == 0.0
    lines = [
        {"step": 0.0, "tokens": 40.0, "staleness_max": 2.0, "staleness_mean": 1.5},
        {"step": 1.0, "tokens": 10.0, "staleness_max": 1.0, "staleness_mean": 0.5},
    ]
    for done in lines:
        totals.add(done)

    assert RunTotals(lines).measures == totals.measures, "a broker that starts again reads them"
    assert [step in totals for step in range(3)] == [True, True, False]
    assert (totals.steps, totals.measures.tokens) == (2, 50)
    assert (totals.measures.staleness_max, totals.measures.staleness_mean) == (2, 1.0)


def test_the_gap_of_a_run_is_over_the_tokens_of_the_steps_that_have_one() -> None:
    step = {"tokens": 40.0, "staleness_max": 0.0, "staleness_mean": 0.0}
    gaps: list[dict[str, Any]] = [
        {"logprob_gap_mean": 0.5, "logprob_gap_max": 2.0, "logprob_gap_tokens": 10.0},
        {},
        {"logprob_gap_mean": 0.25, "logprob_gap_max": 0.75, "logprob_gap_tokens": 30.0},
        {"logprob_gap_mean": None, "logprob_gap_max": None, "logprob_gap_tokens": 5.0},
        {"logprob_gap_mean": math.nan, "logprob_gap_max": math.nan, "logprob_gap_tokens": 5.0},
    ]
    totals = RunTotals([step | {"step": float(number)} | gap for number, gap in enumerate(gaps)])

    assert (totals.logprob_gap_mean, totals.logprob_gap_max) == (0.3125, 2.0)
    assert (RunTotals().logprob_gap_mean, RunTotals().logprob_gap_max) == (None, None)


@pytest.mark.parametrize(("max_staleness", "over"), [(0, 1.0), (1, 0.5), (2, 0.0)])
def test_the_share_over_max_staleness_counts_trajectories(max_staleness: int, over: float) -> None:
    assert batch_metrics([a_group()], policy_version=5, max_staleness=max_staleness)["over_max_staleness"] == over


def test_models_are_counted_from_step_to_step_and_over_nodes() -> None:
    share = ModelShare()
    nodes = [Node(f"reward-{i}.1", f"reward-{i}", "1", "reward", 0.0) for i in range(2)]
    assert share.metrics(nodes) == {}
    for node in nodes:
        node.beat = Beat(models={"judge": ModelUse(requests=5, seconds=1.5)})
    found = share.metrics(nodes)
    assert (found["models/judge.requests"], found["models/judge.seconds"]) == (10.0, 3.0)
    nodes[0].beat = Beat(models={"judge": ModelUse(requests=7, seconds=2.0)})
    assert share.metrics(nodes)["models/judge.requests"] == 2.0
    restarted = Node("reward-0.2", "reward-0", "2", "reward", 0.0, beat=Beat(models={"judge": ModelUse(requests=1)}))
    assert share.metrics([restarted, nodes[1]])["models/judge.requests"] == 1.0
