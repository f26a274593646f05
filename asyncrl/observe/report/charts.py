"""
Line charts as SVG text, without scripts or network resources.

    ┌ title ──────────────────────┐
    │ ── legend   -- legend       │
    │ 1.0 ┤        band ░░░▒▒▒    │    560 x 260, light, readable when printed in grey:
    │ 0.5 ┤   ░░░▒▒▒▒▒            │    series differ in colour and in dash, points show their values on hover
    │     └────┬────┬────┬──      │
    └────────── x label ──────────┘
"""

from collections.abc import Sequence

from msgspec import Struct

from asyncrl.observe import formatting
from asyncrl.observe.report.axes import Axis, Point, round_axis, thin, tight_axis
from asyncrl.observe.report.plain import plain

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 36, 40
LEGEND_ROW = 17

COLOURS = ("#0072b2", "#c85400", "#007a5a", "#a8478a", "#8a6100", "#3a3a3a")
"""Palette of Okabe and Ito, for any colour vision; lighter colours are darkened to a contrast of 4:1 with white."""

CHARACTER = 6.4
"""Upper estimate of a legend character's mean width, pixels; SVG text cannot be measured here."""

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
) -> str:
    """An ``<svg>`` chart. ``zero``: y includes 0; ``percent``: y is a fraction of 1; ``whole``: x ticks are whole."""
    legend, rows = _legend([line for line in series if line.label])
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
.chart .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.chart .band { opacity: .13; }
.chart .hover { opacity: 0; }
.chart .hover:hover { opacity: 1; }
"""
"""CSS that the page with the charts must include."""


def _colour(series: Series) -> str:
    return COLOURS[series.colour % len(COLOURS)]


def _dash(series: Series) -> str:
    return ' stroke-dasharray="4 3"' if series.dashed else ""


def _legend(series: Sequence[Series]) -> tuple[list[str], int]:
    """The legend's elements and its number of rows."""
    parts, x, row = [], 14.0, 0
    for line in series:
        label = line.label if len(line.label) <= 40 else line.label[:39] + "…"
        width = 24 + CHARACTER * len(label) + 12
        if x > 14 and x + width > WIDTH - RIGHT:
            x, row = 14.0, row + 1
        y = TOP + row * LEGEND_ROW + 4
        parts.append(
            f'<line x1="{x:.0f}" x2="{x + 18:.0f}" y1="{y - 4}" y2="{y - 4}" stroke="{_colour(line)}" '
            f'stroke-width="2"{_dash(line)}/><text x="{x + 24:.0f}" y="{y}">{plain(label)}</text>'
        )
        x += width
    return parts, row + 1 if parts else 0


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
    return f'<polyline class="line" stroke="{_colour(series)}"{_dash(series)} points="{path}"/>'


def _band(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    upper = thin([(x, high) for x, _, high in series.band])
    lower = thin([(x, low) for x, low, _ in series.band])
    path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in [*upper, *reversed(lower)])
    return f'<polygon class="band" fill="{_colour(series)}" points="{path}"/>'


def _dots(series: Series, x_axis: Axis, y_axis: Axis, x_label: str, percent: bool) -> list[str]:
    """Circles with the point's values as hover text; invisible unless ``series.dots``."""
    if len(series.points) > HOVERED and not series.dots:
        return []
    style = "" if series.dots or len(series.points) == 1 else ' class="hover"'
    label = f"{series.label}, " if series.label else ""
    return [
        f'<circle{style} cx="{x_axis.place(x):.1f}" cy="{y_axis.place(y):.1f}" r="3" fill="{_colour(series)}">'
        f"<title>{plain(f'{label}{x_label} {x:g}: ')}{formatting.share(y) if percent else f'{y:.4g}'}</title></circle>"
        for x, y in series.points
    ]
