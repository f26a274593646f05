"""
The bottleneck of a run, in a sentence with the setting to change.

    trainer     trains most of the time ────────────────────────────────▶ it is the bottleneck
                publishes, checkpoints, waits for grading, ... ─────────▶ that is
                waits for sampling ─▶ rollouts: away, stalled, storing, waiting themselves, one slow, all busy

Thresholds are shares of the steady part of a run, where the trainer's time is the run's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.config.sections.broker import Broker
from asyncrl.config.sections.schedule import Schedule
from asyncrl.errors import LedgerError
from asyncrl.messages.words import Role
from asyncrl.records.alarms import Alarm, alarms
from asyncrl.records.measures import RECENT, Measures
from asyncrl.records.run_record import RunRecord
from asyncrl.records.states import RunState
from asyncrl.records.times import APART, NodeTimes, TimesLine, without_starts

# ── attribution ───────────────────────────────────────────────────────────────────────────────
# Attribution of a run's time: seconds of every node by activity, as shares that add up to 1.
#
#     times.jsonl ─▶ all lines ─▶ whole run                      `NodeTimes` of every node, summed
#                └─▶ from the first trained step to the last ─▶ steady: without loading, and without the end


class Attribution(Struct, frozen=True):
    """Sums of a stretch of a run."""

    span_s: float
    nodes: Mapping[str, NodeTimes]
    verdicts: int = 0
    present: Collection[str] = ()
    """Nodes that the last `RECENT` lines know: what others did wrong, nobody can mend any more."""

    def shares(self, role: Role) -> dict[str, float]:
        """Share of the time of all nodes of a role by activity, largest first; they add up to 1. Empty without any."""
        return _shares([node.seconds for node in self.nodes.values() if node.role == role])

    def node_shares(self, name: str) -> dict[str, float]:
        """Share of one node's time by activity, largest first."""
        return _shares([self.nodes[name].seconds])

    def names(self, role: Role) -> list[str]:
        return [name for name, node in self.nodes.items() if node.role == role]

    def speed(self, name: str) -> float:
        """Tokens per second of sampling of a rollout; 0 if it sampled nothing."""
        node = self.nodes[name]
        sampling_s = node.seconds.get("sampling", 0.0)
        return node.tokens / sampling_s if sampling_s else 0.0

    def slow_rollout(self, share: float) -> tuple[str, float]:
        """A rollout that samples at less than ``share`` of the others' median speed, and that; no name if none does."""
        speeds = {name: self.speed(name) for name in self.names("rollout") if self.speed(name)}
        for name, speed in sorted(speeds.items(), key=lambda item: item[1]):
            if name not in self.present:
                continue
            others = [other for key, other in speeds.items() if key != name]
            if others and speed < share * median(others):
                return name, median(others)
        return "", 0.0


def attribute(lines: Sequence[TimesLine], *, is_steady: bool = False) -> Attribution:
    """Sum lines; ``is_steady`` leaves out starts, with the first step, and what says nothing of the run's pace."""
    if is_steady:
        lines = without_starts(lines)
    by_name: defaultdict[str, list[NodeTimes]] = defaultdict(list)
    for line in lines:
        for name, node in line.nodes.items():
            by_name[name].append(node)
    return Attribution(
        sum(line.span_s - (_apart_s(line) if is_steady else 0.0) for line in lines),
        {name: _sum(of_node, without=APART if is_steady else ()) for name, of_node in by_name.items()},
        sum(line.verdicts for line in lines),
        {name for line in lines[-RECENT:] for name in line.nodes},
    )


def _apart_s(line: TimesLine) -> float:
    """Seconds of the trainer that say nothing about the run's pace."""
    trainers = [node for node in line.nodes.values() if node.role == "trainer"]
    return max((sum(node.seconds.get(name, 0.0) for name in APART) for node in trainers), default=0.0)


def _sum(of_node: Sequence[NodeTimes], without: Iterable[str]) -> NodeTimes:
    seconds: defaultdict[str, float] = defaultdict(float)
    tokens, memory_stall, decode_steps, total_s, cores_busy_s = 0, 0.0, 0.0, 0.0, 0.0
    for times in of_node:
        for activity, value in times.seconds.items():
            if activity not in without:
                seconds[activity] += value
        tokens += times.tokens
        memory_stall = max(memory_stall, times.memory_stall)
        decode_steps += times.decode_steps
        all_s = sum(times.seconds.values())
        total_s += all_s
        cores_busy_s += times.cores_busy * all_s
    busy = cores_busy_s / total_s if total_s else 0.0
    return NodeTimes(of_node[0].role, dict(seconds), tokens, memory_stall, decode_steps, busy)


