"""A trainer's checkpoints on a simulated disk: whole or not at all, as renaming a folder makes them."""

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from asyncrl.actor.failpoints import reach
from asyncrl.errors import RunFailed
from asyncrl.messages import Stepped
from tests.simulation.virtual_time import PROCESS

if TYPE_CHECKING:
    from tests.simulation.disk import Disk

Trained = tuple[tuple[int, tuple[int, ...]], ...]
"""Step and groups of everything in some weights."""


class Checkpoint(Struct, frozen=True):
    """A whole one."""

    step: int
    policy_version: int
    stepped: list[Stepped]
    trained: Trained


class CheckpointFolder:
    """In the place of a run's folder of checkpoints, and of the module `trainer.checkpoint`."""

    def __init__(self, disk: "Disk") -> None:
        self._disk = disk
        self._kept: dict[int, Checkpoint] = {}
        self.highest = 0
        """Steps in the newest one there ever was."""

    def newest(self) -> Checkpoint | None:
        """Of the highest step."""
        return self._kept[max(self._kept)] if self._kept else None

    def damage(self) -> bool:
        """The newest one cannot be read any more. Only if there is another."""
        if len(self._kept) < 2:
            return False
        del self._kept[max(self._kept)]
        return True

    def write(self, directory: object, *, step: int, policy_version: int, snapshot: Trained, **others: Any) -> str:
        """As `checkpoint.write`, in one moment: renaming a folder is atomic."""
        reach("trainer.checkpoint_partial")
        if self._disk.is_full:
            raise RunFailed("cannot write a checkpoint: the disk is full")
        if PROCESS.get().is_alive:
            self._kept[step] = Checkpoint(step, policy_version, list(others["stepped"]), snapshot)
            self.highest = max(self.highest, step)
        return f"step_{step:06d}"

    def prune(self, directory: object, keep: int, spared: object) -> None:
        """As `checkpoint.prune`."""
        for step in sorted(self._kept)[:-keep]:
            del self._kept[step]
