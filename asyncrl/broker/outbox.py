"""Output of the scheduler, in order: messages to nodes, records for the ledger, events for people."""

from typing import Any

from msgspec import Struct

from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.messages.codec import Message
from asyncrl.records.events import EventKind


class OutgoingMessage(Struct, frozen=True, gc=False):
    peer: str
    message: Message
    once_durable: bool = False
    """Send only once every record made so far is on disk."""


class Event(Struct, frozen=True):
    """Event of the run, written to events.jsonl and the log."""

    kind: EventKind
    fields: dict[str, Any]


class Outbox:
    """Messages, records and events since the last `drain`."""

    def __init__(self) -> None:
        self._messages: list[OutgoingMessage] = []
        self._records: list[AnyRecord] = []
        self._events: list[Event] = []

    def send(self, peer: str, message: Message, *, once_durable: bool = False) -> None:
        self._messages.append(OutgoingMessage(peer, message, once_durable))

    def record(self, record: AnyRecord) -> None:
        self._records.append(record)

    def event(self, kind: EventKind, **fields: Any) -> None:
        self._events.append(Event(kind, fields))

    def drain(self) -> tuple[list[OutgoingMessage], list[AnyRecord], list[Event]]:
        out = (self._messages, self._records, self._events)
        self._messages, self._records, self._events = [], [], []
        return out
