"""
Seconds of each node by what it did, from its heartbeats; idle seconds by what it waited for.

    joined ─ loading ─▶ ready ─ sampling, swapping, waiting for the trainer, ... ─▶ lost ─ away ─▶ joined ...
                                                                                            └─ `FORGET_S` ─▶ forgotten

Each stretch between two heartbeats is divided as the node says it spent it, so a node's seconds add up to the time
since it joined, up to its last heartbeat. Its idle time is divided as the broker saw the run meanwhile.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from asyncrl.broker.nodes.node import Node
from asyncrl.messages.session import Beat
from asyncrl.messages.words import Role
from asyncrl.observe.times import NodeTimes

ROLES: tuple[Role, ...] = ("rollout", "reward", "trainer")
SLACK_S = 1.0
"""A heartbeat may be this late."""
FEW = 100
"""Nodes of which each step may have a line; more have one every second for each ten of them."""
FORGET_S = 600.0
"""Seconds after which a lost node is not expected back: nodes may come and go under ever new names."""


class _Account(Struct):
    role: Role
    peer: str
    until_s: float
    """Clock time up to which seconds are booked."""
    beat: Beat = Beat()
    waited: Mapping[str, float] = {}
    """Seconds of the role's causes at the last heartbeat."""
    away_since_s: float | None = None
    """Clock time at which it was first missed; None while it is there."""
    is_draining: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0
    decode_steps: float = 0.0
    memory_stall: float = 0.0
    cores_busy_s: float = 0.0
    """Seconds, each times the share of busy cores."""

    def book(self, what: str, now_s: float) -> None:
        self.seconds[what] += now_s - self.until_s
        self.until_s = now_s

    def heard(self, beat: Beat, now_s: float, waited: Mapping[str, float], *, is_ready: bool) -> None:
        spent = {name: seconds - self.beat.seconds.get(name, 0.0) for name, seconds in beat.seconds.items()}
        elapsed_s, total_s = now_s - self.until_s, sum(spent.values())
        if total_s <= 0 or total_s > 2 * elapsed_s + SLACK_S:  # The role has not begun, or is older than this session.
            self.book("unknown" if is_ready else "loading", now_s)
        else:
            scale = elapsed_s / total_s
            idle_s = spent.pop("idle", 0.0)
            for name, seconds in (spent | self._causes(idle_s, waited)).items():
                self.seconds[name] += seconds * scale
            self.until_s = now_s
            self.tokens += max(beat.tokens - self.beat.tokens, 0)
            self.decode_steps += max(beat.decode_steps - self.beat.decode_steps, 0.0)
            self.cores_busy_s += beat.cores_busy * elapsed_s
        self.memory_stall = max(self.memory_stall, beat.memory_stall)
        self.beat, self.waited = beat, dict(waited)

    def _causes(self, idle_s: float, waited: Mapping[str, float]) -> dict[str, float]:
        causes = {cause: seconds - self.waited.get(cause, 0.0) for cause, seconds in waited.items()}
        total_s = sum(causes.values())
        if total_s <= 0:
            return {"idle": idle_s}
        return {cause: idle_s * seconds / total_s for cause, seconds in causes.items()}

    def take(self) -> NodeTimes:
        """Times booked since the last call."""
        seconds = {name: value for name, value in self.seconds.items() if value > 0}
        total_s = sum(seconds.values())
        cores_busy = self.cores_busy_s / total_s if total_s else 0.0
        taken = NodeTimes(self.role, seconds, self.tokens, self.memory_stall, self.decode_steps, cores_busy)
        self.seconds, self.tokens, self.memory_stall = defaultdict(float), 0, 0.0
        self.decode_steps, self.cores_busy_s = 0.0, 0.0
        return taken


class TimeBook:
    """Times of all nodes. ``tick`` is called a few times a second, ``take`` when a line is written."""

    def __init__(self, now_s: float) -> None:
        self._ticked_s = self._taken_s = now_s
        self._accounts: dict[str, _Account] = {}
        self._waited: dict[Role, dict[str, float]] = {role: defaultdict(float) for role in ROLES}

    def tick(self, now_s: float, nodes: Iterable[Node], causes: Mapping[Role, str]) -> None:
        """Note what idle nodes wait for now, and book what nodes have told since the last tick."""
        for role in ROLES:
            self._waited[role][causes[role]] += now_s - self._ticked_s
        self._ticked_s = now_s
        present = {node.name: node for node in nodes if node.role in ROLES}
        for node in present.values():
            self._see(node, now_s)
        for name in self._accounts.keys() - present.keys():
            self._miss(name, now_s)

    def left(self, name: str) -> None:
        """Note that a node has left on purpose: it is not away."""
        if account := self._accounts.get(name):
            account.is_draining = True

    def is_due(self, now_s: float) -> bool:
        """False if it is too early for a line: one of a thousand nodes has 100 kB."""
        return len(self._accounts) <= FEW or now_s - self._taken_s >= len(self._accounts) / 10

    def take(self, now_s: float) -> tuple[float, dict[str, NodeTimes]]:
        """Seconds since the last call, and the nodes in them."""
        span_s, self._taken_s = now_s - self._taken_s, now_s
        return span_s, {name: account.take() for name, account in self._accounts.items() if account.seconds}

    def _see(self, node: Node, now_s: float) -> None:
        account = self._accounts.get(node.name)
        if account is None or account.peer != node.peer:
            account = self._joined(node, account, now_s)
        account.is_draining, account.away_since_s = node.is_draining, None
        if node.beat is not account.beat:
            account.heard(node.beat, now_s, self._waited[node.role], is_ready=node.is_ready)

    def _joined(self, node: Node, before: _Account | None, now_s: float) -> _Account:
        account = _Account(node.role, node.peer, now_s, waited=dict(self._waited[node.role]))
        if before is not None:
            before.book("away", now_s)
            account.seconds, account.tokens, account.memory_stall = before.seconds, before.tokens, before.memory_stall
            account.decode_steps, account.cores_busy_s = before.decode_steps, before.cores_busy_s
        self._accounts[node.name] = account
        return account

    def _miss(self, name: str, now_s: float) -> None:
        account = self._accounts[name]
        if account.away_since_s is None:
            account.away_since_s = now_s
        if not account.is_draining and now_s - account.away_since_s <= FORGET_S:
            account.book("away", now_s)
        elif not account.seconds:
            del self._accounts[name]  # It left on purpose or for good, and the lines have all of it.
