"""
Window: bound on the number of open groups, and so on how far rollouts run ahead of the trainer.

    P groups per step, T steps per publish, S staleness:  W = floor((1 + S) P T)

    admitted ─▶ consumed by a step ─▶ retired, once the weights that step made are live
    └────────────── open: never more than W ──────────────┘

Proof that this bounds staleness (order ``fifo``, S whole). The g-th group that is trained on is consumed in version
``g // (P T)``. It is admitted when at most W - 1 earlier groups are open, so the one W places before it has retired, so
version ``(g - W) // (P T) + 1``, which is ``g // (P T) - S``, is live; and it is leased only to nodes that decode with
that version or a newer one. So no token in it is older than S versions when it is trained on. Freeing the window when a
batch is *taken*, before its weights are live, would admit groups that are already too stale.

The size may change while the run goes on. A larger window admits more at once. A smaller one admits none until fewer
groups are open than it holds; so at each admission at most W - 1 others are open, with the W of that moment.

Dropped groups contribute to no weights and retire at once; while they are open they only make the bound tighter.
"""

from collections.abc import Mapping, Sequence

from asyncrl.errors import BrokenInvariant


class Window:
    """The open groups, at most ``size``. Raises `BrokenInvariant` rather than exceed it or retire a group twice."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.num_admitted = 0
        self.num_retired = 0
        self.room = size
        """
        Groups that may be admitted now: ``size - num_open``, kept because every message asks for it. Below 0 after the
        window was made smaller.
        """
        self._open: set[int] = set()
        self._consumed: dict[int, list[int]] = {}
        self.peak = 0
        """Most groups ever open at once."""

    @property
    def num_open(self) -> int:
        return len(self._open)

    def resize(self, size: int) -> None:
        """Hold ``size`` groups from now on."""
        self.room += size - self.size
        self.size = size

    @property
    def consumed(self) -> Mapping[int, Sequence[int]]:
        """Open groups of each step that trains on them, or has trained on them; its weights are not live yet."""
        return self._consumed

    @property
    def num_consumed(self) -> int:
        """Open groups that a step trains on, or has trained on; its weights are not live yet."""
        return sum(map(len, self._consumed.values()))

    def admit(self, group_id: int) -> None:
        if self.room <= 0 or group_id in self._open:
            raise BrokenInvariant(
                f"group {group_id} admitted with {self.num_open} of {self.size} groups open: the bound is broken"
            )
        self._open.add(group_id)
        self.room -= 1
        self.num_admitted += 1
        self.peak = max(self.peak, len(self._open))

    def consume(self, step: int, group_ids: list[int]) -> None:
        """Note that ``step`` trains on these groups. They stay open until its weights are live."""
        missing = [group_id for group_id in group_ids if group_id not in self._open]
        if missing or step in self._consumed:
            raise BrokenInvariant(f"step {step} consumes groups {missing or group_ids} that are not open, or twice")
        self._consumed[step] = group_ids

    def drop(self, group_id: int) -> None:
        """Retire one group: no step will consume it, or the weights it made are live."""
        if group_id not in self._open:
            raise BrokenInvariant(f"group {group_id} retired twice")
        self._open.remove(group_id)
        self.room += 1
        self.num_retired += 1

    def live(self, next_step: int) -> None:
        """Retire the groups of every step below ``next_step``: weights made of these steps are live."""
        for step in [step for step in self._consumed if step < next_step]:
            for group_id in self._consumed.pop(step):
                self.drop(group_id)
