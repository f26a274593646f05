"""
Nodes whose process died and is started again, until they are back.

    Exited(restarting) ─▶ "trainer-0 was killed by SIGKILL 12 s ago and is starting again" ─▶ Ready ─▶ Returned
"""

from msgspec import Struct

from asyncrl.broker.nodes.stack_requests import BROKERS
from asyncrl.messages.supervisor import Exited


class Absence(Struct, frozen=True):
    cause: str
    since_s: float
    """Clock time at which its process ended."""
    told_by: str
    """Peer of the supervisor that starts it again."""


class RestartBook:
    """``now_s`` is the clock's time."""

    def __init__(self) -> None:
        self._absent: dict[str, Absence] = {}

    def exited(self, message: Exited, told_by: str, now_s: float) -> None:
        """Note that a process ended; ``told_by`` is the peer of its supervisor."""
        self._absent.pop(message.node, None)
        if message.restarting and message.is_needed and message.node not in BROKERS:
            self._absent[message.node] = Absence(message.cause, now_s, told_by)

    def returned(self, node: str) -> Absence | None:
        """Note that a node is back; None if it was not known to be away."""
        return self._absent.pop(node, None)

    def notes(self, now_s: float) -> list[str]:
        """A sentence for each node that is away."""
        return [
            f"{node} {absence.cause} {now_s - absence.since_s:.0f} s ago and is starting again"
            for node, absence in self._absent.items()
        ]
