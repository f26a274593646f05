"""
State of a run by the scheduler's books, for people: nodes, groups, restarts, and what a quiet run does. Changes
nothing.

    Scheduler ─▶ groups by state, nodes and what each waits for ─▶ Status
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

from msgspec import Struct

from asyncrl.broker.groups.group import Group, SlotState
from asyncrl.broker.nodes.availability import missing_roles, none_connected, waits
from asyncrl.broker.nodes.node import Node
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages.spool import HOSTED_SPOOL
from asyncrl.messages.supervisor import AbsentNode, Exited, Incident, NodeStatus, Status, ToldState
from asyncrl.records.evaluation_metrics import graded_reward
from asyncrl.records.formatting import nth
from asyncrl.records.node_states import NodeRecord
from asyncrl.records.states import GROUP_STATES, ConnectedState, GroupState

# ── node states ───────────────────────────────────────────────────────────────────────────────
# State of each node in words: what it does, or what it waits for.
#
#     rollout   weights ─▶ groups ─▶ sampling
#     reward    stored trajectories ─▶ grading
#     trainer   a batch ─▶ training ─▶ publishing

STILL_S = 5.0
"""Seconds without progress after which the state of a node says so."""


def node_status(
    scheduler: Scheduler, node: Node, groups: Mapping[GroupState, int], num_graded: int, now_s: float
) -> NodeStatus:
    """
    State of one node.

    Args:
        groups: Open training groups by state, see `group_states`.
        num_graded: Trajectories that it grades, if it is a reward node.
    """
    leases = scheduler.dispatcher.leases.of_node(node.peer)
    in_hand = num_graded if node.role == "reward" else sum(len(lease.open) for lease in leases)
    state, waits_for = _state(scheduler, node, groups, in_hand)
    # A command that was killed, such as `asyncrl top`, does no work that could stand still.
    is_still = node.role != "supervisor" and node.standstill.seconds(now_s) >= STILL_S
    return NodeStatus(
        node=node.name,
        role=node.role,
        state=state,
        waits_for=waits_for,
        policy_version=node.policy_version if node.role == "rollout" else -1,
        leases=len(leases),
        trajectories=in_hand,
        tokens_per_s=round(node.tokens_per_s, 1),
        lag_s=round(node.beat.lag_s, 4),
        silent_s=round(max(now_s - node.heard_s, 0.0), 3),
        still=node.standstill.clause(now_s) if is_still else "",
        containers=node.beat.containers,
    )


def connected_state(scheduler: Scheduler, node: Node) -> ConnectedState:
    """State of a node: first whether it is heard, then whether it stays, then whether it can be given work."""
    if node.is_quiet:
        return "silent"
    if node.is_barred:
        return "barred"
    if node.is_stalled:
        return "stalled"
    if node.is_draining:
        return "leaving"
    return "loading" if node.is_loading and not scheduler.turns.is_asleep(node.peer) else "ready"


def _state(scheduler: Scheduler, node: Node, groups: Mapping[GroupState, int], in_hand: int) -> tuple[ToldState, str]:
    """State of a node, and what it waits for or why it is barred."""
    state = connected_state(scheduler, node)
    if state != "ready":
        return state, scheduler.faults.cause(node.name) if state == "barred" else ""
    waits_for = ""
    if not in_hand:
        match node.role:
            case "rollout":
                waits_for = _rollout_waits(scheduler, node, groups)
            case "reward":
                waits_for = "trajectories"
            case "trainer":
                waits_for = _trainer_waits(scheduler, node, groups)
            case "machine":
                waits_for = scheduler.machines.missing()
    return ("waiting", waits_for) if waits_for else ("working", "")


def _rollout_waits(scheduler: Scheduler, node: Node, groups: Mapping[GroupState, int]) -> str:
    dispatcher, live_version = scheduler.dispatcher, scheduler.transfers.live_version
    if scheduler.turns.is_asleep(node.peer):
        return "the devices, which the trainer uses"
    if node.transfer_group or node.is_fetching:
        return "weights, on their way"
    if node.policy_version < 0:
        return "its first weights"
    if scheduler.settings.paused_by:
        return "an operator, who paused sampling"
    if dispatcher.awaited:
        return f"{' and '.join(dispatcher.awaited[:2])}, to report what they sample since before the broker's restart"
    if node.credits <= 0:
        return "a free slot: requests of its own users have all"
    if groups["unleased"]:
        first = dispatcher.unleased.first()
        if first and node.policy_version < first.min_version:
            return f"weights: it has v{node.policy_version}, the next group needs v{first.min_version}"
        return "free slots for a whole group"
    if live_version < 0:
        return "the first version"
    if not scheduler.training.admission.num_needed:
        return "the end: every group has been sampled or leased"
    if scheduler.window.room <= 0:
        return _trainer_awaited(scheduler)
    return "groups"


def _trainer_awaited(scheduler: Scheduler) -> str:
    """The trainer, whose next step frees the window, and why that takes its time."""
    trainer = scheduler.nodes.trainer()
    if trainer is None:
        return "the trainer, which is not connected"
    if not trainer.is_ready:
        return "the trainer, which is loading"
    if spools := scheduler.training.awaited_spools:
        return f"{_away(spools)}: the window of {scheduler.window.size} groups is full"
    return f"the trainer: the window of {scheduler.window.size} groups is full"


def _trainer_waits(scheduler: Scheduler, node: Node, groups: Mapping[GroupState, int]) -> str:
    if scheduler.turns.is_asleep(node.peer):
        return "the devices, which rollouts use"
    absent = none_connected(wait.role for wait in waits(scheduler))
    if (step := scheduler.training.awaited_step) is None:
        is_done = not scheduler.training.admission.num_needed and not any(groups.values())
        return _because("the last evaluation", absent) if is_done and not scheduler.evaluation.is_finished else ""
    needed = scheduler.config.schedule.groups_per_step
    complete = groups["complete"]
    if complete >= needed:
        return _complete_batch_waits(scheduler, step, absent)
    if scheduler.window.room <= 0 and not groups["unleased"] + groups["sampling"] + groups["grading"]:
        return _because(f"version {scheduler.transfers.staged_version} to be live, which frees the window", absent)
    rest = absent or _whereabouts(scheduler, groups)
    return f"step {nth(step)}: {complete} of {needed} groups complete, {rest}"


def _complete_batch_waits(scheduler: Scheduler, step: int, absent: str) -> str:
    """Reason why a step waits although enough groups are complete."""
    training, transfers = scheduler.training, scheduler.transfers
    if spools := training.awaited_spools:
        return f"step {nth(step)} waits for {_away(spools)} with payloads of its groups"
    oldest = next((group for group in training.batches if not group.is_complete), None)
    if oldest is None or training.awaits_version(transfers.live_version):
        return _because(f"version {transfers.staged_version} to be live", absent)
    doing = {"unleased": "which no rollout has yet", "sampling": "which are still sampled"}
    rest = absent or doing.get(_state_of(oldest)) or f"which are {_graded(scheduler)}"
    return f"step {nth(step)} waits for its oldest groups{':' if absent else ','} {rest}"


def _away(spools: Sequence[str]) -> str:
    return f"{' and '.join(spools)}, which {'is' if len(spools) == 1 else 'are'} away"


def _graded(scheduler: Scheduler) -> str:
    """Clause about groups that wait for a reward."""
    if not (spools := scheduler.grading.awaited_spools):
        return "still graded"
    return f"graded once {' and '.join(spools)} {'is' if len(spools) == 1 else 'are'} back"


def _because(wait: str, cause: str) -> str:
    return f"{wait}: {cause}" if cause else wait


def _whereabouts(scheduler: Scheduler, groups: Mapping[GroupState, int]) -> str:
    """Clause about the groups that are not complete."""
    if scheduler.settings.paused_by and not groups["grading"] + groups["sampling"]:
        return "sampling is paused"
    if groups["grading"] > groups["sampling"]:
        return f"the rest is {_graded(scheduler)}"
    if groups["sampling"]:
        return "the rest is sampled"
    return "no rollout samples the rest" if groups["unleased"] else "no further one is open"


# ── status ────────────────────────────────────────────────────────────────────────────────────

PAUSED = "paused by {by}: rollouts get no new leases, what is in hand goes on; asyncrl unpause ends it"


def run_status(
    scheduler: Scheduler,
    now_s: float,
    *,
    run: str,
    step: int = 0,
    time_s: float = 0.0,
    incidents: Sequence[Incident] = (),
    restarts: Sequence[str] = (),
    absent: Sequence[NodeRecord] = (),
    metrics: Mapping[str, float] | None = None,
) -> Status:
    """
    State of the run.

    Args:
        now_s: The scheduler's time.
        step: Steps that were trained and recorded.
        time_s: Duration of the run so far.
        restarts: Sentences about nodes that are started again.
        absent: Nodes that are away.
        metrics: Metrics of the last step.
    """
    groups = group_states(scheduler)
    graded = scheduler.grading.num_assigned()
    measured = scheduler.evaluation.measurements
    notes = [*restarts, *scheduler.spool_loss.notes(now_s)]
    if by := scheduler.settings.paused_by:
        notes.append(PAUSED.format(by=by))
    if not (scheduler.is_finished or scheduler.is_over) and (missing := none_connected(missing_roles(scheduler))):
        notes.append(missing)
    if values := scheduler.settings.values:
        notes.append(f"set live: {', '.join(f'{key} = {value}' for key, value in values.items())}")
    return Status(
        run=run,
        state="ending" if scheduler.is_over else "paused" if scheduler.settings.paused_by else "running",
        step=step,
        steps=scheduler.training.num_steps,
        policy_version=scheduler.transfers.live_version,
        window=scheduler.window.size,
        open_groups=scheduler.window.num_open,
        group_size=scheduler.config.schedule.group_size,
        groups={str(state): number for state, number in groups.items()},
        nodes=[node_status(scheduler, node, groups, graded[node.peer], now_s) for node in scheduler.nodes.all()],
        time_s=round(time_s, 3),
        incidents=list(incidents),
        metrics=dict(metrics or {}),
        accuracy=measured[-1].accuracy if measured else None,
        notes=notes,
        base_accuracy=scheduler.evaluation.base_accuracy,
        accuracy_failed=measured[-1].num_failed if measured else 0,
        held_out_reward=graded_reward(measured[-1].accuracy, measured[-1].metrics.get("reward")) if measured else None,
        absent=[told for node in absent for told in _absent(node, time_s)],
    )


def _absent(node: NodeRecord, time_s: float) -> Iterator[AbsentNode]:
    ago_s = None if node.since_s is None else round(max(time_s - node.since_s, 0.0), 1)
    match node.state:
        case "lost" | "exited" | "silent" | "left":
            yield AbsentNode(node.name, node.role, node.state, node.cause, ago_s)


def group_states(scheduler: Scheduler) -> dict[GroupState, int]:
    """Open training groups by state; a group is as far as the least advanced of its trajectories that move."""
    counts = Counter(map(_state_of, scheduler.training.batches))
    counts["taken"] = scheduler.window.num_open - counts.total()
    return {state: counts[state] for state in GROUP_STATES}


def _state_of(group: Group) -> GroupState:
    if group.is_complete:
        return "complete"
    states = {slot.state for slot in group.slots}
    if SlotState.LEASED in states:
        return "sampling"
    return "unleased" if SlotState.MISSING in states else "grading"


# ── restarts ──────────────────────────────────────────────────────────────────────────────────
# Nodes whose process died and is started again, until they are back.
#
#     Exited(restarting) ─▶ "trainer-0 was killed by SIGKILL 12 s ago and is starting again" ─▶ Ready ─▶ Returned


BROKERS = ("broker", "broker-0", HOSTED_SPOOL)
"""Names of the broker's own process, which also hosts the spool."""


