"""All that was found out about a cluster, for `judgement`."""

from msgspec import Struct

from asyncrl.node.machine.cluster.cluster_file import Cluster
from asyncrl.node.machine.cluster.pairs import Pair
from asyncrl.node.machine.cluster.probe_messages import Facts, NoAnswer, Sent, Unable


class Findings(Struct, frozen=True, kw_only=True):
    """Answers of the machines of a cluster."""

    cluster: Cluster
    looks: dict[str, Facts | Unable | NoAnswer]
    """Answer of each machine, by name."""
    clock_offsets_s: dict[str, float]
    """Clock of the machine minus the clock here, within the time of an answer."""
    bind_problem: str
    """Reason why the machine with the role broker cannot listen on the broker's address; empty: it can."""
    transfers: dict[Pair, Sent | Unable | NoAnswer]
