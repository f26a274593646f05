"""
Nodes that can take work, by credits. Finding one costs the same with ten nodes as with ten thousand.

    credits   6: a   4: c d   1: b        most(at_least=2) ─▶ a, then, once a has 3 left: c, d, ...

Nodes with equally many credits are served in turn.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection

from asyncrl.broker.nodes.node import Node


class CreditBook:
    """Nodes of one role with credits left. Call `update` after each change of a node's credits."""

    def __init__(self) -> None:
        self._by_credits: defaultdict[int, OrderedDict[str, Node]] = defaultdict(OrderedDict)
        """OrderedDict, because finding the first key of a plain dict slows down as first keys are deleted."""
        self._credits_of: dict[str, int] = {}

    def update(self, node: Node) -> None:
        """File a node anew after its credits or its ability to work changed."""
        number = node.credits if node.is_able else 0
        if number != self._credits_of.get(node.peer, 0):
            self.remove(node.peer)
            if number:
                self._credits_of[node.peer] = number
                self._by_credits[number][node.peer] = node

    def remove(self, peer: str) -> None:
        if had := self._credits_of.pop(peer, 0):
            del self._by_credits[had][peer]
            if not self._by_credits[had]:
                del self._by_credits[had]

    def most(self, at_least: int, min_version: int = -1, without: Collection[str] = ()) -> Node | None:
        """
        Node with the most credits, if any has ``at_least`` credits and decodes with ``min_version`` or newer.

        ``without`` are names of nodes that are not wanted.
        """
        for number in sorted(self._by_credits, reverse=True):
            if number < at_least:
                return None
            for node in self._by_credits[number].values():
                if node.policy_version >= min_version and node.name not in without:
                    return node
        return None
