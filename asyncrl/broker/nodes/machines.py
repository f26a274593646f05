"""
Machines of a trainer of several: which of them train together, and which is the first.

    Hello ─▶ waiting, in the order of joining ── complete ─▶ a group; its first member becomes the trainer
                  ▲                                               │
                  └────── Hello again ◀── all of them leave ◀─────┘ a member is lost, or a missing one has come

Invariants: there is at most one group; its first member is the run's only trainer; it has ``trainer.nodes`` members, or
at least ``trainer.min_nodes`` if so many have waited for ``trainer.wait_s``.
"""

from asyncrl.broker.nodes.node import Node
from asyncrl.config.sections.trainer import Trainer


class MachineBook:
    """Empty for ever if the trainer is one machine."""

    def __init__(self, trainer: Trainer) -> None:
        self._nodes = trainer.nodes
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
        return self._nodes > 1

    @property
    def is_incomplete(self) -> bool:
        """True while a group trains with too few members, and a machine waits that could be one."""
        return bool(self._members and self._waiting) and len(self._members) < self._nodes

    @property
    def members(self) -> list[Node]:
        """The group, its first machine first; empty while there is none."""
        return list(self._members)

    def names(self) -> list[str]:
        """Machines that wait or train."""
        return [node.name for node in (*self._members, *self._waiting)]

    def refusal(self, name: str) -> str:
        """Reason to refuse one more machine; empty to let it wait."""
        others = [other for other in self.names() if other != name]
        if len(others) < self._nodes:
            return ""
        return f"this run has its {self._nodes} trainer machines already (trainer.nodes): {', '.join(others)}"

    def joined(self, node: Node, now_s: float) -> None:
        self._waiting.append(node)
        self._count(now_s)

    def left(self, node: Node, now_s: float) -> list[Node]:
        """A node is gone. Returns the other members of its group, which has ended with it."""
        if node in self._waiting:
            self._waiting.remove(node)
            self._count(now_s)
        if node not in self._members:
            return []
        return [member for member in self.disband(now_s) if member is not node]

    def disband(self, now_s: float) -> list[Node]:
        """End the group. Returns its members, for which those that wait already wait ``wait_s`` again."""
        members, self._members = self._members, []
        self._enough_since_s = None
        self._count(now_s)
        return members

    def form(self, now_s: float) -> list[Node]:
        """Members of a new group, the first one first; empty while there is a group, or machines are missing."""
        if self._members or not self._waiting or not self._is_complete(now_s):
            return []
        self._waiting.sort(key=lambda node: node.name != self._first)  # stable: otherwise in the order of joining
        self._members, self._waiting = self._waiting[: self._nodes], self._waiting[self._nodes :]
        self._first = self._members[0].name
        self._enough_since_s = None
        self.num_groups += 1
        return self._members

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
        there = ", ".join(node.name for node in self._waiting)
        return f"only {len(self._waiting)} of the trainer's {self._nodes} machines (trainer.nodes) are there ({there})"

    def _count(self, now_s: float) -> None:
        if len(self._waiting) < self._fewest:
            self._enough_since_s = None
        elif self._enough_since_s is None:
            self._enough_since_s = now_s

    def _is_complete(self, now_s: float) -> bool:
        if len(self._waiting) >= self._nodes:
            return True
        return self._enough_since_s is not None and now_s - self._enough_since_s >= self._wait_s
