"""Links of a node to a run with one spool, which the test plays."""

from collections.abc import Callable

from asyncrl.messages.spool import SpoolAddress, SpoolSet
from asyncrl.wire.link import Link
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.spools import SpoolLinks


def only(hub: MemoryHub, peer: str, name: str = "spool") -> SpoolLinks:
    """Links of ``peer`` to the spool ``name`` behind ``hub``."""
    return over(lambda: hub.connect(peer), name)


def over(connect: Callable[[], Link], name: str = "spool") -> SpoolLinks:
    """Links to the spool ``name``, each made by ``connect``."""
    return SpoolLinks(lambda _: connect(), SpoolSet([SpoolAddress(name, "memory")], name))
