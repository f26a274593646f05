"""
Kinds of a run's events, ``NOUN.PAST``: what events.jsonl, the log and `asyncrl events` name them.

A file of a newer version may have further ones.
"""

from typing import Literal, get_args

EventKind = Literal[
    "broker.refused", "broker.slept",
    "checkpoint.damaged", "checkpoint.written",
    "clip.high",
    "completions.cut",
    "config.advice",
    "data.prompts_shared", "data.rows_skipped",
    "episode.started_over",
    "ess.low",
    "eval.finished", "eval.left_out", "eval.lost", "eval.started",
    "events.cut",
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
    "run.config_changed", "run.copied", "run.finished", "run.goal_met", "run.interrupted", "run.moved", "run.resumed",
    "run.started", "run.suspended", "run.waiting",
    "samples.lost",
    "sampling.paused", "sampling.resumed",
    "setting.changed",
    "signal.none",
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
