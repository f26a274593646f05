"""Who is connected: roles, credits, versions, and when they were last heard."""

from msgspec import Struct

from asyncrl.messages import Beat, Hello, Member, Role


class Node(Struct, eq=False, gc=False):
    """One incarnation of one node."""

    peer: str
    """What the hub calls it."""
    name: str
    incarnation: str
    role: Role
    heard_s: float
    beat: Beat = Beat()
    """The latest."""
    credit_limit: int = 0
    """Running total of what it will take, as it said last."""
    granted: int = 0
    """Running total of what it was given."""
    policy_version: int = -1
    """What its engine decodes with; -1 before its first weights."""
    received_version: int = -1
    """What lies in its staging buffers, decoding or not."""
    is_ready: bool = False
    """Its model is loaded."""
    ranks: int = 1
    """As in `Member`."""
    is_draining: bool = False
    """It wants no more leases."""
    is_quiet: bool = False
    """It has not been heard for so long that it is given nothing new."""

    @property
    def credits(self) -> int:
        """How many more trajectories it will take now."""
        return 0 if self.is_draining else self.credit_limit - self.granted

    @property
    def member(self) -> Member:
        """As a transfer names it."""
        return Member(self.name, self.incarnation, self.ranks)

    @property
    def is_able(self) -> bool:
        """Can it be given work now? A rollout needs weights first."""
        return self.credits > 0 and not self.is_quiet and (self.role != "rollout" or self.policy_version >= 0)

    def __repr__(self) -> str:
        return f"<Node {self.name} v{self.policy_version} credits={self.credits}>"


class NodeBook:
    """All nodes now connected, by peer."""

    def __init__(self, notice_s: float, ttl_s: float) -> None:
        self._notice_s = notice_s
        self._ttl_s = ttl_s
        self._nodes: dict[str, Node] = {}
        self._by_role: dict[Role, dict[str, Node]] = {}
        self._by_name: dict[str, tuple[Node, ...]] = {}

    def join(self, peer: str, hello: Hello, now_s: float) -> Node:
        """A node said Hello."""
        node = self._nodes[peer] = Node(peer, hello.node, hello.incarnation, hello.role, now_s)
        self._by_role.setdefault(node.role, {})[peer] = node
        self._by_name[node.name] = (*self.earlier(hello), node)
        return node

    def leave(self, peer: str) -> Node | None:
        """A node is gone."""
        if node := self._nodes.pop(peer, None):
            del self._by_role[node.role][peer]
            others = tuple([other for other in self._by_name.pop(node.name) if other is not node])
            if others:
                self._by_name[node.name] = others
        return node

    def get(self, peer: str) -> Node | None:
        """The node behind a peer, if it said Hello."""
        return self._nodes.get(peer)

    def heard(self, peer: str, now_s: float) -> Node | None:
        """Any message is a sign of life."""
        if node := self._nodes.get(peer):
            node.heard_s = now_s
        return node

    def silent(self, now_s: float) -> list[Node]:
        """Nodes not heard for too long: they are lost."""
        return [node for node in self._nodes.values() if now_s - node.heard_s > self._ttl_s]

    def excuse(self, seconds: float) -> None:
        """Nobody could be heard for so long: it was not their silence."""
        for node in self._nodes.values():
            node.heard_s += seconds

    def falling_quiet(self, now_s: float) -> list[Node]:
        """Nodes that are quiet from now on."""
        quiet = [n for n in self._nodes.values() if not n.is_quiet and now_s - n.heard_s > self._notice_s]
        for node in quiet:
            node.is_quiet = True
        return quiet

    def earlier(self, hello: Hello) -> list[Node]:
        """Starts of the node that says Hello: they are dead, or have forgotten what they held."""
        return list(self._by_name.get(hello.node, ()))

    def all(self) -> list[Node]:
        """Everybody, in the order they joined."""
        return list(self._nodes.values())

    def of(self, role: Role) -> list[Node]:
        """All nodes of one role, in the order they joined."""
        return list(self._by_role.get(role, {}).values())

    def rollouts(self) -> list[Node]:
        """Those that can take part in transfers."""
        return [node for node in self.of("rollout") if node.is_ready]

    def trainer(self) -> Node | None:
        """The one trainer."""
        return next(iter(self._by_role.get("trainer", {}).values()), None)
