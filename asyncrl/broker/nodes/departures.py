"""Nodes that were asked to drain, and the peers that wait for their departure."""

from asyncrl.broker.nodes.node import Node, NodeBook


class DepartureBook:
    def __init__(self) -> None:
        self._askers: dict[str, list[str]] = {}
        """Peers that asked, by the peer of the node asked to leave."""

    def ask(self, name: str, asker: str, nodes: NodeBook) -> Node | str:
        """Note that ``asker`` wants ``name`` to leave. Returns the node to send `Drain` to, or the objection."""
        node = next(iter(nodes.named(name)), None)
        if node is None:
            there = ", ".join(sorted(node.name for node in nodes.all() if node.role in ("rollout", "reward")))
            return f"there is no node {name}; those that can be drained are: {there or 'none'}"
        if node.role not in ("rollout", "reward"):
            return f"{name} is a {node.role}: only rollouts and reward nodes can be drained"
        self._askers.setdefault(node.peer, []).append(asker)
        return node

    def left(self, peer: str) -> list[str]:
        """A node is gone. Returns the peers that asked for it, each once."""
        return self._askers.pop(peer, [])
