"""A grid of charts as one self-contained SVG file: no network access, scripts or external style sheets."""

from collections.abc import Sequence
from html import escape

from asyncrl.tools.report import charts

GAP, HEAD = 14, 44
PAPER = "svg { background: #f6f7f9; } .head { font: 600 16px system-ui, sans-serif; fill: #1c1f23; }"


def picture(title: str, drawings: Sequence[str], *, columns: int = 2) -> str:
    """
    The charts in a grid below ``title``, as SVG.

    Args:
        title: Heading of the whole picture.
        drawings: SVG charts from `asyncrl.tools.report.charts`, row by row.
        columns: Charts per row.
    """
    rows = -(-len(drawings) // columns)
    width = GAP + columns * (charts.WIDTH + GAP)
    height = HEAD + rows * (charts.HEIGHT + GAP)
    placed = (_placed(chart, *divmod(number, columns)) for number, chart in enumerate(drawings))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>{charts.STYLE}{PAPER}</style>\n"
        f'<text class="head" x="{GAP}" y="28">{escape(title)}</text>\n' + "\n".join(placed) + "\n</svg>\n"
    )


def _placed(chart: str, row: int, column: int) -> str:
    """A chart in a box at its place in the grid; the chart fills the box, so the box sets its size."""
    x, y = GAP + column * (charts.WIDTH + GAP), HEAD + row * (charts.HEIGHT + GAP)
    box = f'width="{charts.WIDTH}" height="{charts.HEIGHT}"'
    return f'<svg x="{x}" y="{y}" {box}><rect {box} fill="#fff"/>{chart}</svg>'
