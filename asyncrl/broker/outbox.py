"""What comes out of the rules, in order: messages for nodes, records for the ledger, events for people."""

from typing import Any

from msgspec import Struct

from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.messages import Message


class Outgoing(Struct, frozen=True, gc=False):
    """One message to one peer."""

    peer: str
    message: Message
    after_commit: bool = False
    """Send it only once every record made so far is on disk."""


class Event(Struct, frozen=True):
    """Something a person may want to know."""

    kind: str
    fields: dict[str, Any]


class Outbox:
    """Written to by every rule, emptied by the shell."""

    def __init__(self) -> None:
        self._messages: list[Outgoing] = []
        self._records: list[AnyRecord] = []
        self._events: list[Event] = []

    def send(self, peer: str, message: Message, *, after_commit: bool = False) -> None:
        """To one node."""
        self._messages.append(Outgoing(peer, message, after_commit))

    def record(self, record: AnyRecord) -> None:
        """For the ledger."""
        self._records.append(record)

    def event(self, kind: str, **fields: Any) -> None:
        """For people."""
        self._events.append(Event(kind, fields))

    def drain(self) -> tuple[list[Outgoing], list[AnyRecord], list[Event]]:
        """What came since the last call."""
        out = (self._messages, self._records, self._events)
        self._messages, self._records, self._events = [], [], []
        return out
