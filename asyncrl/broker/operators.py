"""
Operators of a run: answers what supervisors ask of the broker while the run goes on.

    StatusWanted ─▶ the scheduler's books ─▶ Status                      Pause, SetSettings ─▶ scheduler, ledger
    StacksWanted ─▶ the node ─▶ Stacks                                   Drain ─▶ the node leaves ─▶ Drained
    Admit ─▶ the scheduler ─▶ Admitted
"""

import time
from collections.abc import Callable, Sequence

from asyncrl.actor.link import Hub
from asyncrl.actor.stacks import current_stacks
from asyncrl.broker.metrics.run_files import RunFiles
from asyncrl.broker.nodes.departures import DepartureBook
from asyncrl.broker.nodes.stack_requests import BROKERS, StackRequests
from asyncrl.broker.outbox import Event
from asyncrl.broker.scheduler import Scheduler
from asyncrl.broker.status.restarts import RestartBook
from asyncrl.broker.status.status import run_status
from asyncrl.errors import ConfigError
from asyncrl.messages.session import Drain
from asyncrl.messages.supervisor import (
    Admit,
    Admitted,
    Drained,
    Pause,
    SetSettings,
    SettingsChanged,
    Stacks,
    StacksWanted,
    Status,
    StatusWanted,
)

STATUS_S = 0.25
"""Least time between two looks at all books for a `Status`."""


class Operators:
    """
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
        self._departures = DepartureBook()
        self._stacks = StackRequests()
        self._told: tuple[float, Status] | None = None
        """Time and contents of the last `Status`."""

    def handle(
        self, peer: str, message: Drain | StatusWanted | Pause | SetSettings | StacksWanted | Stacks | Admit
    ) -> None:
        """Handle a message of a supervisor, or the stacks of a node."""
        match message:
            case Drain(node=name):
                self._drain(peer, name)
            case Admit(node=name):
                self._hub.send(peer, Admitted(name, self._admit(name)))
            case StatusWanted():
                self._hub.send(peer, self._status())
            case Pause(is_paused=is_paused):
                by, at_s = self._name(peer), self._wall_clock()
                self._scheduler.set_paused(is_paused=is_paused, by=by, at_s=at_s, now_s=self._clock())
            case SetSettings(assignments=assignments):
                self._set(peer, assignments)
            case StacksWanted(node=name):
                self._ask_for_stacks(peer, name)
            case Stacks():
                for asker in self._stacks.answered(peer):
                    self._hub.send(asker, message)

    def departed(self, event: Event) -> None:
        """Tell operators that a node is gone, by its ``node.left`` or ``node.lost``."""
        node, cause = event.fields["node"], event.fields["cause"]
        peer = f"{node}.{event.fields['incarnation']}"
        for asker in self._departures.left(peer):
            problem = "" if event.kind == "node.left" else f"it was lost before it could leave: {cause}"
            self._hub.send(asker, Drained(node, problem))
        for asker in self._stacks.answered(peer):
            self._hub.send(asker, Stacks(node, "", f"{node} has just left: {cause}"))

    def _drain(self, peer: str, name: str) -> None:
        node = self._departures.ask(name, peer, self._scheduler.nodes)
        if isinstance(node, str):
            self._hub.send(peer, Drained(name, node, is_refused=True))
            return
        self._files.event("node.draining", node=name, asked_by=peer)
        self._hub.send(node.peer, Drain(name))

    def _admit(self, name: str) -> str:
        """Give a barred node work again. Returns the objection if it is not barred."""
        if not self._scheduler.faults.is_barred(name):
            return f"{name} is not barred; `asyncrl status` shows the state of each node"
        self._scheduler.admit(name, self._clock())
        return ""

    def _status(self) -> Status:
        """State of the run; the last one again if it is new enough, because many may watch a run of many nodes."""
        now_s = self._clock()
        if self._told is None or now_s - self._told[0] >= STATUS_S:
            files = self._files
            status = run_status(
                self._scheduler,
                now_s,
                run=self._run,
                time_s=files.time_s,
                incidents=files.incidents.told(self._wall_clock()),
                restarts=self._restarts.notes(now_s),
                metrics={key: float(n) for key, n in files.last_line.items() if isinstance(n, int | float)},
            )
            self._told = now_s, status
        return self._told[1]

    def _set(self, peer: str, assignments: Sequence[str]) -> None:
        by = self._name(peer)
        try:
            values = self._scheduler.settings.assigned(assignments)
        except ConfigError as error:
            self._hub.send(peer, SettingsChanged({}, by, str(error)))
            return
        self._scheduler.set_settings(values, by=by, at_s=self._wall_clock(), now_s=self._clock())

    def _ask_for_stacks(self, peer: str, name: str) -> None:
        if name in BROKERS:
            self._hub.send(peer, Stacks(name, current_stacks()))
        elif isinstance(found := self._stacks.ask(name, peer, self._scheduler.nodes), str):
            self._hub.send(peer, Stacks(name, "", found))
        else:
            self._hub.send(found.peer, StacksWanted(name))

    def _name(self, peer: str) -> str:
        return node.name if (node := self._scheduler.nodes.get(peer)) else peer
