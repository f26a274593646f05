"""
What a run leaves for people: events as they happen, a line of metrics a step, a summary at the end.

    rules ─▶ what happened to the data ─▶ ledger        every number can be recomputed from it
          └▶ how it goes ─▶ RunReport ─▶ events.jsonl, metrics.jsonl, summary.json        nothing is decided by it
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import structlog

from asyncrl.broker.groups.group import Group
from asyncrl.broker.report import step_report
from asyncrl.broker.report.gap_alarm import GapAlarm
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.sections import Config
from asyncrl.errors import RunFailed
from asyncrl.messages import Live, Stepped
from asyncrl.observe.run_directory import RunDirectory, RunSummary

log = structlog.get_logger()


class RunReport:
    """
    One run's, over all lives of its broker.

    Args:
        scheduler: Is only read.
        clock: Seconds that never go back.
    """

    def __init__(
        self, config: Config, scheduler: Scheduler, directory: RunDirectory, clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._directory = directory
        self._clock = clock
        metrics = directory.read_metrics()
        self._started_s = clock() - _last_time_s([*metrics, *directory.read_events()])
        self._waits = step_report.WaitShares()
        self._swaps = step_report.Swaps()
        self._totals = step_report.Totals(metrics)
        self._gap_alarm = GapAlarm(config, metrics)
        self._is_concluded = False

    def event(self, kind: str, /, **fields: Any) -> None:
        """Something happened."""
        log.info(kind, **fields)
        self._directory.append_event(kind, **fields, time_s=round(self._time_s(), 3))

    def swapped(self, live: Live) -> None:
        """A rollout decodes with a version."""
        self._swaps.add(live)

    def step(self, stepped: Stepped, groups: Sequence[Group]) -> dict[str, Any] | None:
        """
        The line of a step, written down; None if it stands there already.

        Args:
            groups: It was trained on.

        Raises:
            RunFailed: The disk does not take it.
        """
        if stepped.step in self._totals:
            self.event("step.repeated", step=stepped.step, policy_version=stepped.policy_version)
            return None
        wait = self._waits.share(self._scheduler.nodes.of("rollout"))
        line = step_report.line(stepped, groups, wait, self._time_s(), self._config.schedule.max_staleness)
        line |= self._scheduler.filtering.metrics(stepped.step)
        line |= self._swaps.of(self._scheduler.transfers.live_version)
        self._totals.add(line)
        self._directory.append_metrics(line)
        if alarm := self._gap_alarm.check(line):
            self.event("logprob_gap.exceeded", **alarm)
        return line

    def conclude(self, cause: str) -> str:
        """
        Write the summary, once.

        Args:
            cause: The run failed of; empty if it is complete.

        Returns:
            The cause: a disk that does not take the summary is one by itself, if there was none before.
        """
        if self._is_concluded:
            return cause
        self._is_concluded = True
        try:
            self._write_summary(cause)
        except RunFailed as failure:
            log.error("summary.unwritten", cause=str(failure))
            return cause or str(failure)
        return cause

    def _write_summary(self, cause: str) -> None:
        """One that lies there is of an earlier life of this run."""
        # An evaluation in which every prompt failed measured nothing.
        results = [result for result in self._scheduler.evaluation.results if result.num_prompts]
        totals = self._totals
        status: Literal["finished", "failed"] = "failed" if cause else "finished"
        self.event("run.finished", status=status, cause=cause)
        self._directory.write_summary(
            RunSummary(
                name=self._directory.path.name,
                status=status,
                cause=cause,
                seed=self._config.run.seed,
                steps=totals.steps,
                steps_planned=self._config.run.steps,
                versions=max(self._scheduler.transfers.live_version, 0),
                wall_s=round(self._time_s(), 3),
                base_accuracy=next((r.accuracy for r in results if r.policy_version == 0), None),
                held_out_accuracy=results[-1].accuracy if results else None,
                trained_tokens=totals.tokens,
                staleness_mean=totals.staleness_mean,
                staleness_max=totals.staleness_max,
                logprob_gap_mean=totals.logprob_gap_mean,
                logprob_gap_max=totals.logprob_gap_max,
            )
        )

    def _time_s(self) -> float:
        """How long the run has lasted, all lives together."""
        return self._clock() - self._started_s


def _last_time_s(lines: Sequence[Mapping[str, Any]]) -> float:
    """How long earlier lives of this run's broker have lasted together, by what they wrote."""
    return max((float(line["time_s"]) for line in lines if "time_s" in line), default=0.0)
