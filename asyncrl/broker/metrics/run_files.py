"""
A run's files for people: events, seconds of each node by activity, a line of metrics per step, a summary at the end.

    scheduler ─▶ records of the data ─▶ ledger
              └▶ progress ─▶ RunFiles ─▶ events.jsonl, metrics.jsonl, summary.json        no rule reads them
"""

import hashlib
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, field

from asyncrl.broker.failures import EVENT as FAILED_EVENT
from asyncrl.broker.failures import recorded, recorded_attempts
from asyncrl.broker.groups.group import Group, SlotState
from asyncrl.broker.ledger.reader import Head
from asyncrl.broker.ledger.records import Written
from asyncrl.broker.ledger.state import METRICS, SUMMARY
from asyncrl.broker.metrics import batch_metrics
from asyncrl.broker.metrics.incidents import DriftAlarms, GapAlarm, IncidentBook, is_incident, sentence
from asyncrl.broker.nodes.node import Node
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.errors import RunFailed
from asyncrl.files.json_lines import encoded
from asyncrl.foreign_text import shown, shown_values
from asyncrl.log import get_logger
from asyncrl.messages.bounds import SHOWN_CHARS
from asyncrl.messages.session import Beat, MachineUse
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.words import Role
from asyncrl.records.alarms import NO_LEARNING
from asyncrl.records.events import EventKind
from asyncrl.records.failure_sentences import bias, by_site
from asyncrl.records.measures import RECENT
from asyncrl.records.node_states import NodeStates
from asyncrl.records.run_directory import RunDirectory, RunSummary, content_of
from asyncrl.records.states import RunOutcome
from asyncrl.records.times import NodeTimes, TimesLine

# ── time book ─────────────────────────────────────────────────────────────────────────────────
# Seconds of each node by what it did, from its heartbeats; idle seconds by what it waited for.
#
#   joined ─ loading ─▶ ready ─ sampling, swapping, waiting for the trainer, ... ─▶ lost ─ away ─▶ joined ...
#                                                                                           └─ `FORGET_S` ─▶ forgotten
#
# Each stretch between two heartbeats is divided as the node says it spent it, so a node's seconds add up to the time
# since it joined, up to its last heartbeat. Its idle time is divided as the broker saw the run meanwhile.

ROLES: tuple[Role, ...] = ("rollout", "reward", "trainer")
SLACK_S = 1.0
"""Seconds that a heartbeat may be late, beyond which the work it tells of cannot be of this session."""
FEW = 100
"""Nodes of which each step may have a line; more have one every second for each ten of them."""
FORGET_S = 600.0
"""Seconds after which a lost node is not expected back: nodes may come and go under ever new names."""


class _Account(Struct):
    role: Role
    peer: str
    until_s: float
    """Clock time up to which seconds are booked."""
    beat: Beat = Beat()
    waited: Mapping[str, float] = {}
    """Seconds of idle time by cause that the role had in all at the node's last heartbeat."""
    away_since_s: float | None = None
    """Clock time at which it was first missed; None while it is there."""
    is_draining: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0
    decode_steps: float = 0.0
    memory_stall: float = 0.0
    cores_busy_s: float = 0.0
    """Seconds since the last line, each times the share of the machine's cores that were busy."""

    def book(self, what: str, now_s: float) -> None:
        self.seconds[what] += now_s - self.until_s
        self.until_s = now_s

    def heard(self, beat: Beat, now_s: float, waited: Mapping[str, float], *, is_ready: bool) -> None:
        spent = {name: seconds - self.beat.seconds.get(name, 0.0) for name, seconds in beat.seconds.items()}
        elapsed_s, total_s = now_s - self.until_s, sum(spent.values())
        if total_s <= 0 or total_s > 2 * elapsed_s + SLACK_S:  # The role has not begun, or is older than this session.
            self.book("unknown" if is_ready else "loading", now_s)
        else:
            scale = elapsed_s / total_s
            idle_s = spent.pop("idle", 0.0)
            for name, seconds in (spent | self._causes(idle_s, waited)).items():
                self.seconds[name] += seconds * scale
            self.until_s = now_s
            self.tokens += max(beat.tokens - self.beat.tokens, 0)
            self.decode_steps += max(beat.decode_steps - self.beat.decode_steps, 0.0)
            self.cores_busy_s += beat.cores_busy * elapsed_s
        self.memory_stall = max(self.memory_stall, beat.memory_stall)
        self.beat, self.waited = beat, dict(waited)

    def _causes(self, idle_s: float, waited: Mapping[str, float]) -> dict[str, float]:
        causes = {cause: seconds - self.waited.get(cause, 0.0) for cause, seconds in waited.items()}
        total_s = sum(causes.values())
        if total_s <= 0:
            return {"idle": idle_s}
        return {cause: idle_s * seconds / total_s for cause, seconds in causes.items()}

    def take(self) -> NodeTimes:
        """Seconds by activity that were booked for the node since the last call."""
        seconds = {name: value for name, value in self.seconds.items() if value > 0}
        total_s = sum(seconds.values())
        cores_busy = self.cores_busy_s / total_s if total_s else 0.0
        use = self.beat.machine or MachineUse()
        taken = NodeTimes(
            self.role, seconds, self.tokens, self.memory_stall, self.decode_steps, cores_busy,
            use.memory, use.device_memory, use.disk, use.device_busy,
        )  # fmt: skip
        self.seconds, self.tokens, self.memory_stall = defaultdict(float), 0, 0.0
        self.decode_steps, self.cores_busy_s = 0.0, 0.0
        return taken


