"""
Retirement of prompts that the policy has learned: they are not admitted again in later epochs.

    group complete ─▶ mean ``correct`` ≥ ``data.retire_at`` ─▶ its row is passed over from now on

Nothing is recorded for it: the records of rewards and admissions are replayed in their order, so a restarted broker
retires the same prompts at the same places. The ids of groups are places in the order of the data, so a prompt that is
passed over leaves out its id.
"""

from asyncrl.broker.groups.group import Group
from asyncrl.errors import RunFailed


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
        """Fields of an event if more prompts are retired than at the last call; empty otherwise."""
        if len(self._rows) <= self._num_reported:
            return {}
        self._num_reported = len(self._rows)
        return {"retired": len(self._rows), "prompts": self._num_rows}


def mean_correct(group: Group) -> float:
    """Mean ``correct`` over the trajectories of the group that are trained on."""
    return sum(slot.correct for slot in group.sampled) / len(group.sampled)
