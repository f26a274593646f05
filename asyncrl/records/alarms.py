"""Sentences of the alarms about learning that a run has raised, of those that apply by now."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from asyncrl.records.formatting import nth, share
from asyncrl.records.learning import Learning, State

SENTENCES = {
    "ess.low": "the effective sample size of the tokens had fallen to {ess}",
    "clip.high": "the loss clipped {clip_fraction} of the tokens",
    "logprob_gap.exceeded": "log-probs of rollouts and trainer differed by {logprob_gap_mean:.2g} nats",
}
"""Sentence of each kind of event that is told as of its step."""
SHARES = ("ess", "clip_fraction")
"""Fields that are parts of 1."""

Raised = Literal["signal.none", "completions.cut", "reward.fell"]
RAISED_BY: Mapping[State, Raised] = {"no signal": "signal.none", "cut": "completions.cut", "collapsed": "reward.fell"}
"""Event that is raised when a run's `Judgement` becomes a trouble."""
NO_LEARNING: Mapping[Raised, Literal["signal.back", "completions.whole", "reward.back"]] = {
    "signal.none": "signal.back",
    "completions.cut": "completions.whole",
    "reward.fell": "reward.back",
}
"""
Kinds beside which nothing else matters, and the events that end them: while they last, a run learns nothing however
fast it is.
"""


class Alarm(Struct, frozen=True):
    sentence: str
    advice: str
    """Remedies; empty if no event names them."""
    is_first: bool = False
    """The run learns nothing until it is answered."""

    def __str__(self) -> str:
        return f"{self.sentence}{f': {self.advice}' if self.advice else ''}."


def alarms(events: Iterable[Mapping[str, Any]], lines: Iterable[Mapping[str, Any]]) -> list[Alarm]:
    """
    The trouble that the ``lines`` of the steps show by now, then the last alarm of each other kind, the newest last.

    The events of the former only lend it their advice: what was true when one was raised may be so no more.
    """
    last = {str(event.get("event")): event for event in events}
    found, judged = list[Alarm](), Learning(lines).judgement
    if judged.is_trouble:
        advice = str(last.get(RAISED_BY[judged.state], {}).get("advice", ""))
        found.append(Alarm(f"{judged.because[0].upper()}{judged.because[1:]}", advice, is_first=True))
    newest = sorted((event for kind, event in last.items() if kind in SENTENCES), key=lambda event: event["step"])
    for event in newest:
        fields = {**event, **{name: share(event[name], 0) for name in SHARES if name in event}}
        told = SENTENCES[event["event"]].format_map(fields)
        found.append(Alarm(f"At step {nth(event['step'])} {told}", event["advice"]))
    return found
