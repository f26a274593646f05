"""
An episode in a terminal, turn by turn.

    ── turn 1, after 0 ── reward 0.5, 3 tokens after 5, 0.25 s
    environment  left 2
    policy       4
"""

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from asyncrl.foreign_text import escaped
from asyncrl.messages.trajectory import Turn
from asyncrl.observe.episode_view import TurnView, summary, views
from asyncrl.observe.sampled_episodes import SampledEpisode

ENDS = {
    "stop": "the environment, or the policy, ended it",
    "length": "a limit ended it: environment.max_turns, max_tokens or episode_s",
}
"""Sentence for each finish reason of an episode."""
WIDTH = 13
"""Columns before a text."""


def turn_lines(turns: Sequence[Turn], first: int = 0) -> Iterator[Text]:
    """Lines of the turns from ``first`` on."""
    for view in list(views(turns))[first:]:
        yield from _turn(view)


def prompt_lines(prompt: str, answer: str = "") -> Iterator[Text]:
    """Lines before the first turn."""
    yield from _said("prompt", prompt, "bold")
    if answer:
        yield from _said("answer", answer, "dim")


def end_lines(turns: Sequence[Turn], finish_reason: str) -> Iterator[Text]:
    """Lines after the last turn: why the episode ended, and its size."""
    yield Text(f"── {finish_reason}: {ENDS.get(finish_reason, 'not finished')}", style="cyan")
    yield Text(summary(turns))


def sampled_lines(episode: SampledEpisode) -> Iterator[Text]:
    """Lines of an episode that a run was trained on."""
    yield Text(f"step {episode.step}, trajectory {episode.group_id}/{episode.index}", style="bold")
    yield from prompt_lines(episode.prompt, episode.answer)
    yield from turn_lines(episode.turns)
    yield from end_lines(episode.turns, episode.finish_reason)
    yield reward_line("the run", episode.reward, {})


def reward_line(name: str, reward: float, metrics: Mapping[str, float]) -> Text:
    """
    A reward with its metrics, under the name of who gave it.

    Example:
        reward of the environment 1, correct 1, moves 7
    """
    return Text(", ".join([f"reward of {name} {reward:.6g}", *(f"{key} {metrics[key]:.6g}" for key in metrics)]))


def _turn(view: TurnView) -> Iterator[Text]:
    yield Text(f"── {view.title} ── {view.facts}", style="cyan")
    if view.observation:
        yield from _said("environment", view.observation, "dim")
    yield from _said("policy", view.text, "green")


def _said(who: str, content: str, style: str) -> Iterator[Text]:
    """Lines of one text, the first with the name of who said it."""
    for number, line in enumerate(content.splitlines() or [""]):
        yield Text.assemble((("" if number else who).ljust(WIDTH), "dim"), (escaped(line.expandtabs()), style))
