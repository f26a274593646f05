"""Explanation of a run's speed: the time of each role by activity, and the bottleneck. Alarms about learning."""

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.broker import Broker
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import LedgerError
from asyncrl.messages.words import Role
from asyncrl.observe.alarms import Alarm, alarms
from asyncrl.observe.run_record import RunRecord, Status
from asyncrl.observe.why.attribution import attribute
from asyncrl.observe.why.diagnosis import Diagnosis, Evidence, diagnose

ROLES: tuple[Role, ...] = ("trainer", "rollout", "reward")


class Explanation(Struct, frozen=True):
    """Shares of time by activity, largest first, in the steady part of the run; those of a role or node add up to 1."""

    status: Status
    cause: str
    """Reason of a failure; empty without one."""
    steps: int
    steady_s: float
    """Seconds from the first step's end on, without loading and the end of the run."""
    roles: dict[Role, dict[str, float]]
    nodes: dict[str, dict[str, float]]
    diagnosis: Diagnosis | None
    """None of a run without a step, and of one whose trainer has told nothing."""
    alarms: list[Alarm] = []
    """Alarms about learning."""


def explain(record: RunRecord) -> Explanation:
    """Raises `LedgerError` if the run recorded no times."""
    if not record.times:
        raise LedgerError(
            f"the run {record.name} has no times.jsonl: it has not trained a step yet, or an earlier version of "
            f"asyncrl trained it; metrics.jsonl has wait_trainer and wait_rollout for each step"
        )
    steady = attribute(record.times, is_steady=True)
    return Explanation(
        record.status,
        record.cause,
        len(record.metrics),
        steady.span_s,
        {role: shares for role in ROLES if (shares := steady.shares(role))},
        {name: steady.node_shares(name) for name in steady.nodes},
        diagnose(steady, _evidence(record)) if record.metrics else None,
        alarms(record.events),
    )


def _evidence(record: RunRecord) -> Evidence:
    default, config = Schedule(), record.config | record.live_settings
    groups = int(config.get("schedule.groups_per_step", default.groups_per_step))
    schedule = replace(default, staleness=config.get("schedule.staleness", default.staleness))
    broker = Broker(bind=config.get("broker.bind", Broker().bind), advertise=config.get("broker.advertise", ""))
    return Evidence(
        record.events,
        len(record.metrics) * groups,
        schedule.staleness_bound,
        is_on_one_machine=not broker.serves_other_machines,
    )
