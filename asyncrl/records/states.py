"""
States of a run, a group and a node: one word for one thing, in `asyncrl status`, `top` and `ls`, in metrics, on the
dashboard, in reports and in the documentation.

    run     running ◀─▶ paused ─▶ ending ─▶ finished | failed | interrupted        without an end: stopped
    group   unleased ─▶ sampling ─▶ grading ─▶ complete ─▶ taken
    node    loading ─▶ ready: working | waiting ─▶ leaving ─▶ left       silent, stalled, barred; lost, exited

Messages have those words of them that a broker says (`asyncrl.messages.supervisor`); events are named by what happens.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from asyncrl.messages.supervisor import ToldState
from asyncrl.messages.words import Role, UnreadyState

# ── run ───────────────────────────────────────────────────────────────────────────────────────

RunOutcome = Literal["finished", "failed", "interrupted"]
"""Outcome of a run, as summary.json has it."""
RunState = Literal["running", "paused", "ending", "stopped", RunOutcome]
RUN_STATES: Mapping[RunState, str] = {
    "running": "a broker of this user on this machine holds broker.lock, or the broker that was asked says so; on the "
    "dashboard and in reports also one elsewhere, if no end is recorded and something was recorded lately",
    "paused": "an operator paused sampling; the trainer trains what is complete",
    "ending": "its end has begun; nodes store what they have",
    "finished": "every step was trained",
    "failed": "it ended early, for the cause in its summary",
    "interrupted": "somebody ended it early; it can be resumed",
    "stopped": "no end is recorded and no broker serves it: it was told to stop, was killed, or its machine went down",
}
"""Meaning of each state of a run. Files alone do not tell ``ending`` from ``running``."""

INTERRUPTED = "the run was interrupted"
"""Cause of a run that somebody ended early."""


def progress(state: RunState, steps: int, planned: int | None) -> str:
    """A state of a run and the steps done, such as ``Interrupted after step 3 of 40``, to begin a sentence."""
    of, word = f" of {planned}" if planned else "", state.capitalize()
    if state == "finished":
        return f"{word} {steps}{of} steps"
    if not steps:
        return f"{word} before the first step"
    return f"{word} {'after' if state in ('stopped', *get_args(RunOutcome)) else 'at'} step {steps}{of}"


# ── group ─────────────────────────────────────────────────────────────────────────────────────

GroupState = Literal["unleased", "sampling", "grading", "complete", "taken"]
GROUP_STATES: Mapping[GroupState, str] = {
    "unleased": "no rollout has any of its trajectories, and some are missing",
    "sampling": "a rollout has some of its trajectories",
    "grading": "all its trajectories are stored, and some wait for a reward",
    "complete": "every trajectory has a reward",
    "taken": "a step took it, whose weights are not live yet",
}
"""Meaning of each state of an open training group."""

# ── node ──────────────────────────────────────────────────────────────────────────────────────

ConnectedState = Literal[UnreadyState, "ready"]
"""State of a node that is connected to the broker."""
NodeState = Literal[ConnectedState, ToldState, "left", "lost", "exited"]
NODE_STATES: Mapping[NodeState, str] = {
    "loading": "it has joined, and loads its model",
    "ready": "it can be given work: `asyncrl status` tells ``working`` from ``waiting``",
    "working": "it is ready, and has work",
    "waiting": "it is ready, and waits for work, weights or a batch",
    "silent": "it was not heard for so long that it gets no new work",
    "stalled": "it is heard, and has made no progress for so long that it gets no new work",
    "barred": "it fails what others do not, and gets no work",
    "leaving": "it finishes what it has, and gets no new work",
    "left": "it has left as it said",
    "lost": "it was not heard for so long that the broker gave it up, ended without a word, or its parent has died",
    "exited": "its process ended, as its supervisor says",
}
"""Meaning of each state of a node."""

NEEDED: Mapping[Role, str] = {"trainer": "trainer", "rollout": "rollout", "spool": "spool", "reward": "reward node"}
"""Roles without which a run stands still, and what one node of each is called."""


def node_of(role: str) -> str:
    """Name for one node of a role: ``reward node``, ``rollout``."""
    return next((name for needed, name in NEEDED.items() if needed == role), role)


CONNECTED_STATES: tuple[ConnectedState, ...] = get_args(ConnectedState)