def _shares(of_nodes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for seconds in of_nodes:
        for activity, value in seconds.items():
            sums[activity] += value
    total_s = sum(sums.values())
    return {name: value / total_s for name, value in sorted(sums.items(), key=lambda item: -item[1])} if total_s else {}


# ── diagnosis ─────────────────────────────────────────────────────────────────────────────────

Bottleneck = Literal[
    "trainer", "sampling", "long completions", "window", "slow rollout", "flapping node", "memory", "disk",
    "processor", "publishing", "checkpoints", "grading", "hanging verifier", "evaluation", "refused data", "rollouts",
    "shared devices", "unknown",
]  # fmt: skip

MUCH = 0.2
"""Share of a role's time that counts as much of it."""
SLOW = 0.6
"""Speed of a slow rollout, of the median of the others."""
FLAPS = 3
"""Losses of one node that are no accident."""
STALL = 0.1
"""Share of ten seconds in which a machine waits for memory."""
BUSY = 0.9
"""Share of a machine's cores that leaves none for a further process."""
CORES = "the cores of the machine of {node} are {busy:.0%} busy"
NO_CORES = (
    "use a machine with more cores, or put rollouts on another machine: further processes on this one would only take "
    "time from the others; or sample fewer tokens (a lower sampling.max_tokens, if completions reach it)"
)
HANGS = ("the function hung", "no verdict within", "no answer within")
"""Words in the causes of verdicts that never came."""


class Diagnosis(Struct, frozen=True):
    bottleneck: Bottleneck
    share: float
    """Share of the trainer's time that it costs; of a trainer that is itself the bottleneck, the share it trains."""
    sentence: str
    setting: str
    """Advice: the setting to change, or the place to look."""


class Evidence(Struct, frozen=True):
    """Records of a run besides its times."""

    events: Sequence[Mapping[str, Any]]
    num_groups: int
    """Groups that were trained on."""
    staleness: float
    """``schedule.staleness``."""
    is_on_one_machine: bool = False
    """True if the broker serves no other machines."""

    def num_failed(self, stage: str, words: Sequence[str]) -> int:
        """Failed units of a stage whose cause has one of the words."""
        found: dict[str, int] = {}
        for event in self.events:
            cause = str(event.get("cause"))
            if event.get("event") == "units.failed" and event.get("stage") == stage and any(w in cause for w in words):
                found[cause] = int(event.get("count", 0))
        return sum(found.values())


def diagnose(steady: Attribution, evidence: Evidence) -> Diagnosis | None:
    """The bottleneck; None if the trainer's time is unknown."""
    trainer = steady.shares("trainer")
    if not trainer:
        return None
    by_cause = dict[str, float]()
    for activity, share in trainer.items():
        cause = CAUSES.get(activity, activity)
        by_cause[cause] = by_cause.get(cause, 0.0) + share
    if by_cause.get("training", 0.0) < 0.5:  # It waits most of the time, so what it waits for most counts.
        by_cause.pop("training", None)
    cause, share = max(by_cause.items(), key=lambda item: item[1], default=("training", 1.0))
    if cause in RULES:
        return RULES[cause](steady, evidence, share)
    bottleneck, sentence, setting = REMEDIES.get(
        cause, ("unknown", f"The trainer is {cause} {{share:.0%}} of the time.", "")
    )
    return Diagnosis(bottleneck, share, sentence.format(share=share), setting)


CAUSES = {
    "waiting for sampling": "sampling",
    "waiting for the last completions": "sampling",
    "waiting for free slots": "sampling",
    "waiting for prompts": "sampling",
    "waiting for the ledger": "disk",
    "waiting for spools": "disk",
    "fetching": "disk",
    "waiting for grading": "grading",
    "waiting for evaluation": "evaluation",
    "waiting for rollouts": "rollouts",
    "waiting for weights to arrive": "publishing",
    "waiting for the devices": "shared devices",
}
"""Groups of a trainer's activities that have one remedy."""

REMEDIES: dict[str, tuple[Bottleneck, str, str]] = {
    "checkpointing": (
        "checkpoints",
        "The trainer copies checkpoints {share:.0%} of the time.",
        "raise checkpoint.every_steps",
    ),
    "disk": (
        "disk",
        "The trainer waits {share:.0%} of the time for records and trajectories to be written and read.",
        "put run.dir and the spools on a faster disk",
    ),
    "evaluation": (
        "evaluation",
        "The trainer waits {share:.0%} of the time while a rollout evaluates.",
        "raise evaluation.every_versions, or lower evaluation.max_prompts",
    ),
    "rollouts": (
        "rollouts",
        "No rollout was connected {share:.0%} of the time.",
        "start rollouts, or read their logs",
    ),
    "shared devices": (
        "shared devices",
        "The trainer waits {share:.0%} of the time for its turn at the devices that it shares with rollouts.",
        "set rollout.colocated = false if there are more devices",
    ),
}
"""Bottleneck, sentence and advice for causes that need no further look."""


def _training(steady: Attribution, _evidence: Evidence, share: float) -> Diagnosis:
    if busy := _busy_cores(steady, "trainer"):
        sentence = f"The trainer trains {share:.0%} of the time, and {busy}."
        return Diagnosis("processor", share, sentence, NO_CORES)
    idle = _waits(steady.shares("rollout"), "the trainer", "weights to arrive")
    return Diagnosis(
        "trainer",
        share,
        f"The trainer trains {share:.0%} of the time, and rollouts wait for it {idle:.0%} of theirs.",
        "give it more devices (trainer.ranks, trainer.nodes), or fewer tokens (a lower sampling.max_tokens, if "
        "completions reach it)",
    )


def _publishing(_steady: Attribution, evidence: Evidence, share: float) -> Diagnosis:
    sentence = f"The trainer waits {share:.0%} of the time for new weights to reach the rollouts."
    return Diagnosis("publishing", share, sentence, _faster_publishing(evidence))


def _faster_publishing(evidence: Evidence) -> str:
    if evidence.is_on_one_machine:
        return "raise schedule.steps_per_publish"
    return "raise schedule.steps_per_publish, set weights.delta, or use a faster network (weights.interface)"


def _grading(steady: Attribution, evidence: Evidence, share: float) -> Diagnosis:
    waits = f"The trainer waits {share:.0%} of the time for rewards"
    if hangs := evidence.num_failed("reward", HANGS):
        setting = "mend the verifier, or lower reward.timeout_s"
        return Diagnosis("hanging verifier", share, f"{waits}, and {hangs} verdicts never came.", setting)
    busy = steady.shares("reward").get("grading", 0.0)
    setting = "raise reward.workers, or start further reward nodes"
    return Diagnosis("grading", share, f"{waits}; reward nodes grade {busy:.0%} of theirs.", setting)


def _sampling(steady: Attribution, evidence: Evidence, share: float) -> Diagnosis:
    """The trainer waits for sampling: the first of the reasons for which rollouts do not sample more."""
    sampling = steady.shares("rollout").get("sampling", 0.0)
    bottleneck, clause, setting = (
        _machine_finding(steady, evidence)
        or _data_finding(evidence)
        or _idle_finding(steady, evidence)
        or (
            "sampling",
            f"and rollouts sample {sampling:.0%} of theirs",
            "start further rollouts, or raise rollout.slots",
        )
    )
    return Diagnosis(bottleneck, share, f"The trainer waits {share:.0%} of the time for sampling, {clause}.", setting)


Finding = tuple[Bottleneck, str, str]
"""Bottleneck, clause about the rollouts, and advice."""


def _machine_finding(steady: Attribution, evidence: Evidence) -> Finding | None:
    names = [str(event.get("node")) for event in evidence.events if event.get("event") == "node.lost"]
    lost = Counter(name for name in names if name in steady.present)
    node, losses = next(iter(lost.most_common(1)), ("", 0))
    if losses >= FLAPS:
        return "flapping node", f"and {node} was lost {losses} times", f"read the log of {node}"
    stalled = max(steady.nodes, key=lambda name: steady.nodes[name].memory_stall)
    if (stall := steady.nodes[stalled].memory_stall) > STALL:
        return (
            "memory",
            f"and the machine of {stalled} waits for memory up to {stall:.0%} of the time",
            "lower rollout.slots or sampling.max_tokens, or use a machine with more memory",
        )
    if busy := _busy_cores(steady, "rollout"):
        return "processor", f"and {busy}", NO_CORES
    if (storing := steady.shares("rollout").get("storing", 0.0)) > MUCH:
        return (
            "disk",
            f"and rollouts wait {storing:.0%} of theirs for trajectories to be on disk",
            "put the spools on a faster disk",
        )
    slow, others = steady.slow_rollout(SLOW)
    if not slow:
        return None
    return (
        "slow rollout",
        f"and {slow} samples {steady.speed(slow):.0f} tokens per second where others sample {others:.0f}",
        f"look for what slows the machine of {slow}, or drain it",
    )


def _data_finding(evidence: Evidence) -> Finding | None:
    reasons = Counter(str(event.get("reason")) for event in evidence.events if event.get("event") == "group.dropped")
    if reasons.total() <= MUCH * max(evidence.num_groups, 1):
        return None
    dropped = f"{reasons.total()} groups were dropped for {evidence.num_groups} trained"
    return (
        "refused data",
        f"and {dropped}: {reasons.most_common(1)[0][0]}",
        "mend the data or the reward that this names",
    )


def _idle_finding(steady: Attribution, evidence: Evidence) -> Finding | None:
    rollout, trainer = steady.shares("rollout"), steady.shares("trainer")
    if (arriving := _waits(rollout, "weights to arrive", "newer weights")) > MUCH:
        clause = f"and rollouts wait {arriving:.0%} of theirs for new weights"
        return "publishing", clause, _faster_publishing(evidence)
    idle = sum(share for activity, share in rollout.items() if activity.startswith("waiting for"))
    if idle <= MUCH:
        return None
    if trainer.get("waiting for the last completions", 0.0) > trainer.get("waiting for sampling", 0.0):
        return (
            "long completions",
            f"mostly for the last few completions of a step, while rollouts are idle {idle:.0%} of theirs",
            'set schedule.order = "windowed", raise schedule.staleness, or lower sampling.max_tokens',
        )
    return (
        "window",
        f"and rollouts are idle {idle:.0%} of theirs, because no more groups may be open",
        f"raise schedule.staleness, which is {evidence.staleness:g}",
    )


def _busy_cores(steady: Attribution, role: Role) -> str:
    """Clause about the machine of a role's nodes whose cores are busiest; empty if they could do more."""
    node = max(steady.names(role), key=lambda name: steady.nodes[name].cores_busy, default="")
    busy = steady.nodes[node].cores_busy if node else 0.0
    return CORES.format(node=node, busy=busy) if busy >= BUSY else ""


def _waits(shares: Mapping[str, float], *causes: str) -> float:
    return sum(shares.get(f"waiting for {cause}", 0.0) for cause in causes)


RULES: dict[str, Callable[[Attribution, Evidence, float], Diagnosis]] = {
    "training": _training,
    "publishing": _publishing,
    "grading": _grading,
    "sampling": _sampling,
}
"""Causes whose reason or remedy is looked for in the times of other nodes and in the records."""


# ── explanation ───────────────────────────────────────────────────────────────────────────────
# Explanation of a run's speed: the time of each role by activity, and the bottleneck. Alarms about learning.

ROLES: tuple[Role, ...] = ("trainer", "rollout", "reward")


class Explanation(Struct, frozen=True):
    """Shares of time by activity, largest first, in the steady part of the run; those of a role or node add up to 1."""

    status: RunState
    cause: str
    """Reason of a failure; empty without one."""
    steps: int
    steady_s: float
    """Seconds without starts, each with the first step after it, without pauses and the end of the run."""
    roles: dict[Role, dict[str, float]]
    nodes: dict[str, dict[str, float]]
    diagnosis: Diagnosis | None
    """None of a run without a step, and of one whose trainer has told nothing."""
    alarms: list[Alarm] = []
    """Alarms about learning."""
    measures: Measures | None = None
    """Pace of all steps; None without one."""


def explain(record: RunRecord) -> Explanation:
    """Raises `LedgerError` if the run recorded no times."""
    if not record.times:
        raise LedgerError(
            f"the run {record.name} has no times.jsonl: it has not trained a step yet, or the file was removed; "
            f"metrics.jsonl has wait_trainer and wait_rollout for each step"
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
        alarms(record.events, record.metrics),
        record.measures() if record.metrics else None,
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
