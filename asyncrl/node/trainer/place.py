"""A machine of a trainer, and a rank: where they are among the others."""

import socket
from collections.abc import Mapping, Sequence

from msgspec import Struct

from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import Config
from asyncrl.messages.session import Welcome
from asyncrl.messages.trainer import TrainerMachine


class Session(Struct, frozen=True, eq=False):
    """A trainer's node that was welcomed to a run."""

    config: Config
    run: RunAddress
    who: Identity
    welcome: Welcome
    interface: str
    """Address of this machine on which its process groups, and rank 0's hub, listen."""
    copies: Mapping[str, str] = {}
    """See `asyncrl.node.model_files.local_copies`."""


class RankPlace(Struct, frozen=True):
    """One rank."""

    rank: int
    """Its number among all ``size`` ranks."""
    local_rank: int
    """Its number among the ranks of its machine, and that of its device; 0 reads the machine's checkpoints."""
    size: int
    interface: str
    """Address of the machine whose network interface the collectives use."""
    broker: str
    """Address at which the machine reaches the broker."""
    secret_file: str = ""
    """File with `HubAddress.secret`; empty for a unix socket."""
    copies: dict[str, str] = {}
    """Model directories of the machine in place of those of the configuration."""


class HubAddress(Struct, frozen=True):
    """Hub of rank 0, as the first machine announces it through the broker's links."""

    address: str
    secret: bytes
    """Made for one group of machines: with it, and only with it, ranks connect to a TCP address."""


class Place(Struct, frozen=True):
    """
    One machine of a trainer.

    Example, for two machines with two ranks each, ``index`` 1:
        names == ["a-rank-0", "a-rank-1", "b-rank-2", "b-rank-3"]; own == range(2, 4)
    """

    machines: Sequence[TrainerMachine]
    """All of them, the first one first."""
    index: int
    """Index of this machine."""
    ranks: int
    """Ranks of each machine."""

    @property
    def size(self) -> int:
        """Ranks of all machines."""
        return len(self.machines) * self.ranks

    @property
    def own(self) -> range:
        """Ranks of this machine, in the order of their local ranks."""
        return range(self.index * self.ranks, (self.index + 1) * self.ranks)

    @property
    def names(self) -> list[str]:
        """Node name of each rank."""
        return [f"{self.machines[rank // self.ranks].node}-rank-{rank}" for rank in range(self.size)]

    @property
    def labels(self) -> list[str]:
        """Name and host of each rank, for error messages."""
        hosts = [self.machines[rank // self.ranks].host for rank in range(self.size)]
        return [f"{name} on {host}" for name, host in zip(self.names, hosts, strict=True)]


def only_machine(node: str, ranks: int) -> Place:
    """The place of a trainer of one machine."""
    return Place([TrainerMachine(node, socket.gethostname())], 0, ranks)
