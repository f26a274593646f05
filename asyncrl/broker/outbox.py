"""Output of the scheduler, in order: messages to nodes, records for the ledger, events for people."""

from typing import Any

from msgspec import Struct

from asyncrl.actor.message import Message
from asyncrl.broker.ledger.records import AnyRecord


class Outgoing(Struct, frozen=True, gc=False):
    peer: str
    message: Message
    once_durable: bool = False
    """Send only once every record made so far is on disk."""


class Event(Struct, frozen=True):
    """Line for the run's event log."""

    kind: str
    fields: dict[str, Any]


class Outbox:
    def __init__(self) -> None:
        self._messages: list[Outgoing] = []
        self._records: list[AnyRecord] = []
        self._events: list[Event] = []

    def send(self, peer: str, message: Message, *, once_durable: bool = False) -> None:
        self._messages.append(Outgoing(peer, message, once_durable))

    def record(self, record: AnyRecord) -> None:
        self._records.append(record)

    def event(self, kind: str, **fields: Any) -> None:
        self._events.append(Event(kind, fields))

    def drain(self) -> tuple[list[Outgoing], list[AnyRecord], list[Event]]:
        out = (self._messages, self._records, self._events)
        self._messages, self._records, self._events = [], [], []
        return out
