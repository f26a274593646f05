"""Colours of what nodes do, as eyes of each kind see them."""

import re
from itertools import combinations
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "asyncrl/tools/dashboard/static"
STYLE = (STATIC / "style.css").read_text()
KINDS = ("works", "moves", "neighbour", "room", "away", "panel")
"""The five kinds, and the ground that is left where nothing is told."""
EYES = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Linear RGB as each kind of eyes sees it: Machado, Oliveira and Fernandes 2009, severity 1."""
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.95047, 1.0, 1.08883)
Triple = tuple[float, float, float]


def colours(scheme: str) -> dict[str, str]:
    """Colours of the style sheet by name, of the light or the dark page."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)", 1)
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light if scheme == "light" else dark))


def times(matrix: tuple[Triple, Triple, Triple], vector: Triple) -> Triple:
    first, second, third = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return first, second, third


def lab(colour: str, eyes: str) -> Triple:
    """CIELAB of a colour as those eyes see it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    red, green, blue = (min(max(part, 0.0), 1.0) for part in times(EYES[eyes], (red, green, blue)))
    scaled = [part / white for part, white in zip(times(TO_XYZ, (red, green, blue)), WHITE, strict=True)]
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in scaled)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_nodes_do_is_told_apart_by_every_eye_in_light_and_dark(scheme: str, eyes: str) -> None:
    found = colours(scheme)
    seen = {kind: lab(found[kind], eyes) for kind in KINDS}
    differences = {
        (one, other): sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        for one, other in combinations(KINDS, 2)
    }
    assert {pair: value for pair, value in differences.items() if value < 18} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_of_events_have_colours_that_nothing_that_nodes_do_has(scheme: str) -> None:
    found = colours(scheme)
    marks = set(re.findall(r"\w+: \[\"(\w+)\", \d+\]", (STATIC / "timeline.js").read_text()))
    assert marks == {"ink", "pink", "brown", "lime", "bad"}
    seen = {name: lab(found[name], "usual") for name in (*marks, *KINDS)}
    differences = {
        (mark, kind): sum((a - b) ** 2 for a, b in zip(seen[mark], seen[kind], strict=True)) ** 0.5
        for mark in marks
        for kind in KINDS
    }
    assert {pair: value for pair, value in differences.items() if value < 18} == {}


PILL = re.compile(
    r"^\.pill\.(\w+)[^{]*{ background: color-mix\(in srgb, var\(--(\w+)\) (\d+)%, transparent\); "
    r"color: color-mix\(in srgb, var\(--\w+\) (\d+)%, var\(--ink\)\); }",
    re.MULTILINE,
)


def mixed(one: str, other: str, percent: int) -> str:
    parts = [(int(one[place : place + 2], 16), int(other[place : place + 2], 16)) for place in (1, 3, 5)]
    return "#" + "".join(f"{round((percent * a + (100 - percent) * b) / 100):02x}" for a, b in parts)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it, 1 to 21."""
    lights = [((lab(colour, "usual")[0] + 16) / 116) ** 3 for colour in (one, other)]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_in_pills_grey_words_and_verdicts_are_readable(scheme: str) -> None:
    found = colours(scheme)
    pills = {
        word: (mixed(found[name], found["panel"], int(ground)), mixed(found[name], found["ink"], int(text)))
        for word, name, ground, text in PILL.findall(STYLE)
    }
    assert pills.keys() == {"finished", "running", "failed"}
    verdicts = {name: (found["bg"], found[name]) for name in ("good", "warn", "bad")}
    pairs = (
        pills | verdicts | {"grey": (found["bg"], found["muted"]), "without a colour": (found["faint"], found["ink"])}
    )
    assert {word: contrast(*pair) for word, pair in pairs.items() if contrast(*pair) < 4.5} == {}
