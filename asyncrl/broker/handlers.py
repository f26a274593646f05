"""
Handlers of messages to the broker: for each message one method, of the object that owns its subject.

    BrokerActor ─▶ table[type] ─┬─▶ a `shell` method of Sessions, Operators or BrokerActor itself
                                └─▶ Scheduler ─▶ table[type] ─▶ a `rule` of Scheduler, Versions, TrainingGroups, ...

A method is marked where it is defined, and the annotation of its first parameter says which message it handles.
"""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args

from asyncrl.broker.nodes.node import Node
from asyncrl.errors import BrokenInvariant
from asyncrl.messages.codec import Message

Owner = TypeVar("Owner")
Handled = TypeVar("Handled", bound=Message)
Told = ParamSpec("Told")


class Handlers(Generic[Told]):
    """A decorator of methods ``(message, *told)``, and the table of those that some objects have."""

    def __init__(self) -> None:
        self._kinds: dict[object, tuple[type[Message], ...]] = {}
        """Messages that a marked function handles."""

    def __call__(
        self, method: Callable[Concatenate[Owner, Handled, Told], None]
    ) -> Callable[Concatenate[Owner, Handled, Told], None]:
        kind = next(iter(method.__annotations__.values()))
        self._kinds[method] = get_args(kind) or (kind,)
        return method

    def table(self, *owners: object) -> dict[type[Message], Callable[Concatenate[Any, Told], None]]:
        """Bound methods of the owners by the message that they handle; raises `BrokenInvariant` if two handle one."""
        found: dict[type[Message], Callable[Concatenate[Any, Told], None]] = {}
        for owner in owners:
            marked = [function for part in type(owner).__mro__ for function in vars(part).values()]
            for function in marked:
                for kind in self._kinds.get(function, ()) if callable(function) else ():
                    if kind in found:
                        raise BrokenInvariant(f"{kind.__name__} has two handlers: {found[kind]} and {function}")
                    found[kind] = getattr(owner, function.__name__)
        return found


rule = Handlers[[Node, float]]()
"""Marks a rule of the run: a message, the node that sent it, and the scheduler's time, in seconds."""
shell = Handlers[[str]]()
"""Marks what the broker does around the rules: a message, and the peer that sent it."""
