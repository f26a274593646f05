"""
Who can take work, most credits first. Finding them costs the same with ten nodes as with ten thousand.

    credits   6: a   4: c d   1: b        most(at_least=2) ─▶ a, then, once a has 3 left: c, d, ...

Nodes with equally many credits are served in turn.
"""

from collections import OrderedDict, defaultdict

from asyncrl.broker.nodes.node import Node


class CreditBook:
    """Nodes of one role that have credits, by how many. Whoever changes a node's credits says so with `update`."""

    def __init__(self) -> None:
        self._by_credits: defaultdict[int, OrderedDict[str, Node]] = defaultdict(OrderedDict)
        """Ordered, because the first one of a plain dict whose first ones leave is found ever more slowly."""
        self._credits_of: dict[str, int] = {}

    def update(self, node: Node) -> None:
        """Its credits, its version or its being here changed."""
        self.remove(node.peer)
        if node.is_able:
            self._credits_of[node.peer] = node.credits
            self._by_credits[node.credits][node.peer] = node

    def remove(self, peer: str) -> None:
        """It takes no more work."""
        if had := self._credits_of.pop(peer, 0):
            del self._by_credits[had][peer]
            if not self._by_credits[had]:
                del self._by_credits[had]

    def most(self, at_least: int, min_version: int = -1) -> Node | None:
        """The node with most credits, of those that have enough and decode with ``min_version`` or a newer one."""
        for number in sorted(self._by_credits, reverse=True):
            if number < at_least:
                return None
            for node in self._by_credits[number].values():
                if node.policy_version >= min_version:
                    return node
        return None