class Absence(Struct, frozen=True):
    cause: str
    since_s: float
    """Clock time at which its process ended."""
    told_by: str
    """Peer of the supervisor that starts it again."""


class RestartBook:
    """Nodes whose process ended and is being started again. ``now_s`` is the clock's time."""

    def __init__(self) -> None:
        self._absent: dict[str, Absence] = {}

    def exited(self, message: Exited, told_by: str, now_s: float) -> None:
        """Note that a process ended; ``told_by`` is the peer of its supervisor."""
        self._absent.pop(message.node, None)
        if message.restarting and message.is_needed and message.node not in BROKERS:
            self._absent[message.node] = Absence(message.cause, now_s, told_by)

    def returned(self, node: str) -> Absence | None:
        """Note that a node is back; None if it was not known to be away."""
        return self._absent.pop(node, None)

    def notes(self, now_s: float) -> list[str]:
        """A sentence for each node that is away."""
        return [
            f"{node} {absence.cause} {now_s - absence.since_s:.0f} s ago and is starting again"
            for node, absence in self._absent.items()
        ]


# ── long silence ──────────────────────────────────────────────────────────────────────────────
# A sentence about what the run does, while nothing is printed for longer than usual.
#
#     nothing since 15 s: evaluation of v0, 37 of 100 prompts done; rollout-0 working at 41 tokens/s; ...

