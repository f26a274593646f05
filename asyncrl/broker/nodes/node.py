"""Connected nodes: role, credits, versions, and when each was last heard."""

import math
from collections.abc import Collection, Iterator

from msgspec import Struct, field

from asyncrl.broker.nodes.standstill import Standstill
from asyncrl.config.sections.broker import Broker
from asyncrl.messages.session import Beat, Hello, Ready, process_of
from asyncrl.messages.weights import Member
from asyncrl.messages.words import Role, WeightsVia

LOADING: frozenset[Role] = frozenset(("rollout", "trainer"))
"""Roles that load a model after they have joined, and say when they are ready."""
RATE_S = 10.0
"""Time constant of the average of a node's tokens per second."""


class Node(Struct, eq=False, gc=False):
    """One incarnation of one node."""

    peer: str
    """Address of the node's session at the hub: name and incarnation."""
    name: str
    incarnation: str
    role: Role
    heard_s: float
    host: str = ""
    """Name of its machine, as it says; empty if it does not."""
    beat: Beat = Beat()
    beat_at_s: float = 0.0
    """Time of the last beat; 0 before the first."""
    tokens_per_s: float = 0.0
    """Average over about `RATE_S`, the last beats counting most."""
    credit_limit: int = 0
    """Latest `Offer`: running total of trajectories it will take."""
    granted: int = 0
    """Running total of trajectories it was given."""
    policy_version: int = -1
    """Version its engine decodes with; -1 before its first weights."""
    received_version: int = -1
    """Newest version it received, swapped in or still staged."""
    is_ready: bool = False
    model: Ready = Ready()
    """Description of its model, from when it was ready."""
    ranks: int = 1
    """Number of the node's processes in a weight transfer."""
    weights: WeightsVia = "collective"
    transfer_group: int = 0
    """Group of the transfer that it takes part in, until it tells how that ended; 0 if none."""
    is_fetching: bool = False
    """True while it fetches a version from the spool."""
    is_draining: bool = False
    is_quiet: bool = False
    """True while it is silent for so long that it gets no new work."""
    standstill: Standstill = field(default_factory=Standstill)
    is_stalled: bool = False
    """True while it beats without progress for so long that it gets no new work."""

    overdue_limit: int = -1
    """Value of `credit_limit` when work was last taken from it as overdue; -1 before that."""
    is_barred: bool = False
    """True while its faults stand out so far that it gets no work; see `asyncrl.broker.nodes.faults`."""

    def replaced_by(self, hello: Hello) -> str:
        """Reason of its loss to a new session of its name."""
        if hello.process and hello.process == process_of(self.incarnation):
            return "it joined again"
        if not (self.host and hello.host):
            return "another process joined under its name"
        if self.host == hello.host:
            return f"it was killed or restarted: the next process of its name joined, on the same host, {hello.host}"
        return f"another process joined under its name, on {hello.host}; it was on {self.host}"

    @property
    def credits(self) -> int:
        return 0 if self.is_draining else self.credit_limit - self.granted

    @property
    def member(self) -> Member:
        return Member(self.name, self.incarnation, self.ranks)

    @property
    def is_loading(self) -> bool:
        return self.role in LOADING and not self.is_ready

    @property
    def is_away(self) -> bool:
        """True while others should do its work: it is silent, makes no progress, or fails where they do not."""
        return self.is_quiet or self.is_stalled or self.is_barred

    @property
    def is_behind(self) -> bool:
        """True if work was taken from it as overdue and it has no room for more since: nobody waits for it."""
        return self.credits <= 0 and self.credit_limit == self.overdue_limit

    @property
    def is_able(self) -> bool:
        """True if it can be given work now. A rollout needs weights first."""
        return self.credits > 0 and not self.is_away and (self.role != "rollout" or self.policy_version >= 0)

    def beats(self, beat: Beat, now_s: float) -> None:
        """Keep the node's newest heartbeat, and update its tokens per second."""
        seconds, tokens = now_s - self.beat_at_s, beat.tokens - self.beat.tokens
        if self.beat_at_s and seconds > 0 and tokens >= 0:
            self.tokens_per_s += (1 - math.exp(-seconds / RATE_S)) * (tokens / seconds - self.tokens_per_s)
        self.standstill.heard(beat, now_s)
        self.beat, self.beat_at_s = beat, now_s

    def __repr__(self) -> str:
        return f"<Node {self.name} v{self.policy_version} credits={self.credits}>"


def name_of(peer: str) -> str:
    """Name of the node of a session, which is NODE.INCARNATION."""
    return peer.rpartition(".")[0]


