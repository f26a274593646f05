"""Machines of a run: roles, lines and numbers of processes, as data."""

from typing import Literal

from msgspec import Struct, structs

from tests.cluster.line import Conditions

FAR = Conditions(delay_s=0.05, loss=0.01, rate_bits_s=50e6)
"""A line to another site: 100 ms for a round trip, and every hundredth frame is lost."""


class Placement(Struct, frozen=True, kw_only=True):
    """Roles of one machine."""

    machine: str
    """Host name; at most 11 characters."""
    roles: tuple[str, ...]
    replicas: int = 1
    """Rollouts."""
    conditions: Conditions | None = None
    """Quality of its line; None for a plain cable."""


class Layout(Struct, frozen=True, kw_only=True):
    """All machines of a run, the broker's first, and the settings that belong to them."""

    placements: tuple[Placement, ...]
    settings: tuple[str, ...] = ()
    """Overrides of the run file, as ``a.b=value``."""
    ip: Literal[4, 6] = 4
    """Version of the address at which nodes look for the broker."""

    @property
    def machines(self) -> tuple[str, ...]:
        return tuple(placement.machine for placement in self.placements)

    @property
    def broker(self) -> str:
        """The machine of the broker."""
        return self.machines[0]

    def machines_of(self, role: str) -> tuple[str, ...]:
        return tuple(placement.machine for placement in self.placements if role in placement.roles)


SINGLE = Layout(placements=(Placement(machine="single", roles=("broker", "reward", "trainer", "rollout"), replicas=2),))
"""Everything on one machine, over its loopback interface."""

CLUSTER = Layout(
    placements=(
        Placement(machine="broker", roles=("broker",)),
        Placement(machine="trainer-a", roles=("trainer",)),
        Placement(machine="trainer-b", roles=("trainer",)),
        Placement(machine="rollout-a", roles=("rollout",)),
        Placement(machine="rollout-far", roles=("rollout",), conditions=FAR),
        Placement(machine="reward", roles=("reward",)),
    ),
    settings=("trainer.nodes=2", "trainer.ranks=2"),
)
"""A trainer of two machines with two ranks each; one of two rollouts is far away."""

LAYOUTS = {"single": SINGLE, "cluster": CLUSTER, "cluster-ipv6": structs.replace(CLUSTER, ip=6)}
