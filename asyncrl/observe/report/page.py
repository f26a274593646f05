"""
A self-contained HTML page: no scripts, and no fonts or images from elsewhere.

Functions here escape plain text; only `Markup` is inserted unchanged, so a completion, a config value or an error
message can never inject HTML.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import NewType

from asyncrl.observe.report import charts
from asyncrl.observe.report.plain import plain

Markup = NewType("Markup", str)
"""HTML built by this module or `charts`."""

PICTURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}
"""Formats of pictures that a page may hold, by the first bytes of a file. None of them can hold a script."""

STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, sans-serif; color: #1c1f23; background: #f6f7f9; margin: 0; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 4px; }
h2 { font-size: 15px; margin: 30px 0 10px; }
p { margin: 6px 0; }
.quiet { color: #5b626c; }
.pill { display: inline-block; padding: 1px 10px; border-radius: 10px; font-size: 12px; font-weight: 600; }
.finished { background: #d9f0e6; color: #05573f; }
.failed { background: #fbdedb; color: #8f1d12; }
.open { background: #e3ebf7; color: #1d4477; }
.cause { border-left: 4px solid #c0392b; background: #fff; padding: 8px 14px; overflow-wrap: anywhere; }
.side { display: flex; flex-wrap: wrap; gap: 14px; align-items: flex-start; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(440px, 1fr)); gap: 14px; }
table { border-collapse: collapse; background: #fff; border: 1px solid #e3e6ea; }
th, td { text-align: left; padding: 4px 14px; border-bottom: 1px solid #eceef1; vertical-align: top; }
th { font-weight: 600; }
tbody th { font-weight: 400; color: #5b626c; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
img { max-width: 100%; max-height: 240px; background: #fff; border: 1px solid #e3e6ea; }
details { margin: 10px 0; }
.turns td { white-space: pre-wrap; }
summary { cursor: pointer; color: #1d4477; }
"""


def text(content: str, tag: str = "p", style: str = "") -> Markup:
    """A ``<tag>`` element with ``content``, escaped; ``style`` is its CSS class."""
    return row([Markup(plain(content))], tag, style)


def row(parts: Iterable[Markup], tag: str = "p", style: str = "") -> Markup:
    """A ``<tag>`` element with ``parts``; ``style`` is its CSS class."""
    attribute = f' class="{plain(style)}"' if style else ""
    return Markup(f"<{tag}{attribute}>{' '.join(parts)}</{tag}>")


def picture(content: bytes) -> Markup:
    """Embed the picture of a file in the page; a note stands for a format that is not in `PICTURES`."""
    for start, kind in PICTURES.items():
        if content.startswith(start):
            return Markup(f'<img alt="" src="data:image/{kind};base64,{b64encode(content).decode()}">')
    return text("a picture in another format", "span", "quiet")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Markup:
    """A table of text whose first column holds the row names."""
    lines = ["<table>"]
    if any(head):
        lines.append("<thead><tr>" + "".join(text(cell, "th") for cell in head) + "</tr></thead>")
    lines.append("<tbody>")
    for name, *cells in body:
        lines.append("<tr>" + text(name, "th") + "".join(text(cell, "td") for cell in cells) + "</tr>")
    lines.append("</tbody></table>")
    return Markup("\n".join(lines))


def folded(title: str, content: Markup) -> Markup:
    """``content``, hidden until ``title`` is clicked."""
    return Markup(f"<details><summary>{plain(title)}</summary>{content}</details>")


def page(title: str, parts: Iterable[Markup]) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{plain(title)}</title>\n<style>{STYLE}{charts.STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )
