"""Groups dropped one after another: bad luck now and then, a mistake somewhere if nothing else ever happens."""

from asyncrl.errors import RunFailed

LEAST_IN_A_ROW = 32
LEAST_OVERLONG, WINDOWS_OVERLONG = 256, 16
"""A dataset may well be sorted, and its long prompts are expected: there is more patience with them."""

OVERLONG = "overlong_prompt"
"""Why a group is dropped whose prompt has too many tokens, where such are filtered out."""


class DropBook:
    """
    Counts drops since a group last became complete.

    Without it a run whose every group fails (each prompt too long, a reward function that always raises) would make up
    for each of them with another one, for ever.

    Args:
        window: Most groups open at once: so many may fail of one short-lived cause.
    """

    def __init__(self, window: int) -> None:
        self._limit = max(LEAST_IN_A_ROW, 2 * window)
        self._in_a_row = 0
        self._overlong_limit = max(LEAST_OVERLONG, WINDOWS_OVERLONG * window)
        self._overlong_in_a_row = 0

    def completed(self) -> None:
        """Every trajectory of a group has a reward: whatever it was, it is not everything."""
        self._in_a_row = self._overlong_in_a_row = 0

    def dropped(self, reason: str) -> None:
        """
        A group was given up.

        Raises:
            RunFailed: Too many in a row; names the reason of this one.
        """
        if reason == OVERLONG:
            self._overlong()
            return
        self._in_a_row += 1
        if self._in_a_row > self._limit:
            raise RunFailed(
                f"{self._in_a_row} groups in a row were dropped and none became complete; the last one because of "
                f"{reason}"
            )

    def _overlong(self) -> None:
        self._overlong_in_a_row += 1
        if self._overlong_in_a_row > self._overlong_limit:
            raise RunFailed(
                f"{self._overlong_in_a_row} prompts were filtered out because they have more than "
                f"data.max_prompt_tokens tokens, and no group became complete meanwhile; raise it, or set "
                f"data.truncation in place of data.filter_overlong_prompts"
            )
