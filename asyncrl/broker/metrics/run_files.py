"""
A run's files for people: events, one line of metrics per step, and a summary at the end.

    scheduler ─▶ records of the data ─▶ ledger
              └▶ progress ─▶ RunFiles ─▶ events.jsonl, metrics.jsonl, summary.json        no rule reads them
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.broker.failures import EVENT as FAILED_EVENT
from asyncrl.broker.failures import recorded, recorded_attempts
from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.chain import Head
from asyncrl.broker.ledger.record_book import METRICS, SUMMARY
from asyncrl.broker.ledger.records import Written
from asyncrl.broker.metrics import batch_metrics
from asyncrl.broker.metrics.drift_alarms import DriftAlarms
from asyncrl.broker.metrics.gap_alarm import GapAlarm
from asyncrl.broker.metrics.idle_causes import idle_causes
from asyncrl.broker.metrics.time_book import TimeBook
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status.incidents import IncidentBook, is_incident, sentence
from asyncrl.checks.shown_messages import REASON_CHARS
from asyncrl.config.config import Config
from asyncrl.errors import RunFailed
from asyncrl.files.json_lines import encoded
from asyncrl.foreign_text import shown, shown_values
from asyncrl.log import get_logger
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.weights import Live
from asyncrl.observe.alarms import NO_LEARNING
from asyncrl.observe.failure_sentences import by_site
from asyncrl.observe.run_directory import Outcome, RunDirectory, RunSummary, content_of
from asyncrl.observe.times import TimesLine

log = get_logger()

FREQUENT = ("version.live",)
"""Events of almost every step, which are in events.jsonl and would hide the others in the log."""
ON_SCREEN = (*NO_LEARNING, "eval.left_out", "step.skipped", "ledger.locked", "ledger.unlocked")
"""Kinds that whoever started the run should read at once: it learns nothing, leaves out what was due, or waits."""


class RunFiles:
    """
    Report of one run, continued by each restarted broker.

    Args:
        clock: Gives monotonic seconds.
        wall_clock: Gives seconds since 1970, for the age of incidents.
        head: Gives the number of records that the ledger has on disk, and their digest. Lines carry the number,
            checkpoint events and the summary both, so that a ledger that lost its end, or was changed, is noticed.
        written: Told the digest of each line of metrics and of the summary, for the ledger.
    """

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        directory: RunDirectory,
        clock: Callable[[], float],
        head: Callable[[], Head],
        *,
        written: Callable[[Written], None] = lambda _: None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._directory = directory
        self._clock = clock
        self._wall_clock = wall_clock
        self._head = head
        self._written = written
        metrics, events = directory.read_metrics(), directory.read_events()
        self.versions = {int(line["step"]): int(line["version"]) for line in metrics}
        """Policy version of the weights before each step that has a line."""
        self.last_line: dict[str, Any] = dict(metrics[-1]) if metrics else {}
        """Metrics of the last step."""
        self.incidents = IncidentBook(events)
        self._started_s = clock() - max(
            (float(line["time_s"]) for line in [*metrics, *events] if "time_s" in line), default=0.0
        )
        self._waits = batch_metrics.WaitShare()
        self._swap_times = batch_metrics.SwapTimes()
        self.totals = batch_metrics.RunTotals(metrics)
        self._times = TimeBook(clock())
        self._gap_alarm = GapAlarm(config, metrics)
        self._drift_alarms = DriftAlarms(config, metrics)
        self._is_concluded = False
        scheduler.failures.restore(recorded(events), recorded_attempts(events))
        self._num_verdicts = scheduler.failures.attempts.get("reward", 0)
        """Verdicts up to the last line of times."""

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record an event, log it, and tell those who look on; its texts may be of other nodes and of plug-ins."""
        fields = shown_values(fields, REASON_CHARS)
        if kind == "checkpoint.written":
            fields |= _fields_of(self._head())
        level = log.warning if is_incident(kind, fields) else log.debug if kind in FREQUENT else log.info
        level(kind, **fields)
        self._directory.append_event(kind, **fields, time_s=round(self.time_s, 3))
        self.incidents.add(kind, fields, self._wall_clock())
        if kind in ON_SCREEN:
            self._scheduler.supervisors.notice(sentence(kind, fields))
        if kind == "node.left":
            self._times.left(fields["node"])

    def tick(self) -> None:
        """Note what every node does; a few times a second."""
        if not self._scheduler.is_over:
            causes = idle_causes(self._scheduler)
            self._times.tick(self._clock(), self._scheduler.nodes.all(), causes)

    def swapped(self, live: Live) -> None:
        """Note the swap times of a rollout that changed to a new version."""
        self._swap_times.add(live)

    def step(self, stepped: Stepped, groups: Sequence[Group], *, is_computed: bool = True) -> dict[str, Any] | None:
        """
        Append the line of a step trained on ``groups`` to metrics.jsonl, and return it.

        Returns None if the file has the step already: it was computed again, or, unless ``is_computed``, is only
        reported again. Raises RunFailed if the line cannot be written.
        """
        if stepped.step in self.totals:
            if is_computed:
                self.event("step.repeated", step=stepped.step, policy_version=stepped.policy_version)
            return None
        wait = self._waits.share(self._scheduler.nodes.of("rollout"))
        max_staleness, has_turns = self._config.schedule.max_staleness, self._config.environment.is_set
        line = batch_metrics.line(stepped, groups, wait, self.time_s, max_staleness, has_turns=has_turns)
        line |= self._scheduler.training.filtering.metrics(stepped.step)
        line |= self._swap_times.metrics(self._scheduler.transfers.live_version)
        line["ledger_records"] = float(self._head().num_records)
        line["failed"] = float(self._scheduler.failures.since_last_step())
        self.versions[stepped.step] = stepped.policy_version
        self.totals.add(line)
        self.last_line = line
        self._directory.append_metrics(line)
        self._written(Written(METRICS, hashlib.sha256(encoded(line)).hexdigest(), stepped.step))
        if self._times.is_due(self._clock()):
            self._write_times(stepped.step)
        if updates := line.get("skipped"):
            cause = _cause_of_skipped(line) if groups else "every group of the step was refused"
            self.event("step.skipped", step=stepped.step, updates=int(updates), cause=cause)
        if alarm := self._gap_alarm.check(line):
            self.event("logprob_gap.exceeded", **alarm)
        for kind, fields in self._drift_alarms.check(line, self._scheduler.config):
            self.event(kind, **fields)
        return line

    def conclude(self, cause: str, *, is_interrupted: bool = False) -> str:
        """
        Write the summary, once. ``cause`` is the reason of the failure, empty if the run is complete.

        Returns ``cause``, or the reason the summary could not be written if ``cause`` is empty.
        """
        if self._is_concluded:
            return cause
        self._is_concluded = True
        cause = shown(cause, REASON_CHARS)
        try:
            self._write_summary(cause, outcome(cause, is_interrupted=is_interrupted))
        except RunFailed as failure:
            log.error("summary.unwritten", cause=str(failure))
            return cause or str(failure)
        return cause

    def _write_times(self, step: int) -> None:
        span_s, nodes = self._times.take(self._clock())
        verdicts = self._scheduler.failures.attempts.get("reward", 0)
        self._directory.append_times(TimesLine(step, self.time_s, span_s, nodes, verdicts - self._num_verdicts))
        self._num_verdicts = verdicts

    def _write_summary(self, cause: str, status: Outcome) -> None:
        # An evaluation in which every prompt failed measured nothing.
        results = self._scheduler.evaluation.measurements
        totals = self.totals
        failures = self._scheduler.failures
        for fields in failures.events(self._clock(), is_over=True):
            self.event(FAILED_EVENT, **fields)
        self._write_times(totals.steps - 1)
        self.event("run.finished", status=status, cause=cause)
        summary = RunSummary(
            name=self._directory.path.name,
            status=status,
            cause=cause,
            seed=self._config.run.seed,
            steps=totals.steps,
            steps_planned=self._config.run.steps,
            versions=max(self._scheduler.transfers.live_version, 0),
            wall_s=round(self.time_s, 3),
            base_accuracy=self._scheduler.evaluation.base_accuracy,
            held_out_accuracy=results[-1].accuracy if results else None,
            held_out_failed=results[-1].num_failed if results else 0,
            trained_tokens=totals.tokens,
            staleness_mean=totals.staleness_mean,
            staleness_max=totals.staleness_max,
            logprob_gap_mean=totals.logprob_gap_mean,
            logprob_gap_max=totals.logprob_gap_max,
            **_fields_of(self._head()),
            failed=by_site(failures.counts),
            failures=failures.sentences(),
            groups_issued=self._scheduler.window.num_admitted,
            groups_failed=self._scheduler.training.num_failed,
        )
        self._directory.write_summary(summary)
        self._written(Written(SUMMARY, hashlib.sha256(content_of(summary)).hexdigest()))

    @property
    def time_s(self) -> float:
        """Duration of the run, summed over all restarts of the broker."""
        return self._clock() - self._started_s


def _fields_of(head: Head) -> dict[str, Any]:
    return {"ledger_records": head.num_records, "ledger_head": head.digest}


def outcome(cause: str, *, is_interrupted: bool) -> Outcome:
    """Status of a run that ended with ``cause``, which is empty if it is complete."""
    if is_interrupted:
        return "interrupted"
    return "failed" if cause else "finished"


def _cause_of_skipped(line: Mapping[str, Any]) -> str:
    """Reason why updates of a step that had trajectories left the weights unchanged."""
    num_empty = line.get("skipped_empty", 0)
    causes = ["the correction or a mask rejected every token"] if num_empty else []
    causes += ["a loss or a gradient was not finite"] if line["skipped"] > num_empty else []
    return ", in others ".join(causes)
