"""Sentences of the alarms about learning that a run has raised."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from asyncrl.records.formatting import share

SENTENCES = {
    "signal.none": "no rewards of a group had differed for three steps; their mean was {reward:.3g}",
    "completions.cut": "{truncated} of the completions had been cut at their limit for three steps",
    "ess.low": "the effective sample size of the tokens had fallen to {ess}",
    "clip.high": "the loss clipped {clip_fraction} of the tokens",
    "logprob_gap.exceeded": "log-probs of rollouts and trainer differed by {logprob_gap_mean:.2g} nats",
}
"""Sentence of each kind of event."""
SHARES = ("truncated", "ess", "clip_fraction")
"""Fields that are parts of 1."""


NO_LEARNING: Mapping[str, Literal["signal.back", "completions.whole"]] = {
    "signal.none": "signal.back",
    "completions.cut": "completions.whole",
}
"""
Kinds beside which nothing else matters, and the events that end them: while they last, a run learns nothing however
fast it is.
"""


class Alarm(Struct, frozen=True):
    sentence: str
    advice: str
    is_first: bool = False
    """The run learns nothing until it is answered."""


def alarms(events: Iterable[Mapping[str, Any]]) -> list[Alarm]:
    """The last alarm of each kind that nothing has ended, the newest last."""
    last: dict[str, Mapping[str, Any]] = {}
    over: dict[str, str] = {end: kind for kind, end in NO_LEARNING.items()}
    for event in events:
        kind = str(event.get("event"))
        last.pop(over.get(kind, ""), None)
        if kind in SENTENCES:
            last[kind] = event
    newest = sorted(last.values(), key=lambda event: event["step"])
    told = [{**event, **{name: share(event[name], 0) for name in SHARES if name in event}} for event in newest]
    return [
        Alarm(
            f"At step {event['step']:.0f} {SENTENCES[event['event']].format_map(event)}",
            event["advice"],
            is_first=event["event"] in NO_LEARNING,
        )
        for event in told
    ]