class TimeBook:
    """Times of all nodes. ``tick`` is called a few times a second, ``take`` when a line is written."""

    def __init__(self, now_s: float) -> None:
        self._ticked_s = self._taken_s = now_s
        self._accounts: dict[str, _Account] = {}
        self._waited: dict[Role, dict[str, float]] = {role: defaultdict(float) for role in ROLES}

    def tick(self, now_s: float, nodes: Iterable[Node], causes: Mapping[Role, str]) -> None:
        """Note what idle nodes wait for now, and book what nodes have told since the last tick."""
        for role in ROLES:
            self._waited[role][causes[role]] += now_s - self._ticked_s
        self._ticked_s = now_s
        present = {node.name: node for node in nodes if node.role in ROLES}
        for node in present.values():
            self._see(node, now_s)
        for name in self._accounts.keys() - present.keys():
            self._miss(name, now_s)

    def departed(self, name: str) -> None:
        """Note that a node has left on purpose: it is not away."""
        if account := self._accounts.get(name):
            account.is_draining = True

    def is_due(self, now_s: float) -> bool:
        """False if it is too early for a line: one of a thousand nodes has 100 kB."""
        return len(self._accounts) <= FEW or now_s - self._taken_s >= len(self._accounts) / 10

    def take(self, now_s: float) -> tuple[float, dict[str, NodeTimes]]:
        """Seconds since the last call, and the nodes in them."""
        span_s, self._taken_s = now_s - self._taken_s, now_s
        return span_s, {name: account.take() for name, account in self._accounts.items() if account.seconds}

    def _see(self, node: Node, now_s: float) -> None:
        account = self._accounts.get(node.name)
        if account is None or account.peer != node.peer:
            account = self._joined(node, account, now_s)
        account.is_draining, account.away_since_s = node.is_draining, None
        if node.beat is not account.beat:
            account.heard(node.beat, now_s, self._waited[node.role], is_ready=node.is_ready)

    def _joined(self, node: Node, before: _Account | None, now_s: float) -> _Account:
        account = _Account(node.role, node.peer, now_s, waited=dict(self._waited[node.role]))
        if before is not None:
            before.book("away", now_s)
            account.seconds, account.tokens, account.memory_stall = before.seconds, before.tokens, before.memory_stall
            account.decode_steps, account.cores_busy_s = before.decode_steps, before.cores_busy_s
        self._accounts[node.name] = account
        return account

    def _miss(self, name: str, now_s: float) -> None:
        account = self._accounts[name]
        if account.away_since_s is None:
            account.away_since_s = now_s
        if not account.is_draining and now_s - account.away_since_s <= FORGET_S:
            account.book("away", now_s)
        elif not account.seconds:
            del self._accounts[name]  # It left on purpose or for good, and the lines have all of it.


