"""Evaluations with several completions a prompt, and of several data sources, in pictures."""

from collections.abc import Callable

from asyncrl.observe.report.held_out import held_out_charts, of_many, pass_curve, sources
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.run_record import read_run

MakeRun = Callable[..., RunDirectory]

METRICS = {
    "reward": 0.4,
    "avg@4": 0.4,
    "pass@4": 0.8,
    "pass@1": 0.4,
    "pass@2": 0.6,
    "maj@4": 0.5,
    "openai/gsm8k/avg@4": 0.5,
    "openai/gsm8k/pass@4": 0.9,
    "math/avg@4": 0.3,
}


def test_the_curve_is_in_order_of_tries_and_of_all_sources_together() -> None:
    assert pass_curve(METRICS) == [(1, 0.4), (2, 0.6), (4, 0.8)]
    assert of_many(METRICS) == {"avg@4": 0.4, "maj@4": 0.5, "pass@4": 0.8}
    assert sources(METRICS) == {"openai/gsm8k": 0.5, "math": 0.3}


def test_one_completion_a_prompt_of_one_source_has_nothing_more_to_show() -> None:
    plain = {"reward": 0.4, "length_mean": 12.0}
    assert (pass_curve(plain), of_many(plain), sources(plain)) == ([], {}, {})
    assert sources({"math/accuracy": 0.3, "math/reward": 0.1}) == {"math": 0.3}


def test_a_run_without_such_evaluations_has_no_such_charts(make_run: MakeRun) -> None:
    assert held_out_charts([read_run(make_run().path)]) == []


def test_first_and_last_version_are_drawn_side_by_side(make_run: MakeRun) -> None:
    directory = make_run()
    for version in (0, 5, 10):
        directory.append_event("eval.finished", policy_version=version, accuracy=0.4, num_prompts=8, **METRICS)
    record = read_run(directory.path)

    curves, over_versions, by_source = held_out_charts([record])

    assert [evaluation.metrics["pass@4"] for evaluation in record.held_out()] == [0.8] * 3
    assert ">version 0</text>" in curves
    assert ">version 10</text>" in curves
    assert "version 5" not in curves
    assert ">maj@4</text>" in over_versions
    assert ">openai/gsm8k</text>" in by_source


def test_several_runs_are_told_apart_by_name(make_run: MakeRun) -> None:
    records = []
    for name in ("first", "second"):
        directory = make_run(name)
        directory.append_event("eval.finished", policy_version=3, accuracy=0.4, num_prompts=8, **METRICS)
        records.append(read_run(directory.path))

    curves, *_ = held_out_charts(records)

    assert ">first version 3</text>" in curves
    assert ">second version 3</text>" in curves
