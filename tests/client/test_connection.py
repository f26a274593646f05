"""A connection is a node's identity with its links."""

from asyncrl.actor.memory import MemoryHub
from asyncrl.client.connection import Connection
from asyncrl.client.handshake import identity
from tests.client.only_spool import only


def test_two_connections_of_one_node_are_different() -> None:
    hub = MemoryHub()
    who = identity("reward", "reward-0")
    first, second = (Connection(who, hub.connect(who.peer), only(hub, who.peer)) for _ in range(2))
    assert first != second
    assert first.identity == second.identity
