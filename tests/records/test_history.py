"""What is kept of a run that is read on has a bound, and what is told of all of it stays exact."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.records.events import weighed
from asyncrl.records.history import ENDS, EventHistory, StepHistory
from asyncrl.records.measures import RECENT, ends_of, measures

MOST = 100
VALUES = st.one_of(st.floats(-10, 10), st.none())
STEPS = st.builds(
    lambda values: [
        {"step": step, "time_s": 2.0 * step, "step_s": 2.0, "tokens": 10, "reward": float(step % 7), "kl": kl,
         "logprob_gap_mean": gap, "logprob_gap_tokens": 1 + step % 3}
        for step, (kl, gap) in enumerate(values)
    ],
    st.lists(st.tuples(VALUES, VALUES), max_size=700),
)  # fmt: skip


@given(STEPS)
def test_of_a_long_run_a_bounded_number_of_steps_is_kept_and_all_numbers_stay(lines: list[dict[str, Any]]) -> None:
    kept, whole = StepHistory(lines, most=MOST), StepHistory(lines)
    assert whole.lines == lines
    assert len(kept.lines) <= MOST
    assert kept.num_steps == len(lines)
    assert kept.names == whole.names
    assert kept.measures() == measures(lines)
    assert kept.measures(RECENT) == measures(lines, RECENT)
    assert [kept.steps_at(time_s) for time_s in (-1.0, 0.0, 9.0, 1e9)] == [
        sum(line["time_s"] <= time_s for line in lines) for time_s in (-1.0, 0.0, 9.0, 1e9)
    ]
    for name in ("reward", "kl", "logprob_gap_mean"):
        assert kept.mean(name) == whole.mean(name)
    assert ends_of([line["reward"] for line in kept.lines]) == ends_of([line["reward"] for line in lines])


@given(STEPS)
def test_steps_are_left_out_evenly_and_neither_the_first_nor_the_newest(lines: list[dict[str, Any]]) -> None:
    kept = StepHistory(lines, most=MOST)
    steps = [line["step"] for line in kept.lines]
    assert steps == sorted(set(steps))
    assert steps[:ENDS] == list(range(len(lines)))[:ENDS]
    assert steps[-ENDS:] == list(range(len(lines)))[-ENDS:]
    assert set(range(0, len(lines), kept.stride)) <= set(steps)


def test_a_mean_may_be_weighted() -> None:
    """(1 x 0.1 + 3 x 0.5) / 4 = 0.4."""
    gaps = [{"logprob_gap_mean": 0.1, "logprob_gap_tokens": 1}, {"logprob_gap_mean": 0.5, "logprob_gap_tokens": 3}]
    history = StepHistory([gap | {"pause_s": gap["logprob_gap_mean"]} for gap in gaps])
    assert history.mean("logprob_gap_mean") == pytest.approx(0.4)
    assert history.mean("pause_s") == pytest.approx(0.3)
    assert history.mean("nothing") is None


KINDS = st.sampled_from(["version.live", "checkpoint.written", "transfer.failed", "eval.finished", "node.ready"])


@given(st.lists(KINDS, max_size=200), st.integers(1, 5))
def test_no_event_is_left_out_that_ends_another_or_is_not_of_every_step(kinds: list[str], most: int) -> None:
    events: list[dict[str, Any]] = [{"event": kind, "place": place} for place, kind in enumerate(kinds)]
    history = EventHistory(most)
    for event in events:
        history.add(event)
    kept = [event["place"] for event in history.events]
    assert kept == sorted(kept)
    assert kept[-most:] == list(range(len(events)))[-most:]
    assert history.is_whole == (len(kept) == len(events))
    assert [event for event in weighed(history.events) if event.weight != "routine"] == [
        event for event in weighed(events) if event.weight != "routine"
    ]


def test_events_of_every_step_have_a_bound() -> None:
    history = EventHistory(most=10)
    for step in range(1000):
        history.add({"event": "version.live", "policy_version": step})
    assert len(history.events) <= 21
    assert history.events[-1]["policy_version"] == 999
