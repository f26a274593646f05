"""
A sentence about what the run does, while nothing is printed for longer than usual.

    nothing since 15 s: evaluation of v0, 37 of 100 prompts done; rollout-0 working at 41 tokens/s; ...
"""

from collections.abc import Hashable

from asyncrl.broker.groups.group import State
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status.status import run_status
from asyncrl.messages.supervisor import NodeStatus

FIRST_S = 15.0
"""Silence after which the first sentence comes; each following one comes after twice the time."""
USUAL = 3.0
"""Times the longest silence so far that one may last before it is told about."""
NAMED = 3
"""Nodes told about."""


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
    told = [_evaluation(scheduler)] if scheduler.evaluation.ongoing else []
    nodes = [node for node in run_status(scheduler, now_s, run="").nodes if node.role in ("trainer", "rollout")]
    nodes.sort(key=lambda node: node.role != "trainer")
    told += [_node(node) for node in nodes[:NAMED]]
    return f"no news for {silent_s:.0f} s: {'; '.join(told) or 'no trainer and no rollout is connected'}"


def _evaluation(scheduler: Scheduler) -> str:
    ongoing = scheduler.evaluation.ongoing
    assert ongoing is not None, "asked only then"
    done = sum(all(slot.state in (State.SCORED, State.GIVEN_UP) for slot in group.slots) for group in ongoing.groups)
    return f"evaluation of v{ongoing.policy_version}, {done} of {len(ongoing.groups)} prompts done"


def _node(node: NodeStatus) -> str:
    if node.still:
        return f"{node.node} has been {node.still}"
    if node.waits_for:
        return f"{node.node} is waiting ({node.waits_for})"
    return f"{node.node} {node.state}" + (f" at {node.tokens_per_s:.0f} tokens/s" if node.tokens_per_s else "")
