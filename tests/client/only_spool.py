"""Links of a node to a run with one spool, which the test plays."""

from collections.abc import Callable

from asyncrl.actor.link import Link
from asyncrl.actor.memory import MemoryHub
from asyncrl.client.spools import SpoolLinks
from asyncrl.messages.spool import SpoolAddress, SpoolSet


def only(hub: MemoryHub, peer: str, name: str = "spool") -> SpoolLinks:
    """Links of ``peer`` to the spool ``name`` behind ``hub``."""
    return over(lambda: hub.connect(peer), name)


def over(connect: Callable[[], Link], name: str = "spool") -> SpoolLinks:
    """Links to the spool ``name``, each made by ``connect``."""
    return SpoolLinks(lambda _: connect(), SpoolSet([SpoolAddress(name, "memory")], name))
