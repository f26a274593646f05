"""The curves of a report."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from asyncrl.observe.report.axes import Point
from asyncrl.observe.report.charts import Series, line_chart
from asyncrl.observe.run_record import EvaluationEvent, RunRecord


class Curve(Struct, frozen=True, kw_only=True):
    """One chart of metrics over steps."""

    title: str
    keys: dict[str, str]
    """Legend entry to key in metrics.jsonl; a single key needs no legend entry."""
    zero: bool = True
    percent: bool = False
    is_expected: bool = True
    """Every run records it, so the report names the curve if it is empty."""


CURVES = (
    Curve(title="Reward, mean of the step", keys={"": "reward"}, zero=False),
    Curve(title="Completion length, tokens", keys={"mean": "length_mean", "longest": "length_max"}),
    Curve(title="Turns of an episode", keys={"mean": "turns_mean", "most": "turns_max"}, is_expected=False),
    Curve(title="Branches of an episode", keys={"": "branches_mean"}, is_expected=False),
    Curve(title="Tokens of the environment in an episode, mean", keys={"": "context_tokens_mean"}, is_expected=False),
    Curve(title="Seconds of the environment in an episode, mean", keys={"": "environment_s_mean"}, is_expected=False),
    Curve(title="Staleness, policy versions", keys={"mean": "staleness_mean", "max": "staleness_max"}),
    Curve(title="Throughput, trained tokens / s", keys={"": "tokens_per_s"}),
    Curve(title="Time spent waiting", keys={"trainer": "wait_trainer", "rollouts": "wait_rollout"}, percent=True),
    Curve(title="Seconds of one step", keys={"step": "step_s", "training": "train_s"}),
    Curve(title="Seconds of one publish", keys={"publish": "publish_s", "generation paused": "pause_s"}),
    Curve(
        title="Seconds of one turn at shared devices",
        keys={"trainer": "turn_s", "rollouts": "turn_rollout_s", "trainer's memory": "turn_moved_s"},
        is_expected=False,
    ),
    Curve(
        title="Bytes moved",
        keys={"trainer's memory to the host": "turn_bytes", "weights to rollouts": "publish_bytes"},
        is_expected=False,
    ),
    Curve(title="Gradient norm before clipping", keys={"": "grad_norm"}),
    Curve(title="KL of trained policy and sampler, nats", keys={"": "kl"}),
    Curve(
        title="KL to the reference, nats",
        keys={"in the loss": "kl_ref", "in the reward": "kl_in_reward"},
        is_expected=False,
    ),
    Curve(
        title="Log-prob gap, trainer and sampler with the same weights, nats",
        keys={"mean": "logprob_gap_mean", "max": "logprob_gap_max"},
    ),
    Curve(
        title="Log-ratio of trained policy and sampler, nats",
        keys={"mean": "log_ratio_abs_mean", "max": "log_ratio_abs_max"},
    ),
    Curve(title="Tokens clipped, completions cut", keys={"clipped": "clip_fraction", "cut": "truncated"}, percent=True),
    Curve(
        title="Effective sample size of the ratios",
        keys={"of tokens": "ess", "of trajectories": "ess_sequence"},
        percent=True,
        is_expected=False,
    ),
    Curve(title="Loss", keys={"": "loss"}, is_expected=False),
    Curve(title="Learning rate", keys={"": "lr"}, is_expected=False),
    Curve(
        title="Trajectories without an advantage", keys={"": "zero_advantage_fraction"}, percent=True, is_expected=False
    ),
    Curve(title="Entropy, nats", keys={"": "entropy"}, is_expected=False),
    Curve(
        title="Load of a layer's busiest expert, relative to an even one",
        keys={"": "experts/max_load"},
        is_expected=False,
    ),
    Curve(
        title="Experts that no trained token chose",
        keys={"": "experts/unused_fraction"},
        percent=True,
        is_expected=False,
    ),
    Curve(title="Loss of the critic", keys={"": "critic_loss"}, is_expected=False),
    Curve(title="Variance explained by the critic", keys={"": "critic_explained_variance"}, is_expected=False),
    Curve(
        title="Correction: tokens left out, effective sample size",
        keys={
            "left out": "rollout_corr/rollout_rs_masked_fraction",
            "sample size": "rollout_corr/rollout_is_eff_sample_size",
        },
        percent=True,
        is_expected=False,
    ),
)

PARTS = "reward/"
"""Prefix of the metrics that a verifier returns beside the reward."""


def draw(records: Sequence[RunRecord]) -> tuple[list[str], list[str]]:
    """Draw all runs in every chart: the charts with data as SVG, and the titles of expected charts without data."""
    drawn, empty = [], []
    for title, chart, is_expected in _charts(records):
        if chart is not None:
            drawn.append(chart)
        elif is_expected:
            empty.append(title)
    return drawn, empty


def interval(accuracy: float, num_prompts: int) -> Point:
    """95 % confidence interval of the true accuracy: the score interval of Wilson 1927, with z = 1.96."""
    z2 = 1.96**2 / num_prompts
    centre = (accuracy + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * accuracy * (1 - accuracy) + z2 * z2 / 4) / (1 + z2)
    return centre - half, centre + half


def _charts(records: Sequence[RunRecord]) -> list[tuple[str, str | None, bool]]:
    """Title; chart, or None without data; and True if data is expected."""
    title = "Held-out accuracy, 95 % band"
    over_steps = [(curve.title, _over_steps(curve, records), curve.is_expected) for curve in (*CURVES, _parts(records))]
    over_versions = (title, _accuracy(title, records, lambda e: e.policy_version, "policy version", True), True)
    if len(records) == 1:
        return [over_steps[0], over_versions, *over_steps[1:]]
    # Runs of different speed can only be compared fairly over time.
    title = "Held-out accuracy over wall time, 95 % band"
    over_time = (title, _accuracy(title, records, lambda e: e.time_s, "seconds", False), True)
    return [over_versions, over_time, *over_steps]


def _parts(records: Sequence[RunRecord]) -> Curve:
    names = dict.fromkeys(name for record in records for name in record.metric_names if name.startswith(PARTS))
    keys = {name.removeprefix(PARTS): name for name in names}
    return Curve(title="Parts of the reward, mean of the step", keys=keys, zero=False, is_expected=False)


def _over_steps(curve: Curve, records: Sequence[RunRecord]) -> str | None:
    series = [
        Series(
            points=points,
            label=run_label(records, record, label),
            colour=run if len(records) > 1 else place,  # Parts differ in dash; those of a single run in colour too.
            dashed=place > 0,
        )
        for run, record in enumerate(records)
        for place, (label, key) in enumerate(curve.keys.items())
        if (points := record.curve(key))
    ]
    return line_chart(curve.title, series, zero=curve.zero, percent=curve.percent) if series else None


def _accuracy(
    title: str, records: Sequence[RunRecord], x_of: Callable[[EvaluationEvent], float | None], x_label: str, whole: bool
) -> str | None:
    series = []
    for run, record in enumerate(records):
        found = [(x, evaluation) for evaluation in record.evaluations() if (x := x_of(evaluation)) is not None]
        if found:
            series.append(
                Series(
                    points=[(x, e.accuracy) for x, e in found],
                    label=run_label(records, record, ""),
                    colour=run,
                    dots=True,
                    band=[(x, *interval(e.accuracy, e.num_prompts)) for x, e in found if e.num_prompts],
                )
            )
    return line_chart(title, series, x_label=x_label, zero=True, percent=True, whole=whole) if series else None


def run_label(records: Sequence[RunRecord], record: RunRecord, part: str) -> str:
    """Name of the run if there are several, then ``part``."""
    return " ".join(filter(None, (record.name if len(records) > 1 else "", part)))
