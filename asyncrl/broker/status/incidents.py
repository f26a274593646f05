"""
Deaths, drops, failures and waits of a run in sentences, made from its events.

    node.lost, group.dropped, units.failed, ... ─▶ one sentence per cause, with a count and the last time

The same sentence again is counted, not repeated. The oldest are forgotten.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.messages.supervisor import Incident

KEPT = 12
"""Incidents kept, one for each sentence."""
MAX_CHARS = 300
"""Length of a sentence."""
SENTENCES = {
    "node.lost": "{node} was lost: {cause}",
    "node.exited": "{node} {cause}",
    "node.returned": "{node} is back after {away_s} s",
    "node.left": "{node} left: {cause}",
    "node.rejected": "{node} was refused: {cause}",
    "node.quiet": "{node} fell silent",
    "trainer.disbanded": "the trainer's machines parted: {cause}",
    "lease.expired": "a lease of {node} expired",
    "group.dropped": "group dropped: {reason}",
    "group.untrained": "group left out of its step: {reason}",
    "group.restarted": "group restarted: too old, or its spool was lost",
    "units.failed": "failed {stage}: {cause}",
    "transfer.failed": "{node} failed to receive weights: {cause}",
    "transfer.aborted": "weight transfer given up: {cause}",
    "upload.failed": "version {policy_version} could not be stored at the spool: {cause}",
    "eval.lost": "evaluation of v{policy_version} lost with {node}",
    "run.waiting": "{cause}",
    "samples.lost": "samples of step {step} were lost",
    "step.skipped": "no update in step {step}: {cause}",
    "logprob_gap.exceeded": "rollout and trainer log-probs differ too much at step {step}",
    "broker.slept": "the broker's process stood still",
}
"""Sentence of each kind of event that may be an incident."""
USUAL_ENDS = ("done", "told to stop", "knows the configuration")
"""Causes of a ``node.left`` that is no incident: any other is an error that ended the node."""
COUNTED_TOTALS = ("units.failed",)
"""Kinds whose events carry the whole count so far."""


def is_incident(kind: str, fields: Mapping[str, Any]) -> bool:
    """True for an event that an operator should know."""
    is_usual = kind == "node.left" and fields.get("cause") in USUAL_ENDS
    return kind in SENTENCES and not is_usual and fields.get("role") != "supervisor"


class _Kept(Struct):
    count: int
    time_s: float


class IncidentBook:
    """Last incidents of a run. ``earlier`` are the events of the broker's earlier lives; times are the run's clock."""

    def __init__(self, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._kept: dict[str, _Kept] = {}
        """Count and last time of each sentence, the oldest first."""
        for event in earlier:
            self.add(str(event.get("event", "")), event, float(event.get("time_s") or 0.0))

    def add(self, kind: str, fields: Mapping[str, Any], time_s: float) -> None:
        """Keep an event, if it is an incident."""
        if not is_incident(kind, fields):
            return
        words = SENTENCES[kind].format_map(_Words(fields))
        sentence = " ".join(words.split())[:MAX_CHARS]
        before = self._kept.pop(sentence, None)
        count = int(fields.get("count", 1)) if kind in COUNTED_TOTALS else 1 + (before.count if before else 0)
        self._kept[sentence] = _Kept(count, time_s)
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def told(self, time_s: float) -> list[Incident]:
        """All that are kept, the newest first, at ``time_s`` on the run's clock."""
        found = [
            Incident(sentence, max(time_s - kept.time_s, 0.0), kept.count) for sentence, kept in self._kept.items()
        ]
        return found[::-1]


class _Words(dict[str, Any]):
    """Fields of an event; one that an older event lacks reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
