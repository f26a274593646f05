"""
Turns at the devices that trainer and rollouts share, with ``rollout.colocated``.

    trainer   AskTurn ─────────────────────▶ Wake ─▶ loads, or trains a step ─▶ Asleep
    rollouts      └─▶ Sleep ─▶ Asleep ──────┘                                     └─▶ Wake ─▶ weights, sampling

A node that joins counts as awake until it says otherwise: memory of an earlier session may be on the devices. The
trainer's turn waits until what rollouts have begun has ended (a transfer, an evaluation), and ends by itself.
"""

from collections.abc import Callable

from msgspec import Struct

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.broker.outbox import Outbox
from asyncrl.messages.session import Asleep, Sleep, Wake
from asyncrl.messages.words import Role

SHARERS: tuple[Role, ...] = ("trainer", "rollout")


class _DeviceTurn(Struct):
    """One turn of a role, from the first `Wake` until nobody of the role is awake."""

    role: Role
    began_s: float
    moved_s: float = 0.0
    """Longest time in which a node freed its memory."""
    num_bytes: int = 0
    """Bytes that all nodes moved."""


class DeviceTurnBook:
    """Decides which role uses the shared devices; with ``is_used`` false, everybody always does."""

    def __init__(self, nodes: NodeBook, out: Outbox, *, is_used: bool) -> None:
        self.is_used = is_used
        self._nodes = nodes
        self._out = out
        self._awake: set[str] = set()
        self._asking: set[str] = set()
        self._told: set[str] = set()
        """Peers that were told to sleep, and have not said that they do."""
        self._turn: _DeviceTurn | None = None

    @property
    def rollouts_may_swap(self) -> bool:
        """True if all rollouts that are ready are awake, and stay so for now."""
        if not self.is_used:
            return True
        is_trainers = any(node.peer in self._awake for node in self._nodes.with_role("trainer"))
        return not (is_trainers or self._told) and all(node.peer in self._awake for node in self._nodes.rollouts())

    def is_asleep(self, peer: str) -> bool:
        """True if the node waits for the devices, which others use."""
        return self.is_used and peer in self._asking

    def joined(self, node: Node) -> None:
        if self.is_used and node.role in SHARERS:
            self._awake.add(node.peer)

    def departed(self, peer: str, now_s: float) -> None:
        self._asking.discard(peer)
        self._sleeps(peer, now_s)

    def asks(self, peer: str) -> None:
        """A node waits for its turn."""
        self._asking.add(peer)

    def asleep(self, message: Asleep, peer: str, now_s: float) -> None:
        """A node has freed its memory of the devices."""
        if self._turn:
            self._turn.moved_s = max(self._turn.moved_s, message.seconds)
            self._turn.num_bytes += message.num_bytes
        self._sleeps(peer, now_s)

    def advance(self, *, may_train: Callable[[], bool], now_s: float) -> bool:
        """
        Wake the nodes of the role whose turn it is, once all others sleep. True if nodes were woken.

        ``may_train`` is asked only while the trainer waits: True if rollouts are at rest, which are then told to sleep.
        """
        if not self.is_used:
            return False
        trainer = self._nodes.trainer()
        role: Role = "trainer" if trainer and trainer.peer in self._asking and may_train() else "rollout"
        others = [node for other in SHARERS if other != role for node in self._nodes.with_role(other)]
        if awake := [node for node in others if node.peer in self._awake]:
            for node in awake:
                if node.role == "rollout" and node.peer not in self._told:
                    self._told.add(node.peer)
                    self._out.send(node.peer, Sleep())
            return False
        asking = [node.peer for node in self._nodes.with_role(role) if node.peer in self._asking]
        for peer in asking:
            self._out.send(peer, Wake())
        self._asking.difference_update(asking)
        self._awake.update(asking)
        if asking and self._turn is None:
            self._turn = _DeviceTurn(role, now_s)
        return bool(asking)

    def _sleeps(self, peer: str, now_s: float) -> None:
        self._awake.discard(peer)
        self._told.discard(peer)
        if self._turn and not self._awake:
            turn, self._turn = self._turn, None
            self._out.event(
                "turn.ended",
                role=turn.role,
                seconds=round(now_s - turn.began_s, 3),
                moved_s=round(turn.moved_s, 3),
                num_bytes=turn.num_bytes,
            )