# ── idle causes ───────────────────────────────────────────────────────────────────────────────
# Causes of idle time in words, from the state of the groups.
#
#     trainer   the groups that its next step lacks: sampling, grading, evaluation, rollouts, ...
#     rollout   room in the window, which a step and its weights make; or what the trainer itself waits for
#     reward    sampling
#
# Read-only: no rule follows from it.

OPERATOR = "an operator"
LAST = 1 / 8
"""Share of a step's trajectories that count as its last ones: too few to keep the rollouts busy."""


def idle_causes(scheduler: Scheduler) -> dict[Role, str]:
    """Cause by role, such as ``waiting for grading``."""
    trainer = _trainer_waits_for(scheduler)
    return {
        "trainer": f"waiting for {trainer}",
        "rollout": f"waiting for {_rollouts_wait_for(scheduler, trainer)}",
        "reward": "waiting for sampling",
    }


def _trainer_waits_for(scheduler: Scheduler) -> str:
    training, config = scheduler.training, scheduler.config
    if scheduler.transfers.live_version < 0:
        return "weights to arrive"
    if training.batches.next_step >= training.num_steps:
        return "the end of the run"
    if training.awaited_step is None:
        return "the ledger"  # The batch is formed, and is sent once its record is on disk.
    lacking = _lacking(scheduler)
    if not lacking:  # The window is full of groups whose weights are not live, or no prompt is left.
        return "prompts" if scheduler.transfers.is_at_rest else "weights to arrive"
    states = Counter(slot.state for group in lacking for slot in group.slots)
    unsampled = states[SlotState.LEASED] + states[SlotState.MISSING]
    if not unsampled:
        return "grading" if states[SlotState.STORED] else "spools"
    if not scheduler.nodes.rollouts():
        return "rollouts"
    if scheduler.settings.paused_by and not states[SlotState.LEASED]:
        return OPERATOR
    if states[SlotState.MISSING] > unsampled / 2:
        return "evaluation" if scheduler.evaluation.ongoing else "free slots"
    return "the last completions" if unsampled <= LAST * config.trajectories_per_step else "sampling"


def _lacking(scheduler: Scheduler) -> list[Group]:
    """Incomplete groups that the next step waits for; the likeliest ones if it takes whichever completes first."""
    batches, schedule = scheduler.training.batches, scheduler.config.schedule
    num_wanted, reach = schedule.groups_per_step, schedule.reach
    line = list(batches if reach is None else islice(batches, reach + num_wanted - 1))
    incomplete = [group for group in line if not group.is_complete]
    if reach is None:
        incomplete.sort(key=lambda group: group.size - group.num_scored)
    num_lacking = max(num_wanted - (len(line) - len(incomplete)), 1)
    return incomplete[:num_lacking]


def _rollouts_wait_for(scheduler: Scheduler, trainer: str) -> str:
    """Cause of the idle time of rollouts, given what the ``trainer`` waits for."""
    transfers = scheduler.transfers
    if transfers.live_version < 0:
        return "weights to arrive"
    if scheduler.settings.paused_by:
        return OPERATOR
    if scheduler.dispatcher.unleased.first() is not None:
        return "newer weights"  # A group is leased only to nodes at the version that was live when it was admitted.
    if not scheduler.training.admission.num_needed:
        return "the end of the run"
    if scheduler.training.awaited_step is not None:
        return trainer
    if not transfers.is_at_rest:
        return "weights to arrive"
    return "the trainer"


# ── run files ─────────────────────────────────────────────────────────────────────────────────

log = get_logger()