FIRST_S = 15.0
"""Silence after which the first sentence comes; each following one comes after twice the time."""
USUAL = 3.0
"""Factor of the longest silence so far after which a silence is told about."""
NAMED = 3
"""Most nodes that a sentence names."""


class LongSilence:
    """Decides when a silence is worth a sentence."""

    def __init__(self, now_s: float) -> None:
        self._mark: Hashable = None
        self._since_s = now_s
        self._due_s = self._first_s = FIRST_S

    def due(self, mark: Hashable, now_s: float) -> float:
        """Length of the silence in seconds if it is to be told about now, else 0; it ends when ``mark`` changes."""
        silent_s = now_s - self._since_s
        if mark != self._mark:
            if self._mark is not None:
                self._first_s = max(self._first_s, USUAL * silent_s)
            self._mark, self._since_s, self._due_s = mark, now_s, self._first_s
            return 0.0
        if silent_s < self._due_s:
            return 0.0
        self._due_s *= 2
        return silent_s


def sentence(scheduler: Scheduler, silent_s: float, now_s: float) -> str:
    """Activity of the run, ``silent_s`` after its last line, in one sentence."""
    told = []
    if ongoing := scheduler.evaluation.ongoing:
        closed = (SlotState.SCORED, SlotState.GIVEN_UP)
        done = sum(all(slot.state in closed for slot in group.slots) for group in ongoing.groups)
        told.append(f"evaluation of v{ongoing.policy_version}, {done} of {len(ongoing.groups)} prompts done")
    nodes = [node for node in run_status(scheduler, now_s, run="").nodes if node.role in ("trainer", "rollout")]
    nodes.sort(key=lambda node: node.role != "trainer")
    told += [_node(node) for node in nodes[:NAMED]]
    return f"no news for {silent_s:.0f} s: {'; '.join(told) or 'no trainer and no rollout is connected'}"


def _node(node: NodeStatus) -> str:
    if node.still:
        return f"{node.node} has been {node.still}"
    if node.waits_for:
        return f"{node.node} is waiting ({node.waits_for})"
    return f"{node.node} {node.state}" + (f" at {node.tokens_per_s:.0f} tokens/s" if node.tokens_per_s else "")
