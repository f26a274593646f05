"""
Limit on groups dropped in a row, and on groups that the trainer leaves out in a row.

Each dropped group is replaced by another one, so a run in which all fail (every prompt too long, a reward function that
always raises) would never end; and one whose trainer refuses every group would end without having trained.
"""

from asyncrl.errors import RunFailed

LEAST_IN_A_ROW = 32
LEAST_OVERLONG, WINDOWS_OVERLONG = 256, 16
"""Higher limits for over-long prompts: they are expected, and a sorted dataset has many in a row."""

OVERLONG = "overlong_prompt"
"""Reason for dropping a group with too many prompt tokens, with ``data.filter_overlong_prompts``."""


class DropLimit:
    """Counts drops since a group last became complete. One short-lived cause may fail a whole ``window`` of groups."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._in_a_row = self._untrained_in_a_row = 0
        self._overlong_in_a_row = 0

    def completed(self) -> None:
        self._in_a_row = self._overlong_in_a_row = 0

    def dropped(self, reason: str) -> None:
        """Count a dropped group; raises `RunFailed` with this reason if there are too many in a row."""
        if reason == OVERLONG:
            self._overlong_in_a_row += 1
            if self._overlong_in_a_row > max(LEAST_OVERLONG, WINDOWS_OVERLONG * self.window):
                raise RunFailed(
                    f"{self._overlong_in_a_row} prompts were filtered out because they have more than "
                    f"data.max_prompt_tokens tokens, and no group became complete meanwhile; raise it, or set "
                    f"data.truncation in place of data.filter_overlong_prompts"
                )
            return
        self._in_a_row += 1
        if self._in_a_row > self._most_in_a_row:
            raise RunFailed(
                f"{self._in_a_row} groups in a row were dropped and none became complete; the last one because of "
                f"{reason}"
            )

    def trained(self) -> None:
        self._untrained_in_a_row = 0

    def untrained(self, reason: str) -> None:
        """Count a group that the trainer left out; raises `RunFailed` with the reason after too many in a row."""
        self._untrained_in_a_row += 1
        if self._untrained_in_a_row > self._most_in_a_row:
            raise RunFailed(
                f"the trainer left out {self._untrained_in_a_row} groups in a row and trained on none; the last one "
                f"because of {reason}"
            )

    @property
    def _most_in_a_row(self) -> int:
        return max(LEAST_IN_A_ROW, 2 * self.window)
