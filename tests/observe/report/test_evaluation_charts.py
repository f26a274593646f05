"""Charts of evaluations with several completions per prompt, and with several data sources."""

from collections.abc import Callable

from asyncrl.observe.report.evaluation_charts import (
    accuracy_by_source,
    evaluation_charts,
    multi_sample_metrics,
    pass_curve,
)
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


def test_the_pass_curve_ascends_and_covers_all_sources_together() -> None:
    assert pass_curve(METRICS) == [(1, 0.4), (2, 0.6), (4, 0.8)]
    assert multi_sample_metrics(METRICS) == {"avg@4": 0.4, "maj@4": 0.5, "pass@4": 0.8}
    assert accuracy_by_source(METRICS) == {"openai/gsm8k": 0.5, "math": 0.3}


def test_one_completion_per_prompt_of_one_source_gives_no_further_metrics() -> None:
    plain = {"reward": 0.4, "length_mean": 12.0}
    assert (pass_curve(plain), multi_sample_metrics(plain), accuracy_by_source(plain)) == ([], {}, {})
    assert accuracy_by_source({"math/accuracy": 0.3, "math/reward": 0.1}) == {"math": 0.3}


def test_accuracy_alone_gives_no_charts(make_run: MakeRun) -> None:
    assert evaluation_charts([read_run(make_run().path)]) == []


def test_first_and_last_version_are_drawn_side_by_side(make_run: MakeRun) -> None:
    directory = make_run()
    for version in (0, 5, 10):
        directory.append_event("eval.finished", policy_version=version, accuracy=0.4, num_prompts=8, **METRICS)
    record = read_run(directory.path)

    curves, over_versions, by_source = evaluation_charts([record])

    assert [evaluation.metrics["pass@4"] for evaluation in record.evaluations()] == [0.8] * 3
    assert ">version 0</text>" in curves
    assert ">version 10</text>" in curves
    assert "version 5" not in curves
    assert ">maj@4</text>" in over_versions
    assert ">openai/gsm8k</text>" in by_source


def test_several_runs_are_labelled_by_name(make_run: MakeRun) -> None:
    records = []
    for name in ("first", "second"):
        directory = make_run(name)
        directory.append_event("eval.finished", policy_version=3, accuracy=0.4, num_prompts=8, **METRICS)
        records.append(read_run(directory.path))

    curves, *_ = evaluation_charts(records)

    assert ">first version 3</text>" in curves
    assert ">second version 3</text>" in curves
