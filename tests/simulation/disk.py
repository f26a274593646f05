"""The simulated disk: state that survives a process. Unsynced data may be lost when a process dies."""

from collections.abc import Callable, Sequence
from random import Random

from asyncrl.broker.ledger.records import AnyRecord
from tests.simulation.checkpoints import CheckpointFolder
from tests.simulation.ledger import LedgerFile
from tests.simulation.segments import SpoolFolder


class Disk:
    """
    The disk of one machine.

    Args:
        on_commit: Called with records once they are durable.
    """

    def __init__(self, dice: Random, on_commit: Callable[[Sequence[AnyRecord]], None]) -> None:
        self.dice = dice
        self.on_commit = on_commit
        self.is_full = False
        self.ledger = LedgerFile(self)
        self.spool = SpoolFolder(self)
        self.checkpoints = CheckpointFolder(self)
