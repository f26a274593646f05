"""Messages to supervisors: pauses, changed settings and failure counts, also for one that joins later."""

from asyncrl.actor.message import Message
from asyncrl.broker.failures import EVENT, FailureBook
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.broker.pause import PauseBook
from asyncrl.messages.supervisor import Failures, Notice, Paused


class Supervisors:
    """Sends to all supervisors of a run."""

    def __init__(self, nodes: NodeBook, failures: FailureBook, pause: PauseBook, out: Outbox) -> None:
        self._nodes = nodes
        self._failures = failures
        self._pause = pause
        self._out = out

    def joined(self, supervisor: Node) -> None:
        """Tell a supervisor that has just joined what the others were told before."""
        if self._failures.total:
            self._out.send(supervisor.peer, Failures(self._failures.counts, self._failures.attempts))
        if self._pause.is_set:
            self._out.send(supervisor.peer, Paused(True, self._pause.by), once_durable=True)

    def tell(self, message: Message) -> None:
        """Tell all supervisors once the records so far are durable."""
        self._send(message, once_durable=True)

    def notice(self, sentence: str) -> None:
        """Tell the person at the screen now."""
        self._send(Notice(sentence), once_durable=False)

    def tell_failures(self, now_s: float) -> None:
        """Tell what has failed since supervisors were last told, and make the events that are due."""
        for fields in self._failures.events(now_s):
            self._out.event(EVENT, **fields)
        if news := self._failures.news(now_s):
            self._send(Failures(news, self._failures.attempts), once_durable=False)

    def _send(self, message: Message, *, once_durable: bool) -> None:
        for supervisor in self._nodes.of("supervisor"):
            self._out.send(supervisor.peer, message, once_durable=once_durable)