FREQUENT = ("version.live",)
"""Events of almost every step, which are in events.jsonl and would hide the others in the log."""
ON_SCREEN = (*NO_LEARNING, "eval.left_out", "step.skipped", "grading.overdue", "ledger.locked", "ledger.unlocked")
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
        self.node_states = NodeStates(events)
        self._started_s = clock() - max(
            (float(line["time_s"]) for line in [*metrics, *events] if "time_s" in line), default=0.0
        )
        self._waits = batch_metrics.WaitShare()
        self._models = batch_metrics.ModelShare()
        self.swap_times = batch_metrics.SwapTimes()
        self.totals = batch_metrics.RunTotals(metrics)
        self.recent: deque[Mapping[str, Any]] = deque(metrics[-RECENT:], RECENT)
        """Lines of the last steps."""
        self._times = TimeBook(clock())
        self._has_line = False
        """True once this broker has written the line of a step."""
        self._apart_s = 0.0
        """Seconds since the last line in which the trainer waited for an operator."""
        self._ticked_s = clock()
        self._gap_alarm = GapAlarm(config, metrics)
        self._drift_alarms = DriftAlarms(config, metrics)
        self._is_concluded = False
        scheduler.failures.restore(recorded(events), recorded_attempts(events))
        self._num_verdicts = scheduler.failures.attempts.get("reward", 0)
        """Verdicts up to the last line of times."""

    def event(self, kind: EventKind, /, **fields: Any) -> None:
        """Record an event, log it, and tell those who look on; its texts may be of other nodes and of plug-ins."""
        fields = shown_values(fields, SHOWN_CHARS)
        if kind == "checkpoint.written":
            fields |= _fields_of(self._head())
        level = log.warning if is_incident(kind, fields) else log.debug if kind in FREQUENT else log.info
        level(kind, **fields)
        self._directory.append_event(kind, **fields, time_s=round(self.time_s, 3))
        self.incidents.add(kind, fields, self._wall_clock())
        self.node_states.add({"event": kind, "time_s": self.time_s, **fields})
        if kind in ON_SCREEN:
            self._scheduler.supervisors.notice(sentence(kind, fields))
        if kind == "node.left":
            self._times.departed(fields["node"])

    def tick(self) -> None:
        """Note what every node does; a few times a second."""
        if not self._scheduler.is_over:
            causes, now_s = idle_causes(self._scheduler), self._clock()
            self._times.tick(now_s, self._scheduler.nodes.all(), causes)
            if causes["trainer"] == f"waiting for {OPERATOR}":
                self._apart_s += now_s - self._ticked_s
            self._ticked_s = now_s

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
        wait = self._waits.share(self._scheduler.nodes.with_role("rollout"))
        max_staleness, has_turns = self._config.schedule.max_staleness, self._config.environment.is_set
        line = batch_metrics.line(
            stepped,
            groups,
            wait,
            self.time_s,
            max_staleness,
            has_turns=has_turns,
            recent=self.recent,
            is_first=not self._has_line,
            apart_s=self._apart_s,
        )
        self._has_line, self._apart_s = True, 0.0
        line |= self._scheduler.training.filtering.metrics(stepped.step)
        asking = [*self._scheduler.nodes.with_role("rollout"), *self._scheduler.nodes.with_role("reward")]
        line |= self._models.metrics(asking)
        line |= self.swap_times.metrics(self._scheduler.transfers.live_version)
        line["ledger_records"] = float(self._head().num_records)
        line["failed"] = float(self._scheduler.failures.since_last_step())
        self.versions[stepped.step] = stepped.policy_version
        self.totals.add(line)
        self.last_line = line
        self.recent.append(line)
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
        cause = shown(cause, SHOWN_CHARS)
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

    def _write_summary(self, cause: str, status: RunOutcome) -> None:
        # An evaluation in which every prompt failed measured nothing.
        base, results = self._scheduler.evaluation.base, self._scheduler.evaluation.measurements
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
            goal=self._config.run.stop_when if self._scheduler.has_met_goal else "",
            versions=max(self._scheduler.transfers.live_version, 0),
            wall_s=round(self.time_s, 3),
            base_accuracy=base.accuracy if base else None,
            held_out_accuracy=results[-1].accuracy if results else None,
            base_reward=base.metrics.get("reward") if base else None,
            held_out_reward=results[-1].metrics.get("reward") if results else None,
            held_out_failed=results[-1].num_failed if results else 0,
            **totals.as_summary(),
            **_fields_of(self._head()),
            failed=by_site(failures.counts),
            failures=[*failures.sentences(), *bias(failures.counts, failures.attempts)],
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


def outcome(cause: str, *, is_interrupted: bool) -> RunOutcome:
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
