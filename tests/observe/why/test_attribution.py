"""Seconds of nodes are summed to shares."""

import pytest

from asyncrl.observe.times import NodeTimes, TimesLine
from asyncrl.observe.why.attribution import attribute


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
