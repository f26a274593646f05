"""
Texts of messages to the broker, made fit to be shown before anybody records them.

    Failed(reason="\\x1b[2J 17") ─▶ shown_message ─▶ Failed(reason="\\\\x1b[2J 17") ─▶ ledger, events, status, screens

So ledger, events and summary have nothing that a terminal would obey, whoever reads them later, and with whatever.
Names of nodes and hosts are refused instead (`asyncrl.checks.reports`): two names must not look alike.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from asyncrl.actor.message import Message
from asyncrl.foreign_text import shown, shown_lines
from asyncrl.messages.rollout import Failed, StartedOver
from asyncrl.messages.session import Bye
from asyncrl.messages.supervisor import Exited, Stacks
from asyncrl.messages.trainer import Resumed, StepFailed, Stepped
from asyncrl.messages.weights import TransferFailed, Uploaded
from asyncrl.messages.wire import ToBroker

REASON_CHARS = 2048
"""Length of a reason. `asyncrl.plug_in.describe`, whose type, text and place people need, writes fewer."""


def shown_message(message: ToBroker) -> ToBroker:
    """The same message, with each text in it made fit as by `asyncrl.foreign_text.shown`."""
    made = SHOWN.get(type(message))
    return made(message) if made else message


def _reason(message: Any) -> Any:
    return replace(message, reason=_shown(message.reason))


def _cause(message: Exited) -> Exited:
    return replace(message, cause=_shown(message.cause))


def _uploaded(message: Uploaded) -> Uploaded:
    return replace(message, problem=_shown(message.problem))


def _stepped(message: Stepped) -> Stepped:
    metrics = {shown(name): value for name, value in message.metrics.items()}
    return replace(message, metrics=metrics, refused=[_reason(refusal) for refusal in message.refused])


def _resumed(message: Resumed) -> Resumed:
    return replace(message, damaged=[replace(one, cause=_shown(one.cause)) for one in message.damaged])


def _stacks(message: Stacks) -> Stacks:
    return replace(message, text=shown_lines(message.text), problem=_shown(message.problem))


def _shown(text: str) -> str:
    return shown(text, REASON_CHARS)


SHOWN: dict[type[Message], Callable[[Any], Any]] = {
    Bye: _reason,
    Failed: _reason,
    StartedOver: _reason,
    StepFailed: _reason,
    TransferFailed: _reason,
    Exited: _cause,
    Uploaded: _uploaded,
    Stepped: _stepped,
    Resumed: _resumed,
    Stacks: _stacks,
}
"""Messages with texts that people read. Other texts are names, which are checked, and paths, which are used."""
