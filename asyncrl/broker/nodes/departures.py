"""Who was asked to leave, and who wants to hear of it."""

from asyncrl.broker.nodes.node import Node, NodeBook


class DepartureBook:
    """Nodes asked to leave. Each leaves once; whoever asked is told once."""

    def __init__(self) -> None:
        self._asked: dict[str, list[str]] = {}

    def ask(self, name: str, asker: str, nodes: NodeBook) -> Node | str:
        """
        Somebody wants a node to leave.

        Returns:
            The node to tell, or why it cannot be asked.
        """
        node = next((node for node in nodes.all() if node.name == name), None)
        if node is None:
            there = ", ".join(sorted(node.name for node in nodes.all() if node.role in ("rollout", "reward")))
            return f"there is no node {name}; those that can be drained are: {there or 'none'}"
        if node.role not in ("rollout", "reward"):
            return f"{name} is a {node.role}: only rollouts and reward nodes can be drained"
        self._asked.setdefault(node.peer, []).append(asker)
        return node

    def left(self, peer: str) -> list[str]:
        """A node is gone: who asked for it."""
        return self._asked.pop(peer, [])
