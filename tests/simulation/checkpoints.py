"""A trainer's checkpoints on a simulated disk. Writing one is atomic, like renaming a folder."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from asyncrl.errors import RunFailed
from asyncrl.failpoints import failpoint
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.trainer import Stepped
from tests.simulation.virtual_time import PROCESS

if TYPE_CHECKING:
    from tests.simulation.disk import Disk

Trained = tuple[tuple[int, tuple[int, ...]], ...]
"""Content of weights: (step, group ids) of every step trained."""


class Checkpoint(Struct, frozen=True):
    step: int
    policy_version: int
    stepped: list[Stepped]
    trained: Trained


class CheckpointFolder:
    """Stand-in for a run's checkpoint folder and for the module that writes it."""

    def __init__(self, disk: "Disk") -> None:
        self._disk = disk
        self._kept: dict[int, Checkpoint] = {}
        self.highest = 0
        """Most steps that a checkpoint ever contained."""

    def newest(self) -> Checkpoint | None:
        return self._kept[max(self._kept)] if self._kept else None

    def all(self) -> list[Checkpoint]:
        return list(self._kept.values())

    def damage(self) -> bool:
        """Make the newest checkpoint unreadable. Returns False if it is the only one."""
        if len(self._kept) < 2:
            return False
        del self._kept[max(self._kept)]
        return True

    def begin(self, directory: object, step: int) -> None:
        """Nothing is on the disk before the end."""

    def take(self, directory: object, step: int, snapshot: Callable[[object], Trained]) -> Trained:
        return snapshot(directory)

    def write_part(self, directory: object, step: int, snapshot: Trained) -> dict[str, FileEntry]:
        return {}

    def finish(self, directory: object, *, step: int, policy_version: int, snapshot: Trained, **others: Any) -> str:
        """Write a checkpoint atomically."""
        failpoint("trainer.checkpoint_partial")
        if self._disk.is_full:
            raise RunFailed("cannot write a checkpoint: the disk is full")
        if PROCESS.get().is_alive:
            self._kept[step] = Checkpoint(step, policy_version, list(others["stepped"]), snapshot)
            self.highest = max(self.highest, step)
        return f"step_{step:06d}"

    def prune(self, directory: object, keep: int, spared: object) -> None:
        for step in sorted(self._kept)[:-keep]:
            del self._kept[step]
