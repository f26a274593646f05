"""`asyncrl plan`: one file in, a table and a picture out."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from asyncrl.cli.tables import aligned
from asyncrl.plan.cells import HEAD, MEASURED_HEAD, measured_rows, rows, split
from asyncrl.plan.search import Found
from asyncrl.plan.study import Comparison, Study

BAR = 40
"""Columns of a whole."""


def study_table(study: Study, name: str) -> str:
    """The answer for a terminal."""
    lines = [
        f"{name}: {study.planned.devices} devices, completions of {study.length_mean:,.0f} tokens on average, "
        f"a window of {study.window:,} groups",
        "",
        *aligned([["", *HEAD], *([label, *cells] for label, cells in rows(study))], right=range(1, len(HEAD) + 1)),
        *_histogram("staleness of trained tokens, as planned", study.planned.token_staleness),
        *(_tried(study, study.found) if study.found else []),
        *(_measured(study.comparisons) if study.comparisons else []),
        *(_assumed(study.assumptions) if study.assumptions else []),
    ]
    return "\n".join(lines)


def to_json(study: Study) -> str:
    """The same for a program, indented."""
    return msgspec.json.format(msgspec.json.encode(study), indent=2).decode()


def _histogram(title: str, shares: Mapping[int, float]) -> Iterator[str]:
    yield from ("", title)
    yield from aligned(
        [[f"  {value}", f"{part:.1%}", "█" * round(BAR * part)] for value, part in shares.items()], right=[0, 1]
    )


def _tried(study: Study, found: Found) -> Iterator[str]:
    yield from ("", "tried")
    table = [["  staleness", "devices", "s/step", "speed-up", ""]]
    for staleness, outcomes in found.by_staleness().items():
        for outcome in outcomes:
            mark = "best" if outcome is found.best else ""
            step_s, speed_up = f"{outcome.step_s:.4g}", f"{study.speed_up(outcome):.2f}x"
            table.append([f"  {staleness:g}", split(outcome), step_s, speed_up, mark])
    yield from aligned(table, right=[1, 2, 3])


def _measured(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield from ("", "measured and predicted")
    table = [["", *MEASURED_HEAD], *([f"  {name}", *cells] for name, cells in measured_rows(comparisons))]
    yield from aligned(table, right=range(1, 7))


def _assumed(assumptions: Sequence[str]) -> Iterator[str]:
    yield from ("", "assumed")
    yield from (f"  - {assumption}" for assumption in assumptions)
