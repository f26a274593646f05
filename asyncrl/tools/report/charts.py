"""
Line charts as SVG text, without scripts or network resources.

    ┌ title ──────────────────────┐
    │ ── legend   -- legend       │
    │ 1.0 ┤        band ░░░▒▒▒    │    560 x 260, light, readable when printed in grey:
    │ 0.5 ┤   ░░░▒▒▒▒▒            │    series differ in colour and in dash, points show their values on hover
    │     └────┬────┬────┬──      │
    └────────── x label ──────────┘
"""

import math
from collections.abc import Callable, Sequence
from html import escape

from msgspec import Struct

from asyncrl.foreign_text import shown_lines
from asyncrl.records import formatting
from asyncrl.records.formatting import nth
from asyncrl.records.measures import RECENTLY
from asyncrl.records.run_record import EvaluationEvent, Restart, RunRecord

# ── axes ──────────────────────────────────────────────────────────────────────────────────────
# Chart axes: ranges that end on round numbers, with ticks on multiples of 1, 2 or 5 times a power of ten.

Point = tuple[float, float]

SMALLEST_SPAN = 1e-300
"""Values closer than this count as equal: the step between ticks would be below the smallest float."""


class Axis(Struct, frozen=True):
    """A range of numbers drawn along ``length`` pixels from ``origin``; a negative length runs upwards."""

    low: float
    high: float
    step: float
    """Distance between two ticks."""
    origin: float
    length: float

    def place(self, value: float) -> float:
        return self.origin + self.length * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]


def tight_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 8, whole: bool = True) -> Axis:
    """An axis from the smallest value to the largest, for steps and versions; ``whole`` places ticks on integers."""
    low, high = _range(values)
    return Axis(low, high, _step(high - low, ticks, whole), origin, length)


def round_axis(values: Sequence[float], origin: float, length: float, *, ticks: int = 6, zero: bool = False) -> Axis:
    """An axis from tick to tick around the values. With ``zero`` it includes 0; all-zero values get 0 to 1."""
    is_flat = zero and not any(values)
    low, high = (0.0, 1.0) if is_flat else _range([*values, 0.0] if zero else values)
    step = _step(high - low, ticks, False)
    return Axis(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step, origin, length)


