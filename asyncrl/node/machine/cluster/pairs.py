"""Pairs of machines that connect to each other in a run, and the rounds in which they are tried. Pure."""

from collections.abc import Iterator, Sequence

from asyncrl.node.machine.cluster.cluster_file import Machine

Pair = tuple[str, str]
"""Names of the machine that connects and of the one that listens."""

IN_COLLECTIVES = {"trainer", "rollout"}
USES_SPOOLS = {"trainer", "rollout", "reward"}


def connecting_pairs(machines: Sequence[Machine]) -> list[Pair]:
    """
    Pairs of different machines of which the first connects to the second.

    Members of a collective connect in both directions: trainers with each other, and with rollouts. Users of spools
    connect to them. Connections to the broker are checked apart.
    """
    return [
        (a.name, b.name) for a in machines for b in machines if a is not b and _connects(set(a.roles), set(b.roles))
    ]


def rounds(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Divide the pairs into rounds in which each machine is busy once, so that transfers do not share a network."""
    left = list(pairs)
    while left:
        now: list[Pair] = []
        busy: set[str] = set()
        for pair in left:
            if busy.isdisjoint(pair):
                now.append(pair)
                busy.update(pair)
        yield now
        left = [pair for pair in left if pair not in now]


def _connects(a: set[str], b: set[str]) -> bool:
    in_collective = bool(a & IN_COLLECTIVES and b & IN_COLLECTIVES and "trainer" in a | b)
    return in_collective or bool(a & USES_SPOOLS and "spool" in b)
