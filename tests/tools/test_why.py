"""Seconds of nodes are summed to shares."""

from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.errors import LedgerError
from asyncrl.records.history import StepHistory
from asyncrl.records.run_record import RunRecord
from asyncrl.records.times import NodeTimes, TimesLine
from asyncrl.tools.why import attribute, explain
from tests.tools.planted import diagnosis_of, flapping, played, times_of


def rollout(tokens: int = 0, stall: float = 0.0, **seconds: float) -> NodeTimes:
    return NodeTimes("rollout", {name.replace("_", " "): value for name, value in seconds.items()}, tokens, stall)


LINES = [
    TimesLine(0, 9.0, 9.0, {"a": rollout(loading=8.0, sampling=1.0), "b": rollout(loading=9.0)}),
    TimesLine(1, 10.0, 1.0, {"a": rollout(10, sampling=1.0), "b": rollout(10, 0.5, sampling=0.5, away=0.5)}),
    TimesLine(2, 12.0, 2.0, {"a": rollout(20, sampling=1.0, waiting_for_the_end_of_the_run=1.0)}),
]


def test_shares_of_a_role_add_up_to_one_with_the_largest_first() -> None:
    whole = attribute(LINES)

    assert whole.span_s == 12.0
    assert next(iter(whole.shares("rollout"))) == "loading"
    assert whole.shares("rollout")["loading"] == pytest.approx(17 / 22)
    assert sum(whole.shares("rollout").values()) == pytest.approx(1.0)
    assert whole.shares("trainer") == {}


def test_the_steady_part_has_no_loading_and_no_end() -> None:
    steady = attribute(LINES, is_steady=True)

    assert steady.span_s == 3.0
    assert steady.node_shares("a") == {"sampling": 1.0}
    assert steady.node_shares("b") == {"sampling": 0.5, "away": 0.5}
    assert steady.nodes["b"].memory_stall == 0.5


def test_busy_cores_are_a_mean_over_the_time_of_a_node() -> None:
    lines = [TimesLine(n, 1.0, s, {"a": NodeTimes("rollout", {"sampling": s}, cores_busy=busy)})
             for n, s, busy in ((0, 3.0, 1.0), (1, 1.0, 0.2))]  # fmt: skip
    assert attribute(lines).nodes["a"].cores_busy == pytest.approx(0.8)


def test_a_run_of_one_line_is_steady_as_a_whole_but_for_its_ends() -> None:
    assert attribute(LINES[:1], is_steady=True).node_shares("a") == {"sampling": 1.0}


@pytest.mark.parametrize(("tokens", "slow"), [(4, "a"), (9, "")])
def test_a_rollout_is_slow_in_comparison_with_the_others(tokens: int, slow: str) -> None:
    nodes = {"a": rollout(tokens, sampling=1.0), "b": rollout(10, sampling=1.0), "c": rollout(12, sampling=1.0)}
    assert attribute([TimesLine(0, 1.0, 1.0, nodes)]).slow_rollout(0.6) == (slow, 11.0 if slow else 0.0)


def test_a_rollout_alone_is_not_slow() -> None:
    assert attribute([TimesLine(0, 1.0, 1.0, {"a": rollout(1, sampling=1.0)})]).slow_rollout(0.6) == ("", 0.0)


def test_a_pause_is_no_part_of_the_time_that_shares_are_of() -> None:
    paused = NodeTimes("trainer", {"training": 2.0, "waiting for an operator": 6.0})
    lines = [TimesLine(step, 10.0 * step, 10.0, {"trainer-0": paused}) for step in range(2)]
    assert attribute(lines, is_steady=True).span_s == pytest.approx(4.0)
    assert attribute(lines).span_s == pytest.approx(20.0)


def test_the_starts_of_a_run_that_went_on_are_no_part_of_its_steady_time() -> None:
    loaded = NodeTimes("trainer", {"loading": 2.0})
    trained = NodeTimes("trainer", {"training": 1.0})
    idle = rollout(waiting_for_sampling=21.0)
    stretches = [(-1, 15.0, {}), (-1, 9.0, {"t": loaded}), (0, 18.0, {"t": loaded}), (1, 1.0, {"t": trained}),
                 (1, 0.5, {}), (2, 24.0, {"t": loaded, "a": idle}), (3, 1.0, {"t": trained})]  # fmt: skip
    lines = [TimesLine(step, 1.0, span_s, nodes) for step, span_s, nodes in stretches]
    steady = attribute(lines, is_steady=True)
    assert (steady.span_s, list(steady.nodes)) == (2.5, ["t"])
    assert steady.shares("trainer") == {"training": 1.0}


def test_a_rollout_that_left_long_ago_is_not_the_slow_one() -> None:
    both = TimesLine(0, 1.0, 1.0, {"a": rollout(1, sampling=1.0), "b": rollout(9, sampling=1.0)})
    later = [TimesLine(step, 1.0 + step, 1.0, {"b": rollout(9, sampling=1.0)}) for step in range(1, 11)]
    assert attribute([both, *later[:9]]).slow_rollout(0.6) == ("a", 9.0)
    assert attribute([both, *later]).slow_rollout(0.6) == ("", 0.0)


