"""Faults of machines, as data, and what each must be followed by."""

import time
from collections.abc import Iterator

from msgspec import Struct

from tests.cluster import attendance
from tests.cluster.deployment import Deployment
from tests.cluster.placement import Layout

STEPS_AFTER = 2
"""Steps that must be done after a fault before the next one."""
BACK_S = 180.0
"""Seconds for nodes to be back and `STEPS_AFTER` steps to be done, on a busy machine."""


class Fault(Struct, frozen=True, kw_only=True):
    """Something that happens to one machine."""

    machine: str


class PowerCut(Fault, frozen=True, kw_only=True):
    """Every process ends at once, supervisord too; later the machine starts again with its disk as it was."""

    off_s: float = 5.0

    def inject(self, run: Deployment) -> None:
        run.power_off(self.machine)
        time.sleep(self.off_s)
        run.power_on(self.machine)


class Partition(Fault, frozen=True, kw_only=True):
    """No frame crosses the machine's line for a while; its processes go on."""

    seconds: float = 30.0

    def inject(self, run: Deployment) -> None:
        run.machine(self.machine).partition()
        time.sleep(self.seconds)
        run.machine(self.machine).heal()


class Separation(Fault, frozen=True, kw_only=True):
    """No frame crosses between the machine and one other; both reach all the rest."""

    other: str
    seconds: float = 30.0

    def inject(self, run: Deployment) -> None:
        with run.separated(self.machine, self.other):
            time.sleep(self.seconds)


class Drain(Fault, frozen=True, kw_only=True):
    """The services of the machine are told to leave, as before maintenance, and started again."""

    def inject(self, run: Deployment) -> None:
        run.restart(self.machine)


FaultKind = PowerCut | Partition | Separation | Drain
INTERRUPTIONS = (Partition, Separation)
"""Faults that end no process."""


def every_fault(layout: Layout) -> Iterator[FaultKind]:
    """
    Each fault at each machine in turn, and each rollout separated from each machine of the trainer.

    Draining the broker's machine restarts the broker by its supervisord.
    """
    for machine in layout.machines:
        yield PowerCut(machine=machine)
        if len(layout.machines) > 1:
            yield Partition(machine=machine)
        yield Drain(machine=machine)
    for rollout in layout.machines_of("rollout"):
        for trainer in layout.machines_of("trainer"):
            if trainer != rollout:
                yield Separation(machine=rollout, other=trainer)


def some_faults(layout: Layout) -> Iterator[FaultKind]:
    """A short form: one fault of each kind, the broker's restart among them."""
    yield Drain(machine=layout.broker)
    yield PowerCut(machine=layout.machines_of("trainer")[-1])
    if len(layout.machines) > 1:
        yield Partition(machine=layout.machines_of("rollout")[-1], seconds=15.0)


def endure(run: Deployment, fault: FaultKind) -> float:
    """
    Inject a fault, and wait until the run has recovered: every node is back, and steps are being done.

    Returns:
        Seconds from the end of the fault to the recovery.
    """
    assert run.summary() is None, "the run ended before all faults: give it more steps"
    before = run.events()
    ended = frozenset() if isinstance(fault, INTERRUPTIONS) else run.nodes_of(fault.machine)
    fault.inject(run)
    began_s = time.monotonic()
    run.until(lambda: attendance.is_restored(before, run.events(), ended), f"return of all nodes after {fault}", BACK_S)
    run.until_steps(STEPS_AFTER, BACK_S)
    return time.monotonic() - began_s
