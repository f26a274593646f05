"""What child processes say, passed on to standard error as it comes; the end of it is kept, to say why they ended."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

STANDARD_ERROR = 2
CHUNK_BYTES = 1 << 16


class Relay:
    """
    One pipe for each life of a child.

    Args:
        kept_bytes: How much of the end is kept.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._kept = b""
        self._pipe: int | None = None
        """Where the present child's output is read; also what it started writes there, so it may outlive the child."""

    @contextlib.contextmanager
    def end(self) -> Iterator[BinaryIO]:
        """The end that a child writes to, for as long as it takes to start it."""
        self._close()
        self._kept = b""
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._pass_on)
        with os.fdopen(end, "wb") as writable:
            yield writable

    def tail(self) -> bytes:
        """The last that was said."""
        while self._pass_on():
            pass
        return self._kept

    def _pass_on(self) -> bool:
        """True if there may be more."""
        if self._pipe is None:
            return False
        try:
            said = os.read(self._pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not said:
            self._close()
            return False
        with contextlib.suppress(OSError):  # A standard error that takes nothing is no reason to end children.
            os.write(STANDARD_ERROR, said)
        self._kept = (self._kept + said)[-self._kept_bytes :]
        return True

    def _close(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
