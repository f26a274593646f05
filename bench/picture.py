"""Charts beside each other as one SVG file, which needs no network, no script and no style sheet."""

from collections.abc import Sequence
from html import escape

from asyncrl.observe.report import charts

GAP, HEAD = 14, 44
PAPER = "svg { background: #f6f7f9; } .head { font: 600 16px system-ui, sans-serif; fill: #1c1f23; }"


def picture(title: str, drawn: Sequence[str], *, columns: int = 2) -> str:
    """
    One picture.

    Args:
        title: Above all.
        drawn: Charts as `asyncrl.observe.report.charts` makes them, row by row.
        columns: Charts in a row.
    """
    rows = -(-len(drawn) // columns)
    width = GAP + columns * (charts.WIDTH + GAP)
    height = HEAD + rows * (charts.HEIGHT + GAP)
    placed = (_placed(chart, *divmod(number, columns)) for number, chart in enumerate(drawn))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>{charts.STYLE}{PAPER}</style>\n"
        f'<text class="head" x="{GAP}" y="28">{escape(title)}</text>\n' + "\n".join(placed) + "\n</svg>\n"
    )


def _placed(chart: str, row: int, column: int) -> str:
    """A chart fills the box it is put in, so the box says how large it is."""
    x, y = GAP + column * (charts.WIDTH + GAP), HEAD + row * (charts.HEIGHT + GAP)
    box = f'width="{charts.WIDTH}" height="{charts.HEIGHT}"'
    return f'<svg x="{x}" y="{y}" {box}><rect {box} fill="#fff"/>{chart}</svg>'
