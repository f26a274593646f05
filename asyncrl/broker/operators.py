"""
Operators of a run: answers what supervisors ask of the broker while the run goes on, and who waits for a departure.

    StatusWanted ─▶ the scheduler's books ─▶ Status                      Pause, SetSettings ─▶ scheduler, ledger
    StacksWanted ─▶ the node ─▶ Stacks                                   Drain ─▶ the node leaves ─▶ Drained
    Admit ─▶ the scheduler ─▶ AdmitReply                                 Interrupt is the actor's: it ends the run
"""

import time
from collections.abc import Callable, Sequence

from asyncrl.broker.handlers import shell
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Event
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status import BROKERS, RestartBook, run_status
from asyncrl.errors import ConfigError
from asyncrl.messages.session import Drain
from asyncrl.messages.supervisor import (
    Admit,
    AdmitReply,
    Drained,
    Pause,
    SetSettings,
    SettingsChanged,
    Stacks,
    StacksWanted,
    Status,
    StatusWanted,
)
from asyncrl.messages.words import Role
from asyncrl.wire.link import Hub
from asyncrl.workers.stacks import current_stacks

STATUS_S = 0.25
"""Least time between two looks at all books for a `Status`."""
CAN_DRAIN: tuple[Role, ...] = ("rollout", "reward")
CAN_ANSWER: tuple[Role, ...] = ("rollout", "reward", "trainer")
"""Roles whose nodes tell their stacks."""


class Operators:
    """
    Answers operators, and pauses, drains, admits and changes settings for them.

    Args:
        run: Name of the run directory.
        clock: Gives monotonic seconds.
        restarts: Nodes that are started again.
        wall_clock: Gives seconds since 1970, for people.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        hub: Hub,
        files: RunFiles,
        *,
        run: str,
        clock: Callable[[], float],
        restarts: RestartBook,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._files = files
        self._run = run
        self._clock = clock
        self._restarts = restarts
        self._wall_clock = wall_clock
        self._drained_by: dict[str, list[str]] = {}
        """Peers that wait for the departure of a node, by its peer."""
        self._asked_by: dict[str, list[str]] = {}
        """Peers that wait for the stacks of a node, by its peer."""
        self._told: tuple[float, Status] | None = None
        """Time and contents of the last `Status`."""

    # ── one message each ────────────────────────────────────────────────────────────────────

    @shell
    def drain(self, message: Drain, peer: str) -> None:
        """Ask a node to leave, or say why not."""
        name, nodes = message.node, self._scheduler.nodes
        if (node := _named(name, nodes)) is None:
            there = _names(nodes, CAN_DRAIN) or "none"
            problem = f"there is no node {name}; those that can be drained are: {there}"
        elif node.role not in CAN_DRAIN:
            problem = f"{name} is a {node.role}: only rollouts and reward nodes can be drained"
        else:
            self._drained_by.setdefault(node.peer, []).append(peer)
            self._files.event("node.draining", node=name, by=self._name(peer))
            self._hub.send(node.peer, Drain(name))
            return
        self._hub.send(peer, Drained(name, problem, is_refused=True))

    @shell
    def admit(self, message: Admit, peer: str) -> None:
        """Give a barred node work again, or say why not."""
        name, problem = message.node, ""
        if self._scheduler.faults.is_barred(name):
            self._scheduler.admit(name, self._clock())
        else:
            problem = f"{name} is not barred; `asyncrl status` shows the state of each node"
        self._hub.send(peer, AdmitReply(name, problem))

    @shell
    def tell_status(self, message: StatusWanted, peer: str) -> None:
        self._hub.send(peer, self._status())

    @shell
    def pause(self, message: Pause, peer: str) -> None:
        by, at_s = self._name(peer), self._wall_clock()
        self._scheduler.set_paused(is_paused=message.is_paused, by=by, at_s=at_s, now_s=self._clock())

    @shell
    def set_settings(self, message: SetSettings, peer: str) -> None:
        """Set live settings: all of them, or none if one is wrong."""
        by = self._name(peer)
        try:
            values = self._scheduler.settings.assigned(message.assignments)
        except ConfigError as error:
            self._hub.send(peer, SettingsChanged({}, by, str(error)))
            return
        self._scheduler.set_settings(values, by=by, at_s=self._wall_clock(), now_s=self._clock())

    @shell
    def ask_for_stacks(self, message: StacksWanted, peer: str) -> None:
        """Ask a node for its stacks, or say why not; those of the broker's own process are told at once."""
        name, nodes = message.node, self._scheduler.nodes
        if name in BROKERS:
            answer = Stacks(name, current_stacks())
        elif (node := _named(name, nodes)) is None:
            there = ", ".join(filter(None, ("broker", _names(nodes, CAN_ANSWER))))
            answer = Stacks(name, "", f"there is no node {name}; those that can be asked are: {there}")
        elif node.role not in CAN_ANSWER:
            refused = f"{name} is a {node.role}: only rollouts, reward nodes, the trainer and the broker answer"
            answer = Stacks(name, "", refused)
        else:
            self._asked_by.setdefault(node.peer, []).append(peer)
            self._hub.send(node.peer, StacksWanted(name))
            return
        self._hub.send(peer, answer)

    @shell
    def tell_stacks(self, message: Stacks, peer: str) -> None:
        """Pass on the stacks of a node to all who asked."""
        for asker in dict.fromkeys(self._asked_by.pop(peer, ())):
            self._hub.send(asker, message)

    # ── what follows ────────────────────────────────────────────────────────────────────────

    def departed(self, event: Event) -> None:
        """Tell operators that a node is gone, by its ``node.left`` or ``node.lost``."""
        node, cause = event.fields["node"], event.fields["cause"]
        peer = f"{node}.{event.fields['incarnation']}"
        for asker in self._drained_by.pop(peer, ()):
            problem = "" if event.kind == "node.left" else f"it was lost before it could leave: {cause}"
            self._hub.send(asker, Drained(node, problem))
        self.tell_stacks(Stacks(node, "", f"{node} has just left: {cause}"), peer)

    def _status(self) -> Status:
        """State of the run; the last one again if it is new enough, because many may watch a run of many nodes."""
        now_s = self._clock()
        if self._told is None or now_s - self._told[0] >= STATUS_S:
            files = self._files
            status = run_status(
                self._scheduler,
                now_s,
                run=self._run,
                step=files.totals.steps,
                time_s=files.time_s,
                incidents=files.incidents.told(self._wall_clock()),
                restarts=self._restarts.notes(now_s),
                absent=files.node_states.absent,
                metrics={key: float(n) for key, n in files.last_line.items() if isinstance(n, int | float)},
            )
            self._told = now_s, status
        return self._told[1]

    def _name(self, peer: str) -> str:
        return node.name if (node := self._scheduler.nodes.get(peer)) else peer


def _named(name: str, nodes: NodeBook) -> Node | None:
    return next(iter(nodes.named(name)), None)


def _names(nodes: NodeBook, roles: Sequence[Role]) -> str:
    return ", ".join(sorted(node.name for node in nodes.all() if node.role in roles))
