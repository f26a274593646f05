"""Pictures of prompts in the report, each with a completion and its reward."""

from collections.abc import Iterator, Sequence

from asyncrl.observe.pictured_samples import PicturedSample
from asyncrl.observe.report import page
from asyncrl.observe.report.page import Markup
from asyncrl.observe.run_record import RunRecord

MAX_CHARS = 400
"""Most characters shown of a prompt, completion or answer."""


def pictures(records: Sequence[RunRecord]) -> Iterator[Markup]:
    """Yield a section with the samples of runs with pictures; nothing if there are none."""
    pictured = [record for record in records if record.pictured]
    if pictured:
        yield page.text("Pictures", "h2")
    for record in pictured:
        name = "" if len(records) == 1 else f"{record.name}: "
        yield page.text(
            f"{name}one trajectory of each of the first groups of step {record.pictured[0].step}", "p", "quiet"
        )
        yield page.row([_card(sample) for sample in record.pictured], "div", "charts")


def _card(sample: PicturedSample) -> Markup:
    facts = f"reward {sample.reward:g}" + (f", answer {_short(sample.answer)}" if sample.answer else "")
    words = [page.text(_short(sample.prompt), style="quiet"), page.text(_short(sample.completion)), page.text(facts)]
    return page.row([*map(page.picture, sample.files), *words], "div")


def _short(content: str) -> str:
    return content if len(content) <= MAX_CHARS else f"{content[:MAX_CHARS]} …"
