"""Time limit for calls into third-party code that may hang."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncrl.errors import TrackerError


def leave(why: str) -> None:
    """Print ``why`` and exit this process at once, with the exit code of `TrackerError`."""
    sys.stderr.write(f"asyncrl: {why}\n")
    sys.stderr.flush()
    os._exit(TrackerError.exit_code)


class Deadline:
    """
    Time limit of each call. A call that exceeds it makes another thread call ``expired`` with the reason.

    A blocked thread cannot be interrupted, but its process can be ended; the default `leave` does that.
    """

    def __init__(self, seconds: float, expired: Callable[[str], None] = leave) -> None:
        self._seconds = seconds
        self._expired = expired

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Context that applies the limit; ``what`` names the call in the reason."""
        timer = threading.Timer(self._seconds, self._expired, [f"{what} took more than {self._seconds:g} s"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
