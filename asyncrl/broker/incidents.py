"""
Deaths, drops, failures and waits of a run in sentences, made from its events.

    node.lost, group.dropped, units.failed, ... ─▶ one sentence per cause, with a count and the last time

The same sentence again is counted, not repeated. What follows from the death of a node, such as the end of the weight
transfers that it was in, is counted with the death. The oldest are forgotten.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from textwrap import shorten
from typing import Any

from msgspec import Struct

from asyncrl.messages.supervisor import Incident

KEPT = 12
"""Incidents kept, one for each sentence."""
MAX_CHARS = 300
"""Length of a sentence."""
SAME_S = 60.0
"""Seconds between a death and its last consequences: weight transfers are given up at their deadline."""
SENTENCES = {
    "node.lost": "{node} was lost: {cause}",
    "node.exited": "{node} {cause}",
    "node.returned": "{node} is back after {away_s} s",
    "node.left": "{node} left: {cause}",
    "node.rejected": "{node} was refused: {cause}",
    "key.refused": "a peer at {address} was refused: nobody here owns its key, {key}",
    "node.quiet": "{node} fell silent",
    "node.stalled": "{node} makes no progress: {cause}",
    "node.barred": "{node} gets no work for {seconds} s: {cause}",
    "trainer.disbanded": "the trainer's machines parted: {cause}",
    "lease.expired": "a lease of {node} expired",
    "lease.overdue": "{node} kept a lease for far longer than others take",
    "group.dropped": "group dropped: {reason}",
    "trajectory.left_out": "a group goes on without a trajectory: {reason}",
    "group.untrained": "group left out of its step: {reason}",
    "group.restarted": "group restarted: too old, or its spool was lost",
    "units.failed": "failed {stage}: {cause}",
    "transfer.failed": "{node} failed to receive weights: {cause}",
    "transfer.aborted": "weight transfer given up: {cause}",
    "upload.failed": "version {policy_version} could not be stored at the spool: {cause}",
    "eval.lost": "evaluation of v{policy_version} interrupted: {node} has it no more",
    "eval.left_out": "v{policy_version} was not evaluated: {cause}",
    "checkpoint.damaged": "checkpoint {path} is damaged: {cause}",
    "run.waiting": "{cause}",
    "run.copied": "{cause}",
    "ledger.locked": "{cause}",
    "ledger.unlocked": "the ledger can be written again, after {waited_s} s",
    "ledger.left_locked": "{cause}",
    "samples.lost": "samples of step {step} were lost",
    "step.failed": "the trainer failed at step {step}: {reason}",
    "step.skipped": "no update in step {step}: {cause}",
    "logprob_gap.exceeded": "rollout and trainer log-probs differ too much at step {step}",
    "signal.none": "nothing to learn from since step {step}: {advice}",
    "completions.cut": "most completions are cut since step {step}: {advice}",
    "ess.low": "a few tokens outweigh the others since step {step}: `asyncrl why` says what to change",
    "clip.high": "many tokens are clipped since step {step}: `asyncrl why` says what to change",
    "broker.slept": "the broker's process stood still",
    "run.resumed": "the broker was started again (start {start} of this run)",
}
"""Sentence of each kind of event that may be an incident."""
SENT = "{node} failed to send weights: {cause}"
"""Sentence of a ``transfer.failed`` of the trainer."""
DEATHS = ("node.lost", "node.exited")
CONSEQUENCES = ("transfer.failed", "transfer.aborted", "lease.expired", "eval.lost", "node.quiet", "node.stalled")
"""Kinds that follow from a death of a node that they name."""
USUAL_ENDS = ("done", "told to stop")
"""Causes of a ``node.left`` that is no incident: any other is an error that ended the node."""
LATEST_ALONE = ("run.resumed",)
"""Kinds of which the last one alone is kept."""
COUNTED_TOTALS = ("units.failed",)
"""Kinds whose events carry the whole count so far."""


def is_incident(kind: str, fields: Mapping[str, Any]) -> bool:
    """True for an event that an operator should know."""
    is_usual = kind == "node.left" and fields.get("cause") in USUAL_ENDS
    return kind in SENTENCES and not is_usual and fields.get("role") != "supervisor"


class _Kept(Struct):
    sentence: str
    kind: str
    node: str
    cause: str
    at_s: float
    count: int = 1
    followers: int = 0
    """Later incidents that followed from this one, and are counted with it."""


class IncidentBook:
    """Last incidents of a run. ``earlier`` are the events of the broker's earlier lives; times are Unix times."""

    def __init__(self, earlier: Iterable[Mapping[str, Any]] = ()) -> None:
        self._kept: dict[str, _Kept] = {}
        """Incident by sentence, the oldest first."""
        for event in earlier:
            if "at" in event:
                at_s = datetime.fromisoformat(str(event["at"])).timestamp()
                self.add(str(event.get("event", "")), event, at_s)

    def add(self, kind: str, fields: Mapping[str, Any], at_s: float) -> None:
        """Keep an event, if it is an incident; count it with the death that it follows from, if there is one."""
        if not is_incident(kind, fields):
            return
        new = _Kept(sentence(kind, fields), kind, str(fields.get("node", "")), str(fields.get("cause", "")), at_s)
        for kept in reversed(self._kept.values()):
            if _follows(new, kept):
                kept.followers += 1
                return
        if before := self._kept.pop(new.sentence, None):
            new.count, new.followers = before.count + 1, before.followers
        if kind in COUNTED_TOTALS:
            new.count = int(fields.get("count", 1))
        for kept in list(self._kept.values()):
            if _follows(kept, new):
                new.followers += kept.count
                del self._kept[kept.sentence]
            elif kept.kind == kind in LATEST_ALONE:
                del self._kept[kept.sentence]
        self._kept[new.sentence] = new
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    def told(self, at_s: float) -> list[Incident]:
        """All that are kept, the newest first, with their ages at ``at_s``."""
        found = [Incident(_told(kept), max(at_s - kept.at_s, 0.0), kept.count) for kept in self._kept.values()]
        return found[::-1]


def _follows(one: _Kept, death: _Kept) -> bool:
    """True if ``one`` is a consequence of the death of a node: it names the node, and happened at about that time."""
    if death.kind not in DEATHS or abs(one.at_s - death.at_s) > SAME_S:
        return False
    if one.kind == "node.lost":  # The end of its process is told, too.
        return death.kind == "node.exited" and (one.node, one.cause) == (death.node, death.cause)
    name = re.escape(death.node)
    return one.kind in CONSEQUENCES and re.search(rf"(?<![\w.-]){name}(?![\w-])", one.sentence) is not None


def sentence(kind: str, fields: Mapping[str, Any]) -> str:
    """Sentence of an incident."""
    is_sender = kind == "transfer.failed" and fields.get("role") == "trainer"
    words = (SENT if is_sender else SENTENCES[kind]).format_map(_Words(fields))
    return shorten(words, MAX_CHARS, placeholder=" …", break_on_hyphens=False)


def _told(kept: _Kept) -> str:
    return f"{kept.sentence} (and {kept.followers} that follow from it)" if kept.followers else kept.sentence


class _Words(dict[str, Any]):
    """Fields of an event; one that an older event lacks reads as a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
