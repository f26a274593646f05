"""A connection is a node's identity with its two links."""

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import identity


def test_two_connections_of_one_node_are_different() -> None:
    hub = MemoryHub()
    who = identity("reward", "reward-0")
    first, second = (Connection(who, hub.connect(who.peer), hub.connect(who.peer)) for _ in range(2))
    assert first != second
    assert first.identity == second.identity