class NodeBook:
    """
    Connected nodes by peer, in the order they joined: quiet after ``notice_s`` of silence, lost after ``node_ttl_s``,
    and stalled without progress as `Standstill` decides.
    """

    def __init__(self, limits: Broker = Broker()) -> None:  # noqa: B008  immutable
        self._limits = limits
        self._nodes: dict[str, Node] = {}
        self._by_role: dict[Role, dict[str, Node]] = {}
        self._by_name: dict[str, tuple[Node, ...]] = {}
        self._fetchers: dict[str, Node] = {}

    def join(self, peer: str, hello: Hello, now_s: float, role: Role | None = None) -> Node:
        """Add a node, in another ``role`` than it says if that is given."""
        node = Node(peer, hello.node, hello.incarnation, role or hello.role, now_s, hello.host)
        node.standstill = Standstill(self._limits, now_s)
        self._nodes[peer] = node
        self._by_role.setdefault(node.role, {})[peer] = node
        self._by_name[node.name] = (*self.named(node.name), node)
        return node

    def ready(self, node: Node, message: Ready) -> None:
        """A node has loaded its model."""
        node.is_ready, node.ranks, node.weights = True, message.ranks, message.weights
        node.model = message
        if node.role == "rollout" and node.weights == "spool":
            self._fetchers[node.peer] = node

    def leave(self, peer: str) -> Node | None:
        self._fetchers.pop(peer, None)
        if node := self._nodes.pop(peer, None):
            del self._by_role[node.role][peer]
            others = tuple([other for other in self._by_name.pop(node.name) if other is not node])
            if others:
                self._by_name[node.name] = others
        return node

    def promote(self, node: Node) -> None:
        """Make a machine of a trainer of several the trainer."""
        del self._by_role[node.role][node.peer]
        node.role = "trainer"
        self._by_role.setdefault(node.role, {})[node.peer] = node

    def get(self, peer: str) -> Node | None:
        return self._nodes.get(peer)

    def heard(self, peer: str, now_s: float) -> Node | None:
        """Note that a peer sent a message. Returns its node; None before its Hello."""
        if node := self._nodes.get(peer):
            node.heard_s = now_s
        return node

    def silent(self, now_s: float) -> list[Node]:
        return [node for node in self._nodes.values() if now_s - node.heard_s > self._limits.node_ttl_s]

    def excuse(self, seconds: float) -> None:
        """Ignore ``seconds`` of silence, in which the broker could hear no node."""
        for node in self._nodes.values():
            node.heard_s += seconds
            node.standstill.excuse(seconds)

    def falling_quiet(self, now_s: float) -> list[Node]:
        """
        Mark nodes quiet that have been silent for longer than ``notice_s``. Returns the newly quiet ones.

        One that loads its model has no work yet; imports of its libraries may hold the interpreter for seconds.
        """
        silent = [n for n in self._nodes.values() if not n.is_quiet and now_s - n.heard_s > self._limits.notice_s]
        quiet = [node for node in silent if not node.is_loading]
        for node in quiet:
            node.is_quiet = True
        return quiet

    def stalling(self, now_s: float) -> list[Node]:
        """Mark nodes that make no progress, and unmark those that do again. Returns those whose mark has changed."""
        changed = [n for n in self._nodes.values() if n.is_stalled != n.standstill.is_stalled(now_s)]
        for node in changed:
            node.is_stalled = not node.is_stalled
        return changed

    def named(self, name: str) -> list[Node]:
        """Incarnations of a node that are connected."""
        return list(self._by_name.get(name, ()))

    def all(self) -> list[Node]:
        return list(self._nodes.values())

    def with_role(self, role: Role) -> list[Node]:
        return list(self._by_role.get(role, {}).values())

    def able(self, *roles: Role) -> dict[str, Role]:
        """Names of the nodes of these roles that can be given work, now or soon."""
        return {node.name: role for role in roles for node in self._able(role)}

    def has_other(self, role: Role, names: Collection[str]) -> bool:
        """True if a node of this role that is none of ``names`` can be given work, now or soon."""
        return any(node.name not in names for node in self._able(role))

    def to_avoid(self, role: Role, names: Collection[str]) -> Collection[str]:
        """These nodes, which failed something, if there is another of the role to ask first; none otherwise."""
        return names if names and self.has_other(role, names) else ()

    def _able(self, role: Role) -> Iterator[Node]:
        nodes = self._by_role.get(role, {}).values()
        return (node for node in nodes if not (node.is_loading or node.is_away or node.is_draining or node.is_behind))

    def rollouts(self) -> list[Node]:
        """Rollouts that can be given weights."""
        return [node for node in self.with_role("rollout") if node.is_ready]

    def members(self) -> list[Node]:
        """Rollouts that can take part in transfers."""
        return [node for node in self.rollouts() if node.weights == "collective"]

    def fetchers(self) -> list[Node]:
        """Rollouts that fetch weights from the spool."""
        return list(self._fetchers.values())

    def trainer(self) -> Node | None:
        return next(iter(self._by_role.get("trainer", {}).values()), None)
