"""Operators that wait for the stacks of a node, and the broker's own answer for its process."""

from asyncrl.broker.nodes.node import Node, NodeBook
from asyncrl.messages.spool import HOSTED_SPOOL
from asyncrl.messages.words import Role

CAN_ANSWER: tuple[Role, ...] = ("rollout", "reward", "trainer")
BROKERS = ("broker", "broker-0", HOSTED_SPOOL)
"""Names of the broker's own process, which also hosts the spool."""


class StackRequests:
    def __init__(self) -> None:
        self._askers: dict[str, list[str]] = {}
        """Peers that asked, by the peer of the node."""

    def ask(self, name: str, asker: str, nodes: NodeBook) -> Node | str:
        """Note that ``asker`` wants the stacks of a node. Returns the node to ask, or the objection."""
        node = next(iter(nodes.named(name)), None)
        if node is None:
            there = ", ".join(sorted(node.name for node in nodes.all() if node.role in CAN_ANSWER))
            return f"there is no node {name}; those that can be asked are: broker{', ' if there else ''}{there}"
        if node.role not in CAN_ANSWER:
            return f"{name} is a {node.role}: only rollouts, reward nodes, the trainer and the broker answer"
        self._askers.setdefault(node.peer, []).append(asker)
        return node

    def answered(self, peer: str) -> list[str]:
        """A node has answered, or is gone. Returns the peers that asked for it, each once."""
        return list(dict.fromkeys(self._askers.pop(peer, [])))
