from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from asyncrl.observe.report.curves import draw, interval
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_record import read_run

MakeRun = Callable[..., RunDirectory]


def test_the_interval_is_wilsons() -> None:
    """8 right of 10, z = 1.96: centre (0.8 + 0.19208) / 1.38416, half width sqrt(0.061466 + 0.036895) / 1.38416."""
    low, high = interval(0.8, 10)

    assert low == pytest.approx(0.4902, abs=1e-4)
    assert high == pytest.approx(0.9433, abs=1e-4)


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_the_interval_holds_the_accuracy_and_stays_within_0_and_1(num_prompts: int, right: int) -> None:
    accuracy = min(right, num_prompts) / num_prompts
    low, high = interval(accuracy, num_prompts)

    assert -1e-12 <= low <= accuracy + 1e-12
    assert accuracy - 1e-12 <= high <= 1 + 1e-12


def test_curves_without_numbers_are_named_instead_of_drawn(make_run: MakeRun) -> None:
    """The made-up run recorded no KL at all, and a gradient norm that was never a number."""
    charts, empty = draw([read_run(make_run().path)])

    assert empty == [
        "Gradient norm before clipping",
        "KL of trained policy and sampler, nats",
        "Log-ratio of trained policy and sampler, nats",
        "Tokens clipped, completions cut",
    ]
    assert len(charts) == 9


def test_optional_curves_are_drawn_if_recorded_and_not_reported_as_empty(make_run: MakeRun) -> None:
    run = read_run(make_run().path)
    lines = [{**line, "reward/form": 0.5, "reward/terse": 0.2, "entropy": 1.0} for line in run.metrics]
    charts, empty = draw([structs.replace(run, metrics=lines)])

    assert sum("Parts of the reward" in chart for chart in charts) == 1
    assert any(">form</text>" in chart and ">terse</text>" in chart for chart in charts)
    assert sum("Entropy, nats" in chart for chart in charts) == 1
    assert not any("critic" in title for title in empty)


def test_labels_name_the_part_and_with_several_runs_the_run(make_run: MakeRun) -> None:
    one, two = (read_run(make_run(name).path) for name in ("first", "second"))
    alone = "".join(draw([one])[0])
    together = "".join(draw([one, two])[0])

    assert ">longest</text>" in alone
    assert ">first</text>" not in alone
    assert ">first longest</text>" in together
    assert ">second longest</text>" in together


def test_several_runs_are_also_compared_over_time(make_run: MakeRun) -> None:
    one, two = (read_run(make_run(name).path) for name in ("first", "second"))

    assert not any("over wall time" in chart for chart in draw([one])[0])
    assert sum("over wall time" in chart for chart in draw([one, two])[0]) == 1
