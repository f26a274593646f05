"""Output of a child process, copied to standard error as it arrives; its end is kept to explain an exit."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import BinaryIO

STANDARD_ERROR = 2
CHUNK_BYTES = 1 << 16


class Relay:
    """
    One pipe for each start of a child.

    Args:
        kept_bytes: Bytes of the end of the output that are kept.
    """

    def __init__(self, kept_bytes: int) -> None:
        self._kept_bytes = kept_bytes
        self._kept = b""
        self._pipe: int | None = None
        """Read end for the running child. Processes that the child started write here too and may outlive it."""

    @contextlib.contextmanager
    def end(self) -> Iterator[BinaryIO]:
        """The write end, open while the child is started."""
        self._close()
        self._kept = b""
        self._pipe, end = os.pipe()
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._pass_on)
        with os.fdopen(end, "wb") as writable:
            yield writable

    def tail(self) -> bytes:
        """The last ``kept_bytes`` of the output."""
        while self._pass_on():
            pass
        return self._kept

    def _pass_on(self) -> bool:
        """Copy one chunk; True if there may be more."""
        if self._pipe is None:
            return False
        try:
            output = os.read(self._pipe, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not output:
            self._close()
            return False
        with contextlib.suppress(OSError):  # A closed standard error is no reason to end children.
            os.write(STANDARD_ERROR, output)
        self._kept = (self._kept + output)[-self._kept_bytes :]
        return True

    def _close(self) -> None:
        if self._pipe is not None:
            asyncio.get_running_loop().remove_reader(self._pipe)
            os.close(self._pipe)
            self._pipe = None
