"""
State of each node in words: what it does, or what it waits for.

    rollout   weights ─▶ groups ─▶ sampling
    reward    stored trajectories ─▶ grading
    trainer   a batch ─▶ training ─▶ publishing
"""

from collections.abc import Mapping

from asyncrl.broker.nodes.node import Node
from asyncrl.broker.scheduler import Scheduler
from asyncrl.messages.supervisor import NodeState, NodeStatus

STILL_S = 5.0
"""Seconds without progress after which the state of a node says so."""


def node_status(
    scheduler: Scheduler, node: Node, groups: Mapping[str, int], num_graded: int, now_s: float
) -> NodeStatus:
    """
    State of one node.

    Args:
        groups: Open training groups by state, from `asyncrl.broker.status.status`.
        num_graded: Trajectories that it grades, if it is a reward node.
    """
    leases = scheduler.dispatcher.leases.of_node(node.peer)
    in_hand = num_graded if node.role == "reward" else sum(len(lease.open) for lease in leases)
    state, waits_for = _state(scheduler, node, groups, in_hand)
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
        still=node.standstill.clause(now_s) if node.standstill.seconds(now_s) >= STILL_S else "",
    )


def _state(scheduler: Scheduler, node: Node, groups: Mapping[str, int], in_hand: int) -> tuple[NodeState, str]:
    if node.is_quiet:
        return "silent", ""
    if node.is_barred:
        return "barred", scheduler.faults.cause(node.name)
    if node.is_stalled:
        return "stalled", ""
    if node.is_draining:
        return "leaving", ""
    if node.is_loading and not scheduler.turns.is_asleep(node.peer):
        return "loading", ""
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


def _rollout_waits(scheduler: Scheduler, node: Node, groups: Mapping[str, int]) -> str:
    dispatcher, live_version = scheduler.dispatcher, scheduler.transfers.live_version
    if scheduler.turns.is_asleep(node.peer):
        return "the devices, which the trainer uses"
    if node.transfer_group or node.is_fetching:
        return "weights, on their way"
    if node.policy_version < 0:
        return "its first weights"
    if scheduler.pause.is_set:
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
    return f"the trainer: the window of {scheduler.window.size} groups is full"


def _trainer_waits(scheduler: Scheduler, node: Node, groups: Mapping[str, int]) -> str:
    if scheduler.turns.is_asleep(node.peer):
        return "the devices, which rollouts use"
    if (step := scheduler.training.awaited_step) is None:
        is_done = not scheduler.training.admission.num_needed and not any(groups.values())
        return "the last evaluation" if is_done and not scheduler.evaluation.is_finished else ""
    needed = scheduler.config.schedule.groups_per_step
    complete = groups["complete"]
    absent = _absent(scheduler, groups)
    if complete >= needed:
        oldest = f"step {step + 1} waits for its oldest groups"
        doing = "graded" if groups["grading"] > groups["sampling"] + groups["unleased"] else "sampled"
        return f"{oldest}: {absent}" if absent else f"{oldest}, which are still {doing}"
    if scheduler.window.room <= 0 and not groups["unleased"] + groups["sampling"] + groups["grading"]:
        return f"version {scheduler.transfers.staged_version} to be live, which frees the window"
    rest = absent or _whereabouts(groups, is_paused=scheduler.pause.is_set)
    return f"step {step + 1}: {complete} of {needed} groups complete, {rest}"


def _absent(scheduler: Scheduler, groups: Mapping[str, int]) -> str:
    """Clause about the role that work waits for and no node has; empty if there is none."""
    if scheduler.grading.waiting and not scheduler.nodes.of("reward"):
        return "no reward node is connected"
    if groups["unleased"] + groups["sampling"] and not scheduler.nodes.of("rollout"):
        return "no rollout is connected"
    return ""


def _whereabouts(groups: Mapping[str, int], *, is_paused: bool) -> str:
    """Clause about the groups that are not complete."""
    if is_paused and not groups["grading"] + groups["sampling"]:
        return "sampling is paused"
    if groups["grading"] > groups["sampling"]:
        return "the rest is graded"
    if groups["sampling"]:
        return "the rest is sampled"
    return "no rollout samples the rest" if groups["unleased"] else "no further one is open"
