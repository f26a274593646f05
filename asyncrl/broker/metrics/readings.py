"""The broker's metrics for a scrape, read from the books of its scheduler and from its ledger."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.metrics.batch_metrics import RunTotals
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status import connected_state, group_states
from asyncrl.config.config import Config
from asyncrl.records.metrics import NODE_ROLES, STAGES, Sample
from asyncrl.records.states import CONNECTED_STATES

OF_LAST_STEP = {
    "reward": "step_reward",
    "accuracy": "step_accuracy",
    "tokens": "step_tokens",
    "length_mean": "step_length_tokens",
    "truncated": "step_truncated_ratio",
    "staleness_mean": "step_staleness_mean",
    "staleness_max": "step_staleness_max",
}
"""Metric of each value in the line of a step that is of the step alone."""
OF_LAST_STEPS = {
    "tokens_per_s": "recent_tokens_per_second",
    "step_recent_s": "recent_step_seconds",
    "wait_trainer": "recent_trainer_waiting_ratio",
    "wait_rollout": "recent_rollouts_waiting_ratio",
}
"""Metric of each value in it that is of the last steps (`asyncrl.records.measures`)."""


class Readings:
    """Reads a broker in the event loop that its rules run in. All arguments are borrowed."""

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        ledger: Ledger,
        totals: RunTotals,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._ledger = ledger
        self._totals = totals
        self._wall_clock = wall_clock
        self._last_step: Mapping[str, float] = {}
        self._last_step_at = wall_clock()

    def stepped(self, line: Mapping[str, float]) -> None:
        """Keep the newest ``line`` of metrics.jsonl: the trainer has reported a step."""
        self._last_step, self._last_step_at = line, self._wall_clock()

    def __iter__(self) -> Iterator[Sample]:
        yield from self._progress()
        yield from self._groups()
        yield from self._failures()
        yield from self._nodes()
        yield from self._records()

    def _progress(self) -> Iterator[Sample]:
        yield _sample("steps_trained", self._totals.steps)
        yield _sample("steps_planned", self._scheduler.training.num_steps)
        yield _sample("tokens_trained", self._totals.measures.tokens)
        yield _sample("last_step_timestamp_seconds", self._last_step_at)
        yield _sample("policy_version", self._scheduler.transfers.live_version)
        for key, name in (*OF_LAST_STEP.items(), *OF_LAST_STEPS.items()):
            if key in self._last_step:
                yield _sample(name, self._last_step[key])
        if results := self._scheduler.evaluation.measurements:
            yield _sample("evaluation_accuracy", results[-1].accuracy)

    def _groups(self) -> Iterator[Sample]:
        scheduler, window = self._scheduler, self._scheduler.window
        for state, number in group_states(scheduler).items():
            yield _sample("groups", number, state=state)
        yield _sample("groups_admitted_total", window.num_admitted)
        yield _sample("window_open", window.num_open)
        yield _sample("window_size", window.size)
        yield _sample("leases", len(scheduler.dispatcher.leases))
        yield _sample("gradings", len(scheduler.grading))

    def _failures(self) -> Iterator[Sample]:
        by_stage = dict.fromkeys(STAGES, 0)
        for cause, count in self._scheduler.failures.counts.items():
            stage = cause.partition(":")[0]
            by_stage[stage if stage in by_stage else "other"] += count
        for stage, count in by_stage.items():
            yield _sample("failures_total", count, stage=stage)

    def _nodes(self) -> Iterator[Sample]:
        nodes = self._scheduler.nodes.all()
        found = Counter((node.role, connected_state(self._scheduler, node)) for node in nodes)
        for role in NODE_ROLES:
            for state in CONNECTED_STATES:
                yield _sample("nodes", found[role, state], node_role=role, state=state)

    def _records(self) -> Iterator[Sample]:
        yield _sample("ledger_records_total", self._ledger.head.num_records)
        yield _sample("ledger_commits_total", self._ledger.num_transactions)
        yield _sample("ledger_commit_seconds_total", self._ledger.transactions_s)


def _sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(f"asyncrl_broker_{name}", value, labels)
