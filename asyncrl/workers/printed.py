"""
Lines that the code in a worker prints, as events of level ``info`` where its node logs JSON.

    print("grading 3")  ─▶ {"event": "printed", "level": "info", "text": "grading 3"}

So that a log can be read without them. What is written to standard error or by child processes stays as it is. This
module needs the standard library of Python 3.9 alone: workers of environments load it under other interpreters.
"""

import atexit
import ctypes
import io
import json
import os
import sys

FORMAT_VARIABLE = "ASYNCRL_LOG_FORMAT"
"""Environment variable with the form of a node's log, ``json`` or ``text``, which its workers have too."""
PRINTED = "printed"
"""Name of the event."""
MAX_CHARS = 1 << 13
"""Characters after which a line is cut in two."""


class PrintedEvents(io.TextIOWrapper):
    """A text stream that writes an event for each line."""

    _rest = ""

    def write(self, text: str, /) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > MAX_CHARS:
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            super().write(json.dumps({"event": PRINTED, "level": "info", "text": line}) + "\n")
        return len(text)

    def finish(self) -> None:
        """End the last line."""
        if self._rest:
            self.write("\n")


def mark_prints() -> None:
    """Write what Python code prints from now on at once, as events if the node logs JSON."""
    if os.environ.get(FORMAT_VARIABLE) == "json":
        stream = sys.stdout = PrintedEvents(os.fdopen(1, "wb", closefd=False), line_buffering=True)
        atexit.register(stream.finish)
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # prints are not lost when the worker is killed


# ── prctl ─────────────────────────────────────────────────────────────────────────────────────
# ``prctl(2)`` for the processes of a worker; does nothing where there is no Linux.

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
