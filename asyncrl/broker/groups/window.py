"""
How far rollouts may run ahead of the trainer.

    P groups per step, T steps per publish, S staleness:  W = floor((1 + S) P T)

    admitted ─▶ consumed by a step ─▶ retired, once the weights that step made are live
    └────────────── open: never more than W ──────────────┘

Why this bounds staleness (first in, first out, S whole). The g-th group that is trained on is consumed in version
``g // (P T)``. It is admitted when at most W - 1 earlier groups are open, so the one W places before it has retired, so
version ``(g - W) // (P T) + 1``, which is ``g // (P T) - S``, is live; and it is leased only to nodes that decode with
that version or a newer one. So no token in it is older than S versions when it is trained on. Freeing the window when a
batch is *taken*, before its weights are live, would admit groups that are born stale.

Dropped groups help make no weights and leave at once; while they are open they only make the bound tighter.
"""

from asyncrl.errors import BrokenInvariant


class Window:
    """Counts open groups. Group ids are ordinals; a step is an ordinal too."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_admitted = 0
        self.num_retired = 0
        self._open: set[int] = set()
        self._consumed: dict[int, list[int]] = {}
        self.peak = 0
        """Most groups ever open at once."""

    @property
    def num_open(self) -> int:
        """Groups admitted and not yet retired."""
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more may be admitted now."""
        return self.size - len(self._open)

    def admit(self, group_id: int) -> None:
        """
        Open one more group.

        Raises:
            BrokenInvariant: The window is full, or the group is open already.
        """
        if not self.room or group_id in self._open:
            raise BrokenInvariant(
                f"group {group_id} admitted with {self.num_open} of {self.size} groups open: the bound is broken"
            )
        self._open.add(group_id)
        self.num_admitted += 1
        self.peak = max(self.peak, len(self._open))

    def consume(self, step: int, group_ids: list[int]) -> None:
        """These groups went into ``step``. They stay open until its weights are live."""
        missing = [group_id for group_id in group_ids if group_id not in self._open]
        if missing or step in self._consumed:
            raise BrokenInvariant(f"step {step} consumes groups {missing or group_ids} that are not open, or twice")
        self._consumed[step] = group_ids

    def drop(self, group_id: int) -> None:
        """This group will never be consumed."""
        self._retire(group_id)

    def live(self, next_step: int) -> None:
        """Weights made of every step below ``next_step`` are live: what those steps consumed retires."""
        for step in [step for step in self._consumed if step < next_step]:
            for group_id in self._consumed.pop(step):
                self._retire(group_id)

    def _retire(self, group_id: int) -> None:
        if group_id not in self._open:
            raise BrokenInvariant(f"group {group_id} retired twice")
        self._open.remove(group_id)
        self.num_retired += 1
