"""
Machines of a trainer of several: which of them train together, and which is the first.

    Hello ─▶ waiting, in the order of joining ── complete ─▶ a group; its first member becomes the trainer
                  ▲                                               │
                  └────── Hello again ◀── all of them leave ◀─────┘ a member is lost, or a missing one has come

Invariants: there is at most one group; its first member is the run's only trainer; it has ``trainer.nodes`` members, or
at least ``trainer.min_nodes`` if so many have waited for ``trainer.wait_s``.
"""

from typing import NamedTuple

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.config.sections.trainer import Trainer
from asyncrl.messages.session import Drain, Stop
from asyncrl.messages.trainer import Assembled, Disbanded, TrainerMachine

SAVED = "and a checkpoint has just been written"


class Disbandment(NamedTuple):
    """End of a group. Its members were told; the caller removes them, and they join again by a new Hello."""

    members: list[Node]
    """Members of the group that are still connected."""
    reason: str


class MachineBook:
    """
    Machines of a trainer of several: those that wait, and the group that trains. Unused if the trainer is one machine.
    """

    def __init__(self, trainer: Trainer, nodes: NodeBook, out: Outbox) -> None:
        self._nodes = nodes
        self._out = out
        self._num_machines = trainer.nodes
        self._ranks = trainer.ranks
        self._fewest = trainer.min_nodes or trainer.nodes
        self._wait_s = trainer.wait_s
        self._waiting: list[Node] = []
        self._members: list[Node] = []
        """The group, its first machine first."""
        self._enough_since_s: float | None = None
        """Time since which enough machines for a smaller group wait."""
        self._first = ""
        """Name of the first machine of the last group, which is first again if it is there: it has the checkpoints."""
        self.num_groups = 0

    @property
    def are_used(self) -> bool:
        """True if the trainer has several machines."""
        return self._num_machines > 1

    def names(self) -> list[str]:
        """Machines that wait or train."""
        return [node.name for node in (*self._members, *self._waiting)]

    def refusal(self, name: str) -> str:
        """Reason to refuse one more machine; empty to let it wait."""
        others = [other for other in self.names() if other != name]
        if len(others) < self._num_machines:
            return ""
        return f"this run has its {self._num_machines} trainer machines already (trainer.nodes): {', '.join(others)}"

    def joined(self, node: Node, now_s: float) -> None:
        self._waiting.append(node)
        self._count(now_s)

    def departed(self, node: Node, cause: str, now_s: float, *, is_over: bool = False) -> Disbandment | None:
        """A node is gone, because of ``cause``, and its group ends. With ``is_over`` there is no run to join again."""
        if node in self._waiting:
            self._waiting.remove(node)
            self._count(now_s)
        if node not in self._members:
            return None
        reason = f"{self.describe(node)} {cause}"
        return self._disband(reason, now_s, without=node, is_over=is_over)

    def draining(self, node: Node, now_s: float) -> Disbandment | None:
        """A member is to stop: the trainer saves its steps first, and once it has (``node``), the group ends."""
        if node.role == "machine" and (trainer := self._nodes.trainer()):
            self._out.send(trainer.peer, Drain(node.name))
        elif leaving := [member for member in self._members if member.is_draining and member is not node]:
            return self._disband(f"{self.describe(leaving[0])} is to stop, {SAVED}", now_s)
        return None

    def committed(self, now_s: float) -> Disbandment | None:
        """A checkpoint was written. A group with too few members ends if a machine waits that could be one."""
        if not (self._members and self._waiting and len(self._members) < self._num_machines):
            return None
        return self._disband(f"a missing machine of the trainer has come, {SAVED}", now_s)

    def advance(self, now_s: float) -> list[Node]:
        """
        Form a group if there is none and its machines are there; its first member becomes the trainer.

        Returns its members; none if no group was formed.
        """
        if self._members or not self._waiting or not self._is_complete(now_s):
            return []
        self._waiting.sort(key=lambda node: node.name != self._first)  # stable: otherwise in the order of joining
        self._members, self._waiting = self._waiting[: self._num_machines], self._waiting[self._num_machines :]
        self._first = self._members[0].name
        self._enough_since_s = None
        self.num_groups += 1
        self._nodes.promote(self._members[0])
        assembled = Assembled(self.num_groups, [TrainerMachine(node.name, node.host) for node in self._members])
        for node in self._members:
            self._out.send(node.peer, assembled)
        described = [self.describe(node) for node in self._members]
        self._out.event("trainer.assembled", group=self.num_groups, machines=described)
        return list(self._members)

    def describe(self, node: Node) -> str:
        """Name, host and ranks of a member of the group; the name of any other node."""
        if node not in self._members:
            return node.name
        first = self._members.index(node) * self._ranks
        last = first + self._ranks - 1
        ranks = f"ranks {first} to {last}" if self._ranks > 1 else f"rank {first}"
        return f"{node.name} on {node.host or 'an unnamed host'} ({ranks})"

    def missing(self) -> str:
        """Description of the machines that wait for others, as a clause; empty if there is a group, or none waits."""
        if self._members or not self._waiting:
            return ""
        there = f"({', '.join(node.name for node in self._waiting)})"
        waiting, wanted = len(self._waiting), self._num_machines
        return f"only {waiting} of the trainer's {wanted} machines (trainer.nodes) are there {there}"

    def _disband(self, reason: str, now_s: float, *, without: Node | None = None, is_over: bool = False) -> Disbandment:
        """End the group; machines that wait already wait ``wait_s`` again, for its members."""
        members, self._members = [member for member in self._members if member is not without], []
        self._enough_since_s = None
        self._count(now_s)
        if members and not is_over:
            self._out.event("trainer.disbanded", cause=reason)
        for node in members:
            self._out.send(node.peer, Stop(reason) if is_over else Disbanded(reason))
        return Disbandment(members, reason)

    def _count(self, now_s: float) -> None:
        if len(self._waiting) < self._fewest:
            self._enough_since_s = None
        elif self._enough_since_s is None:
            self._enough_since_s = now_s

    def _is_complete(self, now_s: float) -> bool:
        if len(self._waiting) >= self._num_machines:
            return True
        return self._enough_since_s is not None and now_s - self._enough_since_s >= self._wait_s
