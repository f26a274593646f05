"""Groups dropped one after another: bad luck now and then, a mistake somewhere if nothing else ever happens."""

from asyncrl.errors import RunFailed

LEAST_IN_A_ROW = 32


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

    def completed(self) -> None:
        """Every trajectory of a group has a reward: whatever it was, it is not everything."""
        self._in_a_row = 0

    def dropped(self, reason: str) -> None:
        """
        A group was given up.

        Raises:
            RunFailed: Too many in a row; names the reason of this one.
        """
        self._in_a_row += 1
        if self._in_a_row > self._limit:
            raise RunFailed(
                f"{self._in_a_row} groups in a row were dropped and none became complete; the last one because of "
                f"{reason}"
            )
