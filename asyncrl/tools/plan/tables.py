"""`asyncrl plan`: formats a plan report for a terminal."""

from collections.abc import Iterator, Mapping, Sequence

from asyncrl.terminal import aligned
from asyncrl.tools.plan.page import HEAD, MEASURED_HEAD, PlanComparison, PlanReport, measured_rows, rows, split
from asyncrl.tools.plan.simulate import SearchResult

BAR = 40
"""Characters of a histogram bar for 100 %."""


def report_table(report: PlanReport, name: str) -> str:
    """Predicted step times, staleness, the splits tried, measurements and assumptions; ``name`` is the title."""
    lines = [
        f"{name}: {report.planned.devices} devices, completions of {report.length_mean:,.0f} tokens on average, "
        f"a window of {report.window:,} groups",
        "",
        *aligned([["", *HEAD], *([label, *cells] for label, cells in rows(report))], right=range(1, len(HEAD) + 1)),
        *_histogram("staleness of trained tokens, as planned", report.planned.token_staleness),
        *(_tried(report, report.found) if report.found else []),
        *(_measured(report.comparisons) if report.comparisons else []),
        *(_assumed(report.assumptions) if report.assumptions else []),
    ]
    return "\n".join(lines)


def _histogram(title: str, shares: Mapping[int, float]) -> Iterator[str]:
    yield from ("", title)
    yield from aligned(
        [[f"  {value}", f"{part:.1%}", "█" * round(BAR * part)] for value, part in shares.items()], right=[0, 1]
    )


def _tried(report: PlanReport, found: SearchResult) -> Iterator[str]:
    yield from ("", "splits tried")
    table = [["  staleness", "devices", "s/step", "speed-up", ""]]
    for staleness, results in found.by_staleness().items():
        for result in results:
            mark = "best" if result is found.best else ""
            step_s, speed_up = f"{result.step_s:.4g}", f"{report.speed_up(result):.2f}x"
            table.append([f"  {staleness:g}", split(result), step_s, speed_up, mark])
    yield from aligned(table, right=[1, 2, 3])


def _measured(comparisons: Sequence[PlanComparison]) -> Iterator[str]:
    yield from ("", "measured and predicted")
    table = [["", *MEASURED_HEAD], *([f"  {name}", *cells] for name, cells in measured_rows(comparisons))]
    yield from aligned(table, right=range(1, 7))


def _assumed(assumptions: Sequence[str]) -> Iterator[str]:
    yield from ("", "assumptions")
    yield from (f"  - {assumption}" for assumption in assumptions)
