"""Words that several messages use."""

from typing import Annotated, Literal, TypeVar

from msgspec import Meta

Role = Literal["broker", "spool", "rollout", "reward", "trainer", "machine", "shard", "supervisor"]
"""
``machine``: in a trainer of several machines, one that waits for the others, or follows the first, which is the
``trainer``. Each says Hello as a ``trainer``; the broker decides.
"""
JOIN: frozenset[Role] = frozenset(("spool", "rollout", "reward", "trainer", "supervisor"))
"""Roles in which a node joins; the broker itself makes a trainer a ``machine``."""
EVERY: frozenset[Role] = JOIN | {"machine"}
MEMBERS: frozenset[Role] = frozenset(("rollout", "trainer"))
"""Members of weight transfers."""
Activity = Literal[
    "sampling", "swapping", "asleep", "serving users", "environment", "storing",
    "grading",
    "training", "publishing", "checkpointing", "waiting for the devices", "fetching",
    "idle",
]  # fmt: skip
"""Activity of a rollout, a reward node or a trainer at a moment."""
ROLLOUT_ACTIVITIES: tuple[Activity, ...] = (
    "asleep", "swapping", "serving users", "sampling", "environment", "storing",
)  # fmt: skip
"""The first counts where two go on at the same time."""
REWARD_ACTIVITIES: tuple[Activity, ...] = ("grading",)
TRAINER_ACTIVITIES: tuple[Activity, ...] = (
    "training", "publishing", "checkpointing", "waiting for the devices", "fetching",
)  # fmt: skip
"""The first counts where two go on at the same time."""
Split = Literal["train", "held_out"]
Truncation = Literal["error", "left", "right", "middle"]
"""Part of an over-long prompt that is cut out: its beginning, end or middle; ``error`` refuses the prompt instead."""
FinishReason = Literal["stop", "length", "unfinished"]
"""
``stop``: the policy ended the completion (end of sequence or a stop string). ``length``: cut at ``max_tokens``.
``unfinished``: stored so that a node can continue it; never graded or trained on. Engines set it; the broker compares
it with ``unfinished``, and metrics with ``length``.
"""
CallFault = Literal["json", "form", "unclosed", "name", "arguments"]
"""
Kind of a malformed call of a tool. ``json``: its JSON is invalid. ``form``: it lacks a part, such as its name, or has
one twice, or there are too many calls. ``unclosed``: it has no end. ``name``: there is no such tool. ``arguments``:
they are no object, or do not fit the tool's schema.
"""
WeightsVia = Literal["collective", "spool"]
"""``collective``: a rollout is a member of transfers. ``spool``: it fetches versions from the spool."""
Stage = Literal["rollout", "environment", "reward", "payload"]
"""
Place at which a unit failed. ``rollout``: the engine, or the check of its output. ``environment``: the environment, a
tool or the agent program of its episode. ``reward``: the verifier. ``payload``: what is stored is lost or damaged,
found before it is judged.
"""
AtFault = Literal["rollout", "spool", ""]
"""Role whose node a damaged payload is held against: it stored it so, or did not keep it; empty: nobody's."""
UnreadyState = Literal["loading", "silent", "stalled", "barred", "leaving"]
"""State of a connected node that gets no new work; `asyncrl.records.states` has the meaning of each."""
EMPTY = memoryview(b"")
T = TypeVar("T")
MAX_ITEMS = 1 << 17
"""Most items of a list that nodes send. A longer one is refused before it is decoded, to forty times its bytes."""
Listed = Annotated[list[T], Meta(max_length=MAX_ITEMS)]
