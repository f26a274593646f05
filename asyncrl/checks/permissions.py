"""
Tables of the messages that each role may send to the broker and to a spool.

Keys, or the secret of the run, decide who connects, and in which role; these tables decide what a connected node may
say. A message that is not in a role's column is refused and counted, and changes nothing.
"""

from typing import get_args

from asyncrl.actor.message import Message
from asyncrl.actor.sockets.curve import Owner
from asyncrl.keys.allow_list import owns
from asyncrl.messages.files import FetchPart, ListFiles, OfferCheckpoint, PutCheckpointPart
from asyncrl.messages.reward import Scored
from asyncrl.messages.rollout import Failed, Offer, StartedOver
from asyncrl.messages.session import AskTurn, Asleep, Beat, Bye, Drain, Draining, Hello, Ready, StoreGet, StoreSet
from asyncrl.messages.spool import Fetch, Put, Stored
from asyncrl.messages.supervisor import Admit, Exited, Interrupt, Pause, SetSettings, Stacks, StacksWanted, StatusWanted
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import (
    FetchWeights,
    ListWeights,
    Live,
    Publishing,
    PutWeights,
    TransferFailed,
    Transferred,
    Uploaded,
)
from asyncrl.messages.wire import ToBroker
from asyncrl.messages.words import Role

JOIN: frozenset[Role] = frozenset(("spool", "rollout", "reward", "trainer", "supervisor"))
"""Roles in which a node joins; the broker itself makes a trainer a ``machine``."""
EVERY: frozenset[Role] = JOIN | {"machine"}
MEMBERS: frozenset[Role] = frozenset(("rollout", "trainer"))
"""Members of weight transfers."""

MAY_SEND: dict[type[Message], frozenset[Role]] = {
    Hello: JOIN,
    Beat: EVERY,
    Bye: EVERY,
    Ready: MEMBERS,
    Asleep: MEMBERS,
    AskTurn: MEMBERS,
    StoreSet: MEMBERS,
    StoreGet: MEMBERS | {"machine"},
    Transferred: MEMBERS,
    TransferFailed: MEMBERS,
    Draining: frozenset(("rollout", "trainer", "machine")),
    Live: frozenset(("rollout",)),
    StartedOver: frozenset(("rollout",)),
    Offer: frozenset(("rollout", "reward")),
    Scored: frozenset(("reward",)),
    Failed: frozenset(("rollout", "reward", "trainer")),
    Resumed: frozenset(("trainer",)),
    StepFailed: frozenset(("trainer",)),
    Take: frozenset(("trainer",)),
    Commit: frozenset(("trainer",)),
    Publishing: frozenset(("trainer",)),
    Uploaded: frozenset(("trainer",)),
    Stepped: frozenset(("trainer",)),
    Stored: frozenset(("spool",)),
    Drain: frozenset(("supervisor",)),
    Admit: frozenset(("supervisor",)),
    Exited: frozenset(("supervisor",)),
    Interrupt: frozenset(("supervisor",)),
    StatusWanted: frozenset(("supervisor",)),
    Pause: frozenset(("supervisor",)),
    SetSettings: frozenset(("supervisor",)),
    StacksWanted: frozenset(("supervisor",)),
    Stacks: frozenset(("rollout", "reward", "trainer")),
}

SENDS: dict[Role, frozenset[type[Message]]] = {
    role: frozenset(kind for kind, roles in MAY_SEND.items() if role in roles) for role in get_args(Role)
}
"""The same by role."""

STAGES: dict[Role, tuple[str, ...]] = {
    "rollout": ("rollout", "environment"),
    "reward": ("reward", "payload"),
    "trainer": ("trainer",),
}
"""Stages at which a role may report a failure."""


TRAINER_GROUP = "trainer-"
"""Beginning of the names of rendezvous between machines of a trainer. The others are numbers of transfer groups."""

MAY_SEND_TO_SPOOL: dict[type[Message], frozenset[Role]] = {
    Put: frozenset(("rollout",)),
    Fetch: frozenset(("rollout", "reward", "trainer", "supervisor")),
    PutWeights: frozenset(("trainer",)),
    ListWeights: frozenset(("rollout",)),
    FetchWeights: frozenset(("rollout",)),
    ListFiles: MEMBERS,
    FetchPart: MEMBERS,
    OfferCheckpoint: frozenset(("trainer",)),
    PutCheckpointPart: frozenset(("trainer",)),
    Bye: EVERY,
}


def key_refusal(owner: Owner | None, role: str, node: str) -> str:
    """
    Reason to refuse a node whose key has another name or is for other roles; empty if it may act so.

    ``owner`` is None for a node that is trusted without a key of its own.
    """
    if owner is None:
        return ""
    if role not in owner.roles:
        return (
            f"the key {owner.name} is for {' and '.join(sorted(owner.roles))}, not for a {role}; give the node one "
            f"made by `asyncrl keys add NAME --role {role}` on the broker's machine"
        )
    if owner.name and not owns(owner.name, node):
        return (
            f"the key {owner.name} is for nodes called {owner.name} or {owner.name}-..., not {node}; give the node "
            f"such a name, or another key"
        )
    return ""


def spool_refusal(owner: Owner | None, message: Message) -> str:
    """Reason for a spool to refuse a message; empty if the holder of the key may send it."""
    may_send = MAY_SEND_TO_SPOOL.get(type(message))
    if may_send is None:
        return f"a spool does not take {_name(message)}"
    if owner is None:
        return ""
    if owner.roles.isdisjoint(may_send):
        return f"the key {owner.name} is for {' and '.join(sorted(owner.roles))}, which may not send {_name(message)}"
    if isinstance(message, Fetch) and message.images and owner.roles.isdisjoint(MEMBERS):
        return f"the key {owner.name} is for {' and '.join(sorted(owner.roles))}, which may not fetch pictures"
    if isinstance(message, Put) and owner.name and not owns(owner.name, message.node):
        return f"the key {owner.name} is not for the node {message.node}"
    return ""


def _name(message: Message) -> str:
    return type(message).__name__


def refusal(role: Role, message: ToBroker) -> str:
    """Reason to refuse a message of a node with this role; empty if it may send it."""
    if type(message) not in SENDS[role]:  # A node may send anything that can be decoded.
        return f"a {role} may not send {_name(message)}"
    if type(message) is Failed and message.stage not in STAGES[role]:
        return f"a {role} may not report a failure at the stage {message.stage!r}"
    if isinstance(message, StoreSet | StoreGet) and role == "rollout" and message.group.startswith(TRAINER_GROUP):
        return "a rollout may not take part in the rendezvous of a trainer's machines"
    return ""
