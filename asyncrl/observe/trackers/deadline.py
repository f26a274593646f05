"""The end of a call into somebody else's code that does not come back."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncrl.errors import TrackerError


def leave(why: str) -> None:
    """End this process at once, as its command would with that error."""
    sys.stderr.write(f"asyncrl: {why}\n")
    sys.stderr.flush()
    os._exit(TrackerError.exit_code)


class Deadline:
    """
    How long each call may take.

    No thread can be made to give up what it waits for; a process can. So that is what a call that hangs costs.

    Args:
        seconds: For one call.
        expired: What is done then, in another thread; it is given the reason.
    """

    def __init__(self, seconds: float, expired: Callable[[str], None] = leave) -> None:
        self._seconds = seconds
        self._expired = expired

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """For the call within."""
        timer = threading.Timer(self._seconds, self._expired, [f"{what} took more than {self._seconds:g} s"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
