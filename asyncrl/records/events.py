"""
Events of a run: their kinds, and the weight of each given what came after it: which still matter, which are over and
how long they lasted.

    node.exited  11.1 s ─┬─ node.lost, the same death        trouble, until
                         └─ node.returned  17.0 s            over after 5.9 s
    run.finished  interrupted ─ run.resumed                  over: the end of an earlier life of the run
    version.live, checkpoint.written, ...                    routine
    eval.finished, setting.changed, ...                      news
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

from msgspec import Struct

from asyncrl.records.alarms import NO_LEARNING, SENTENCES
from asyncrl.records.formatting import UNKNOWN, Words, duration, numbered, share
from asyncrl.records.measures import finite

# ── kinds ─────────────────────────────────────────────────────────────────────────────────────

EventKind = Literal[
    "broker.refused", "broker.slept",
    "checkpoint.damaged", "checkpoint.written",
    "clip.high",
    "completions.cut", "completions.whole",
    "config.advice",
    "data.prompts_shared", "data.rows_skipped",
    "episode.started_over",
    "ess.low",
    "eval.finished", "eval.left_out", "eval.lost", "eval.started",
    "events.cut",
    "gateway.not_enforced",
    "grading.overdue",
    "group.dropped", "group.restarted", "group.untrained",
    "hello.late",
    "images.sent",
    "key.refused",
    "lease.expired", "lease.overdue",
    "leases.adopted", "leases.suspended",
    "ledger.cut", "ledger.left_locked", "ledger.locked", "ledger.unlocked",
    "logprob_gap.exceeded",
    "metrics.cut",
    "node.admitted", "node.barred", "node.draining", "node.exited", "node.heard", "node.joined", "node.left",
    "node.lost", "node.moving", "node.quiet", "node.ready", "node.rejected", "node.returned", "node.stalled",
    "prompts.retired",
    "reward.back", "reward.fell",
    "run.config_changed", "run.copied", "run.finished", "run.goal_met", "run.interrupted", "run.moved", "run.resumed",
    "run.started", "run.suspended", "run.waiting",
    "samples.lost",
    "sampling.paused", "sampling.resumed",
    "setting.changed",
    "signal.back", "signal.none",
    "spool.away", "spool.back", "spool.cut", "spool.lost",
    "staleness.chosen", "staleness.unplanned",
    "step.failed", "step.repeated", "step.skipped",
    "trainer.assembled", "trainer.disbanded", "trainer.resumed",
    "trajectory.left_out",
    "transfer.aborted", "transfer.failed",
    "turn.ended",
    "units.failed",
    "upload.failed",
    "version.live", "version.uploaded",
]  # fmt: skip
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
"""``NOUN.PAST``: what events.jsonl, the log and `asyncrl events` name them. A newer version may have further ones."""

# ── weights ───────────────────────────────────────────────────────────────────────────────────

Weight = Literal["trouble", "over", "news", "routine"]
WEIGHTS: tuple[Weight, ...] = get_args(Weight)
"""Trouble, trouble that is over, what somebody may want to know, and what every step brings; in the order shown."""
TROUBLE = re.compile(
    r"\.(lost|exited|rejected|refused|quiet|stalled|barred|overdue|dropped|failed|aborted|expired|away|skipped|slept"
    r"|left_out|untrained|disbanded|started_over|damaged|locked|left_locked)$|^run\.(waiting|suspended|interrupted)"
)
"""Kinds that somebody may want to look into, besides alarms about learning."""
ROUTINE = (
    "version.live",
    "checkpoint.written",
    "step.repeated",
    "node.joined",
    "node.ready",
    "node.left",
    "eval.started",
    "images.sent",
)
GONE = ("node.lost", "node.exited")
BACK = ("node.returned", "node.ready", "node.joined")
NAMED = ("node.", "spool.")
"""Beginnings of the kinds of one node or spool, which end troubles of that alone."""
BEGINS = ("run.started", "run.resumed")
ENDED_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GONE, BACK),
    "node.quiet": ("node.heard", *BACK),
    "node.stalled": ("node.moving", *BACK),
    "node.barred": ("node.admitted",),
    "ledger.locked": ("ledger.unlocked",),
    "eval.lost": ("eval.finished",),
    "eval.left_out": ("eval.finished",),
    **dict.fromkeys(("transfer.failed", "transfer.aborted"), ("version.live",)),
    "upload.failed": ("version.uploaded",),
    "spool.away": ("spool.back",),
    **{kind: (end,) for kind, end in NO_LEARNING.items()},
    "broker.refused": BEGINS,
    "run.waiting": ("node.joined", "version.live"),
    "run.suspended": ("run.resumed",),
    "run.interrupted": ("run.resumed",),
    "run.finished": ("run.resumed",),
}
"""
Events after which a trouble is over, of the same node or spool if it names one, or of the role that it waits for: the
first of these that came, before the same trouble came again, says when. All of these but those of learning are over,
too, once the run finished.
"""


class WeighedEvent(Struct, frozen=True, kw_only=True):
    event: Mapping[str, Any]
    weight: Weight
    ended: bool = False
    """Something ended it: a trouble is over, and the end of a run that was resumed is that of an earlier life."""
    lasted_s: float | None = None
    """Seconds until then; None if nothing tells."""
    is_echo: bool = False
    """A second notice of a death that was told already: of the process, or of its connection."""

    @property
    def end(self) -> str:
        """End of it in words, such as ``over after 5.9 s``; empty if it did not."""
        if not self.ended:
            return ""
        is_resumed = ENDED_BY.get(str(self.event.get("event"))) == ("run.resumed",)
        word = "the run was resumed" if is_resumed else "over"
        return word if self.lasted_s is None else f"{word} after {duration(self.lasted_s)}"


def is_trouble(event: Mapping[str, Any]) -> bool:
    kind = str(event.get("event"))
    if kind == "run.finished":
        return event.get("status") not in ("finished", None)
    return kind in SENTENCES or kind in NO_LEARNING or TROUBLE.search(kind) is not None


def weighed(events: Sequence[Mapping[str, Any]]) -> list[WeighedEvent]:
    """Every event, in order, with its weight given what came after it."""
    echoes = _echoes(events)
    later: dict[tuple[str, str], int] = {}
    """Place of the next event by kind, and by node or role."""
    found: list[WeighedEvent] = []
    has_finished = False
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        kind, whose = str(event.get("event")), _whose(event)
        end = _end(kind, whose, later)
        is_over = end is not None or (has_finished and kind in ENDED_BY and kind not in NO_LEARNING)
        weight: Weight = "routine" if kind in ROUTINE else "news"
        if is_trouble(event):
            weight = "over" if is_over else "trouble"
        has_finished |= kind == "run.finished" and event.get("status") in ("finished", None)
        lasted_s = None if end is None else _between_s(event, events[end])
        found.append(
            WeighedEvent(event=event, weight=weight, ended=is_over, lasted_s=lasted_s, is_echo=place in echoes)
        )
        later[kind, whose] = place
        if kind == "node.joined":
            later[kind, _of_role(event)] = place
    return found[::-1]


def _end(kind: str, whose: str, later: Mapping[tuple[str, str], int]) -> int | None:
    """Place of the event that ended one of this kind; None if none has."""
    keys = [(end, whose if end.startswith(NAMED) else "") for end in ENDED_BY.get(kind, ())]
    ends = [later[key] for key in keys if key in later]
    same = GONE if kind in GONE else (kind,)
    again = min((later[one, whose] for one in same if (one, whose) in later), default=None)
    in_time = [end for end in ends if again is None or end < again]
    return next(iter(in_time or ends), None)


def _echoes(events: Sequence[Mapping[str, Any]]) -> set[int]:
    """Places of the second notices of deaths."""
    gone, found = set[str](), set[int]()
    for place, event in enumerate(events):
        kind, node = str(event.get("event")), _node(event)
        if kind in GONE and node in gone:
            found.add(place)
        elif kind in GONE and node:
            gone.add(node)
        elif kind in BACK:
            gone.discard(node)
    return found


def _whose(event: Mapping[str, Any]) -> str:
    return _of_role(event) if event.get("event") == "run.waiting" else _node(event)


def _of_role(event: Mapping[str, Any]) -> str:
    return f"role {event.get('role')}"


def _node(event: Mapping[str, Any]) -> str:
    """The node or spool that an event of it names."""
    node = event.get("node", event.get("spool"))
    return node if isinstance(node, str) and str(event.get("event")).startswith(NAMED) else ""


def _between_s(begin: Mapping[str, Any], end: Mapping[str, Any]) -> float | None:
    """Seconds on the clock of the broker's machine; the run's time stands still while no broker serves it."""
    try:
        first, last = (datetime.fromisoformat(str(event.get("at"))) for event in (begin, end))
        return max((last - first).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


# ── news ──────────────────────────────────────────────────────────────────────────────────────

NEWS = {
    "run.started": "the broker serves the run",
    "run.resumed": "the broker serves the run again (start {start})",
    "run.suspended": "the broker left, for the run to go on later: {cause}",
    "run.interrupted": "the run was told to end",
    "trainer.resumed": "the trainer has loaded the weights after step {steps}: {path}",
    "setting.changed": "{key}: {before} → {value}, by {by}",
    "signal.back": "rewards of a group differ again by step {step}",
    "completions.whole": "completions that are cut are in the way no more by step {step}",
    "reward.back": "the batches are not much worse than at their best any more by step {step}",
}
"""Sentence of each kind of event that its fields alone do not explain; those of incidents are the broker's."""


def news(event: Mapping[str, Any]) -> str:
    """An event of `NEWS`, an evaluation, an end or an alarm about learning in a sentence; empty for any other."""
    kind = event.get("event")
    if kind == "eval.finished":
        accuracy, reward = finite(event.get("accuracy")), finite(event.get("reward"))
        graded = "" if reward is None else f", reward {reward:.3g}"
        told = UNKNOWN if accuracy is None else share(accuracy)
        fields = Words(numbered(event))
        return f"v{fields['policy_version']}: accuracy {told} of {fields['num_prompts']} prompts{graded}"
    if kind == "run.finished":
        return ": ".join(str(event[name]) for name in ("status", "cause") if event.get(name))
    if kind in NO_LEARNING:
        return "; ".join(str(event[name]) for name in ("because", "advice") if event.get(name))
    return NEWS[kind].format_map(Words(numbered(event))) if kind in NEWS else ""