# ── test diagnosis ────────────────────────────────────────────────────────────────────────────
# Planted bottlenecks are named.

EVALUATION = {"evaluation": {"every_versions": 1}}
PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a step takes long": ("trainer", {"train_s": 1.0}),
    "few rollouts": ("sampling", {"num_rollouts": 1, "token_s": 0.3}),
    "a slow reward": ("grading", {"verdict_s": 1.0}),
    "a verifier that hangs": ("hanging verifier", {"verdict_s": 0.2, "hung": 0.2}),
    "one slow rollout": ("slow rollout", {"token_s": 0.1, "slow_rollout": 8.0}),
    "a tiny window": ("window", {"token_s": 0.2, "train_s": 0.4, "settings": {"schedule": {"staleness": 0.0}}}),
    "a long tail": ("long completions", {"token_s": 0.05, "tail": 80.0, "num_rollouts": 3}),
    "a publish over a slow link": ("publishing", {"transfer_s": 3.0}),
    "evaluation in the way": (
        "evaluation", {"num_rollouts": 1, "token_s": 0.1, "num_held_out": 100, "settings": EVALUATION}
    ),
    "refused prompts": ("refused data", {"token_s": 0.3, "refused": 0.4}),
    "a slow disk": ("disk", {"sync_s": 2.0}),
    "a node that comes and goes": ("flapping node", {"token_s": 0.3, "faults": flapping}),
    "too little memory": ("memory", {"token_s": 0.3, "memory_stall": 0.6}),
    "busy cores": ("processor", {"token_s": 0.3, "cores_busy": 0.98}),
    "busy cores, and a step that takes long": ("processor", {"train_s": 1.0, "cores_busy": 0.98}),
}  # fmt: skip


@pytest.mark.slow("a run in virtual time for each of many causes")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bottleneck_is_named(planted: str) -> None:
    bottleneck, options = PLANTED[planted]
    world = played(**options)

    for role in ("trainer", "rollout", "reward"):
        assert sum(times_of(world).shares(role).values()) == pytest.approx(1.0)
    found = diagnosis_of(world)
    assert found.bottleneck == bottleneck, found
    assert found.setting


# ── test explanation ──────────────────────────────────────────────────────────────────────────
# A run's times and events become shares and a bottleneck.


def a_record(*lines: TimesLine) -> RunRecord:
    return RunRecord(
        name="mine",
        config={"schedule.staleness": 0.0, "schedule.groups_per_step": 4},
        summary=None,
        step_history=StepHistory({"step": step} for step in range(3)),
        events=[],
        pictured=[],
        times=list(lines),
        notes=[],
    )


def line(step: int, **trainer: float) -> TimesLine:
    nodes = {
        "trainer-0": NodeTimes("trainer", {name.replace("_", " "): seconds for name, seconds in trainer.items()}),
        "rollout-0": NodeTimes("rollout", {"sampling": 0.5, "waiting for the trainer": 0.5}, 10),
    }
    return TimesLine(step, float(step), 1.0, nodes)


def test_shares_are_those_of_the_steady_part() -> None:
    found = explain(a_record(line(0, loading=1.0), line(1, training=0.75, waiting_for_sampling=0.25)))

    assert (found.steps, found.steady_s) == (3, 1.0)
    assert found.roles == {
        "trainer": {"training": 0.75, "waiting for sampling": 0.25},
        "rollout": {"sampling": 0.5, "waiting for the trainer": 0.5},
    }
    assert found.nodes["rollout-0"] == found.roles["rollout"]
    assert found.diagnosis is not None
    assert found.diagnosis.bottleneck == "trainer"


def test_the_setting_to_change_is_named_with_its_value() -> None:
    found = explain(a_record(line(0), line(1, training=0.25, waiting_for_sampling=0.75)))
    assert found.diagnosis is not None
    assert (found.diagnosis.bottleneck, found.diagnosis.share) == ("window", 0.75)
    assert found.diagnosis.setting == "raise schedule.staleness, which is 0"


@pytest.mark.parametrize(
    ("bind", "setting"),
    [
        ("tcp://127.0.0.1:0", "raise schedule.steps_per_publish"),
        (
            "tcp://10.0.0.1:7000",
            "raise schedule.steps_per_publish, set weights.delta, or use a faster network (weights.interface)",
        ),
    ],
)
def test_a_faster_network_is_offered_where_there_is_one(bind: str, setting: str) -> None:
    record = a_record(line(0), line(1, training=0.25, publishing=0.75))
    record.config["broker.bind"] = bind
    found = explain(record)
    assert found.diagnosis is not None
    assert (found.diagnosis.bottleneck, found.diagnosis.setting) == ("publishing", setting)


def test_a_run_without_a_step_has_no_bottleneck() -> None:
    record = replace(a_record(line(-1, publishing=1.0)), step_history=StepHistory())
    assert explain(record).diagnosis is None


def test_a_run_without_times_is_told_so() -> None:
    with pytest.raises(LedgerError, match=r"the run mine has no times\.jsonl: it has not trained a step yet"):
        explain(a_record())