def thin(points: Sequence[Point], most: int = 800) -> list[Point]:
    """At most ``most`` points: the lowest and the highest of each segment, as averages would hide spikes."""
    if len(points) <= most:
        return list(points)
    kept = []
    segments = most // 2
    for number in range(segments):
        start, end = (len(points) * edge // segments for edge in (number, number + 1))
        lowest = min(range(start, end), key=lambda place: points[place][1])
        highest = max(range(start, end), key=lambda place: points[place][1])
        kept += [points[place] for place in sorted({lowest, highest})]
    return kept


def _range(values: Sequence[float]) -> Point:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > max(1e-9 * max(abs(low), abs(high)), SMALLEST_SPAN):
        return low, high
    margin = abs(low) / 10 or 0.5
    return low - margin, high + margin


def _step(span: float, ticks: int, whole: bool) -> float:
    """The smallest of 1, 2, 5, 10 times a power of ten that covers ``span`` with at most ``ticks`` ticks."""
    rough = span / max(ticks - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return max(step, 1.0) if whole else step


# ── plain ─────────────────────────────────────────────────────────────────────────────────────
# Plain text in a page.


def plain(text: str) -> str:
    """HTML of a text, for a place between two tags or in an attribute: neither HTML in it acts, nor anything else."""
    return escape(shown_lines(text))


# ── charts ────────────────────────────────────────────────────────────────────────────────────

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 36, 40
LEGEND_ROW = 17

COLOURS = ("#0072b2", "#c85400", "#007a5a", "#a8478a", "#8a6100", "#3a3a3a")
"""Palette of Okabe and Ito, for any colour vision; lighter colours are darkened to a contrast of 4:1 with white."""

CHARACTER = 6.4
"""Upper estimate of a legend character's mean width, pixels; SVG text cannot be measured here."""

GREY = 5
"""Index of the grey."""

RESTARTED = "broker started again"
"""Legend entry of restarts."""

HOVERED = 150
"""A line with more points shows no values on hover: the points would be too close to aim at."""


class Series(Struct, frozen=True, kw_only=True):
    points: Sequence[Point]
    """``(x, y)``, x ascending."""
    label: str = ""
    """Legend entry; empty for none."""
    colour: int = 0
    """Index into `COLOURS`, modulo its length."""
    dashed: bool = False
    dots: bool = False
    """Also draw the points; useful where they are few and unevenly spaced."""
    band: Sequence[tuple[float, float, float]] = ()
    """``(x, low, high)``, shaded behind the line."""


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    zero: bool = False,
    percent: bool = False,
    whole: bool = True,
    restarts: Sequence[tuple[float, int]] = (),
) -> str:
    """
    An ``<svg>`` chart.

    Args:
        zero: y includes 0.
        percent: y is a fraction of 1.
        whole: x ticks are whole.
        restarts: Places on x when a broker was started again, a thin line each, and indices into `COLOURS`.
    """
    legend, rows = _legend([line for line in series if line.label], has_restarts=bool(restarts))
    top = TOP + rows * LEGEND_ROW
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    ys += [edge for line in series for _, *edges in line.band for edge in edges]
    x_axis = tight_axis(xs, LEFT, WIDTH - LEFT - RIGHT, whole=whole)
    y_axis = round_axis(ys, HEIGHT - BOTTOM, top - (HEIGHT - BOTTOM), zero=zero)
    parts = [
        f'<text class="title" x="14" y="22">{plain(title)}</text>',
        *legend,
        *_grid(x_axis, y_axis, x_label, percent),
        *_restarts(restarts, x_axis, top),
        *(_band(line, x_axis, y_axis) for line in series if line.band),
        *(_line(line, x_axis, y_axis) for line in series if line.points),
        *(dot for line in series for dot in _dots(line, x_axis, y_axis, x_label, percent)),
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{plain(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">\n' + "\n".join(parts) + "\n</svg>"
    )


STYLE = """
.chart { width: 100%; max-width: 560px; background: #fff; border: 1px solid #e3e6ea; border-radius: 6px; }
.chart text { font: 11px system-ui, sans-serif; fill: #4a4f57; }
.chart .title { font-size: 13px; font-weight: 600; fill: #1c1f23; }
.chart .grid { stroke: #e9ebee; }
.chart .foot { stroke: #9aa1ab; }
.chart .restart { stroke-dasharray: 2 3; }
.chart .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.chart .band { opacity: .13; }
.chart .hover { opacity: 0; }
.chart .hover:hover { opacity: 1; }
@media (max-width: 500px) {
  .chart text { font-size: 15px; }
  .chart .key { font-size: 12px; }
  .chart .title { font-size: 17px; }
}
"""
"""CSS that the page with the charts must include."""

DARK_COLOURS = ("#58a6e8", "#ec8a3f", "#46bd93", "#d886bd", "#c9a347", "#b4bac2")
"""The same palette in the same order, with a contrast of 4:1 with `DARK`'s ground."""
DARK = """
.chart { background: #1a1e25; border-color: #2b313b; }
.chart text { fill: #9aa5b3; }
.chart .title { fill: #dfe4ea; }
.chart .grid { stroke: #262c35; }
.chart .foot { stroke: #4a5462; }
.chart .band { opacity: .2; }
""" + "".join(
    f".chart .c{place} {{ stroke: {colour}; }}\n.chart .f{place} {{ fill: {colour}; }}\n"
    for place, colour in enumerate(DARK_COLOURS)
)
"""CSS besides, for readers who prefer a dark page."""


def _colour(series: Series) -> str:
    return COLOURS[series.colour % len(COLOURS)]


def _place(series: Series) -> int:
    """Number of the colour in the names of classes: ``c`` of a stroke, ``f`` of a filling."""
    return series.colour % len(COLOURS)


def _dash(series: Series) -> str:
    return ' stroke-dasharray="4 3"' if series.dashed else ""


def _legend(series: Sequence[Series], *, has_restarts: bool) -> tuple[list[str], int]:
    """The legend's elements and its number of rows."""
    parts, x, row = [], 14.0, 0
    for line in series:
        label = line.label if len(line.label) <= 40 else line.label[:39] + "…"
        width = 24 + CHARACTER * len(label) + 12
        if x > 14 and x + width > WIDTH - RIGHT:
            x, row = 14.0, row + 1
        y = TOP + row * LEGEND_ROW + 4
        parts.append(
            f'<line class="c{_place(line)}" x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y - 4}" y2="{y - 4}" '
            f'stroke="{_colour(line)}" '
            f'stroke-width="2"{_dash(line)}/><text class="key" x="{x + 24:.0f}" y="{y}">{plain(label)}</text>'
        )
        x += width
    if has_restarts:
        if x + 24 + CHARACTER * len(RESTARTED) > WIDTH - RIGHT:
            x, row = 14.0, row + 1
        y = TOP + row * LEGEND_ROW + 4
        parts.append(
            f'<line class="restart c{GREY}" stroke="{COLOURS[GREY]}" x1="{x + 9:.0f}" x2="{x + 9:.0f}" y1="{y - 10}" '
            f'y2="{y + 2}"/>'
            f'<text class="key" x="{x + 24:.0f}" y="{y}">{RESTARTED}</text>'
        )
    return parts, row + 1 if parts else 0


def _restarts(restarts: Sequence[tuple[float, int]], x_axis: Axis, top: float) -> list[str]:
    return [
        f'<line class="restart c{place}" stroke="{COLOURS[place]}" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" '
        f'y2="{HEIGHT - BOTTOM}"/>'
        for x, colour in restarts
        if x_axis.low <= x <= x_axis.high
        for at, place in [(x_axis.place(x), colour % len(COLOURS))]
    ]


def _grid(x_axis: Axis, y_axis: Axis, x_label: str, percent: bool) -> list[str]:
    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in y_axis.ticks():
        y, label = y_axis.place(value), formatting.tick(value, y_axis.step, percent=percent)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<line class="foot" x1="{LEFT}" x2="{right}" y1="{foot}" y2="{foot}"/>')
    for value in x_axis.ticks():
        x, label = x_axis.place(value), formatting.tick(value, x_axis.step)
        parts.append(f'<line class="foot" x1="{x:.1f}" x2="{x:.1f}" y1="{foot}" y2="{foot + 4}"/>')
        parts.append(f'<text x="{x:.1f}" y="{foot + 16}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end">{plain(x_label)}</text>')
    return parts


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in thin(series.points))
    return f'<polyline class="line c{_place(series)}" stroke="{_colour(series)}"{_dash(series)} points="{path}"/>'


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    upper = thin([(x, high) for x, _, high in series.band])
    lower = thin([(x, low) for x, low, _ in series.band])
    path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon class="band f{_place(series)}" fill="{_colour(series)}" points="{path}"/>'


def _dots(series: Series, x_axis: Axis, y_axis: Axis, x_label: str, percent: bool) -> list[str]:
    """Circles with the point's values as hover text; invisible unless ``series.dots``."""
    if len(series.points) > HOVERED and not series.dots:
        return []
    hidden = "" if series.dots or len(series.points) == 1 else " hover"
    style = f' class="f{_place(series)}{hidden}"'
    label = f"{series.label}, " if series.label else ""
    return [
        f'<circle{style} cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="3" fill="{_colour(series)}">'
        f"<title>{plain(f'{label}{x_label} {x:g}: ')}{formatting.share(y) if percent else f'{y:.4g}'}</title></circle>"
        for x, y in series.points
    ]


# ── curves ────────────────────────────────────────────────────────────────────────────────────
# The curves of a report.


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
    Curve(title=f"Trained tokens / s, {RECENTLY}", keys={"": "tokens_per_s"}),
    Curve(
        title=f"Time spent waiting, {RECENTLY}",
        keys={"trainer": "wait_trainer", "rollouts": "wait_rollout"},
        percent=True,
    ),
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
    Curve(title="KL from the policy that sampled (k3), nats per token", keys={"": "kl"}),
    Curve(title="Entropy of trained tokens, mean, nats", keys={"": "entropy"}, zero=False),
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
    names = dict.fromkeys(name for record in records for name in record.step_history.names if name.startswith(PARTS))
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
        if (points := [(nth(step), value) for step, value in record.curve(key)])
    ]
    # Between the last step before and the first one after.
    restarts = _restarts_of(records, lambda restart: restart.step + 0.5)
    if not series:
        return None
    return line_chart(curve.title, series, zero=curve.zero, percent=curve.percent, restarts=restarts)


def _restarts_of(records: Sequence[RunRecord], x_of: Callable[[Restart], float]) -> list[tuple[float, int]]:
    """Restarts of all runs, each in the colour of its run if there are several."""
    colours = range(len(records)) if len(records) > 1 else [GREY]
    return [
        (x_of(restart), colour)
        for colour, record in zip(colours, records, strict=True)
        for restart in record.restarts()
    ]


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
    if not series:
        return None
    restarts = [] if whole else _restarts_of(records, lambda restart: restart.time_s)
    return line_chart(title, series, x_label=x_label, zero=True, percent=True, whole=whole, restarts=restarts)


def run_label(records: Sequence[RunRecord], record: RunRecord, part: str) -> str:
    """Name of the run if there are several, then ``part``."""
    return " ".join(filter(None, (record.name if len(records) > 1 else "", part)))
