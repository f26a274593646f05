"""
Refusals of what a connected node says, to the broker and to a spool.

Keys, or the secret of the run, decide who connects, and in which role; the rows of the messages (`sent`) decide what a
connected node may say. A message of which a role is not a sender is refused and counted, and changes nothing.
"""

from asyncrl.messages.codec import Message
from asyncrl.messages.spool import Fetch, Put
from asyncrl.messages.words import EVERY, MEMBERS, Role
from asyncrl.wire.curve import Owner
from asyncrl.wire.keys.allow_list import owns

NOBODY: frozenset[Role] = frozenset()


def refusal(role: Role, message: Message) -> str:
    """Reason for the broker to refuse a message of a node with this role; empty if it may send it."""
    if role not in message.senders.get("broker", NOBODY):  # A node may send anything that can be decoded.
        return f"a {role} may not send {type(message).__name__}"
    return message.forbidden_to(role)


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
    name = type(message).__name__
    may_send = message.senders.get("spool", NOBODY) & EVERY  # The broker has a link of its own.
    if not may_send:
        return f"a spool does not take {name}"
    if owner is None:
        return ""
    if owner.roles.isdisjoint(may_send):
        return f"the key {owner.name} is for {' and '.join(sorted(owner.roles))}, which may not send {name}"
    if isinstance(message, Fetch) and message.images and owner.roles.isdisjoint(MEMBERS):
        return f"the key {owner.name} is for {' and '.join(sorted(owner.roles))}, which may not fetch pictures"
    if isinstance(message, Put) and owner.name and not owns(owner.name, message.node):
        return f"the key {owner.name} is not for the node {message.node}"
    return ""
