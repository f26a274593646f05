"""Episodes in the report, turn by turn."""

from collections.abc import Iterator, Sequence

from asyncrl.observe.episode_view import summary, views
from asyncrl.observe.report import page
from asyncrl.observe.report.page import Markup
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.sampled_episodes import SampledEpisode

MAX_CHARS = 600
"""Most characters shown of a prompt, an observation or a turn."""
MAX_TURNS = 40
"""Most turns shown of an episode."""


def episodes(records: Sequence[RunRecord]) -> Iterator[Markup]:
    """Yield a section with some episodes of the last step of each run that has any; nothing without."""
    played = [record for record in records if record.episodes]
    if played:
        yield page.text("Episodes", "h2")
    for record in played:
        name = "" if len(records) == 1 else f"{record.name}: "
        yield page.text(f"{name}one of each of the first groups of step {record.episodes[0].step}", "p", "quiet")
        yield from map(_folded, record.episodes)


def _folded(episode: SampledEpisode) -> Markup:
    reason = ", cut by a limit" if episode.finish_reason == "length" else ""
    facts = f"reward {episode.reward:.4g}{reason}; {summary(episode.turns)}"
    content = page.row([*_prompt(episode), _turns(episode)], "div", "turns")
    return page.folded(f"{episode.group_id}/{episode.index}: {facts}", content)


def _prompt(episode: SampledEpisode) -> Iterator[Markup]:
    yield page.text(_short(episode.prompt), style="quiet")
    if episode.answer:
        yield page.text(f"answer {_short(episode.answer)}", style="quiet")


def _turns(episode: SampledEpisode) -> Markup:
    rows = [
        [view.title, _short(view.observation), _short(view.text), view.facts]
        for view in list(views(episode.turns))[:MAX_TURNS]
    ]
    if (rest := len(episode.turns) - MAX_TURNS) > 0:
        rows.append([f"{rest} more", "", "", ""])
    return page.table(["", "environment", "policy", ""], rows)


def _short(content: str) -> str:
    return content if len(content) <= MAX_CHARS else f"{content[:MAX_CHARS]} …"
