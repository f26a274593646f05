"""
Admission of groups: the next prompt, which prompts the policy has learned, and the window that bounds staleness.

How many groups the window holds is said by `Schedule.window` (``config/sections/schedule.py``), or while a run goes on
by `asyncrl.broker.staleness_control`; which version a group needs is checked when it is leased.
"""

from asyncrl.broker.groups.group import Group
from asyncrl.broker.ledger.records import Admitted
from asyncrl.data.prompts import Draw, PromptStream
from asyncrl.errors import BrokenInvariant, LedgerError, RunFailed
from asyncrl.records.formatting import nth

# ── retirement ────────────────────────────────────────────────────────────────────────────────
# Retirement of prompts that the policy has learned: they are not admitted again in later epochs.
#
#     group complete ─▶ mean ``correct`` ≥ ``data.retire_at`` ─▶ its row is passed over from now on
#
# Nothing is recorded for it: the records of rewards and admissions are replayed in their order, so a restarted broker
# retires the same prompts at the same places. The ids of groups are places in the order of the data, so a prompt that
# is passed over leaves out its id.


class Retirement:
    """
    The retired rows of ``num_rows`` that are trained on. A ``retire_at`` of 0 retires none.

    Source:
        Khatri et al. 2025, arXiv:2510.13786 (ScaleRL's no-positive-resampling).
    """

    def __init__(self, retire_at: float, num_rows: int) -> None:
        self._retire_at = retire_at
        self._num_rows = num_rows
        self._rows: set[int] = set()
        self._num_reported = 0

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def completed(self, group: Group) -> None:
        """Retire the prompt of a group, all of whose trajectories have a reward, if enough of them are correct."""
        if self._retire_at and mean_correct(group) >= self._retire_at:
            self._rows.add(group.row)

    def require_any(self) -> None:
        """Raise `RunFailed` if no prompt is left to admit."""
        if len(self._rows) >= self._num_rows:
            raise RunFailed(
                f"all {self._num_rows} prompts of data.train are retired: of each, data.retire_at = "
                f"{self._retire_at:g} or more of a group was correct; add prompts, raise data.retire_at, or set it to 0"
            )

    def news(self) -> dict[str, int]:
        """Fields of an event `prompts.retired` if more prompts are retired than at the last call; empty otherwise."""
        if len(self._rows) <= self._num_reported:
            return {}
        self._num_reported = len(self._rows)
        return {"retired": len(self._rows), "prompts": self._num_rows}


def mean_correct(group: Group) -> float:
    """Mean ``correct`` over the trajectories of the group that are trained on."""
    return sum(slot.correct for slot in group.sampled) / len(group.sampled)


# ── admission ─────────────────────────────────────────────────────────────────────────────────


class AdmissionBook:
    """
    Makes groups in data order, of ``group_size`` sampled and ``num_greedy`` greedy trajectories.

    Their ids are dense, but for the places of prompts that are retired.
    """

    def __init__(
        self,
        prompts: PromptStream,
        group_size: int,
        num_needed: int,
        num_greedy: int = 0,
        *,
        retirement: Retirement | None = None,
    ) -> None:
        self._prompts = prompts
        self._retirement = retirement
        self._group_size = group_size
        self._num_greedy = num_greedy
        self.next_group_id = 0
        self.max_tokens = 0
        """Longest completion of the next groups; 0 takes the one of the configuration."""
        self.num_needed = num_needed
        """Groups still to be admitted, at first all that the steps consume."""

    def admit(self, policy_version: int) -> tuple[Group, Admitted]:
        """Make the next group and its record, at the live version; `RunFailed` if every prompt is retired."""
        if self._retirement:
            self._retirement.require_any()
            while self._prompts.place(self.next_group_id)[1] in self._retirement:
                self.next_group_id += 1
        draw = self._prompts.at(self.next_group_id)
        return self._group(draw, policy_version), Admitted(draw.group_id, draw.epoch, draw.row, policy_version)

    def readmit(self, record: Admitted) -> Group:
        """Make the group of a record again; raises `LedgerError` if the stream has another prompt for it now."""
        draw = self._prompts.at(record.group_id)
        if (draw.epoch, draw.row) != (record.epoch, record.row):
            raise LedgerError(
                f"group {record.group_id} was row {record.row} of epoch {record.epoch} when it was admitted, and is "
                f"row {draw.row} of epoch {draw.epoch} now: resume with the [data] and run.seed the run began with"
            )
        return self._group(draw, record.policy_version)

    def dropped(self) -> None:
        """A group was dropped: one more is admitted in its place."""
        self.num_needed += 1

    def no_longer_needed(self, num_groups: int) -> None:
        """Admit so many groups fewer, or no more if they are fewer."""
        self.num_needed = max(self.num_needed - num_groups, 0)

    def _group(self, draw: Draw, policy_version: int) -> Group:
        self.next_group_id = draw.group_id + 1
        self.num_needed -= 1
        size = self._group_size + self._num_greedy
        return Group(
            draw.group_id,
            draw.prompt,
            size,
            min_version=policy_version,
            num_greedy=self._num_greedy,
            max_tokens=self.max_tokens,
            row=draw.row,
        )


# ── window ────────────────────────────────────────────────────────────────────────────────────
# Window: bound on the number of open groups, and so on how far rollouts run ahead of the trainer.
#
#     P groups per step, T steps per publish, S staleness:  W = floor((1 + S) P T)
#
#     admitted ─▶ consumed by a step ─▶ retired, once the weights that step made are live
#     └────────────── open: never more than W ──────────────┘
#
# Proof that this bounds staleness (order ``fifo``, S whole). The g-th group that is trained on is consumed in version
# ``g // (P T)``. It is admitted when at most W - 1 earlier groups are open, so the one W places before it has
# retired, so version ``(g - W) // (P T) + 1``, which is ``g // (P T) - S``, is live; and it is leased only to nodes
# that decode with that version or a newer one. So no token in it is older than S versions when it is trained on.
# Freeing the window when a batch is *taken*, before its weights are live, would admit groups that are already too
# stale.
#
# The size may change while the run goes on. A larger window admits more at once. A smaller one admits none until
# fewer groups are open than it holds; so at each admission at most W - 1 others are open, with the W of that moment.
#
# Dropped groups contribute to no weights and retire at once; while they are open they only make the bound tighter.


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
        self.consumed: dict[int, list[int]] = {}
        """Open groups of each step that trains on them, or has trained on them; its weights are not live yet."""
        self.peak = 0
        """Most groups ever open at once."""

    @property
    def num_open(self) -> int:
        return len(self._open)

    def resize(self, size: int) -> None:
        """Change the number of groups that may be open to ``size``."""
        self.room += size - self.size
        self.size = size

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
        if missing or step in self.consumed:
            raise BrokenInvariant(
                f"step {nth(step)} consumes groups {missing or group_ids} that are not open, or twice"
            )
        self.consumed[step] = group_ids

    def drop(self, group_id: int) -> None:
        """Retire one group: no step will consume it, or the weights it made are live."""
        if group_id not in self._open:
            raise BrokenInvariant(f"group {group_id} retired twice")
        self._open.remove(group_id)
        self.room += 1
        self.num_retired += 1

    def live(self, next_step: int) -> None:
        """Retire the groups of every step below ``next_step``: weights made of these steps are live."""
        for step in [step for step in self.consumed if step < next_step]:
            for group_id in self.consumed.pop(step):
                self.drop(group_id)
