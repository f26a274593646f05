"""
States of child processes, which report to this process as to their service manager.

    child ─ X_STATE=ready ─▶ socket ─ the kernel names the sender's process id ─▶ `ChildStates`
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncrl.node.process.service_manager import ADDRESS_VARIABLE, STATE

REPORT_BYTES = 4096
CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a sender: ``struct ucred`` of unix(7)."""


class ChildStates:
    """The last state that each child reported. Use `received` to hear from them."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")  # The kernel chooses a free name, which needs no file.
        self._states: dict[int, str] = {}

    def environment(self) -> dict[str, str]:
        """Variables with which a child reports here."""
        return {ADDRESS_VARIABLE: f"@{self._socket.getsockname()[1:].decode()}"}

    def is_ready(self, pid: int | None) -> bool:
        """True if the process ``pid`` does its work, as it last said."""
        return self._states.get(pid or 0) == "ready"

    @contextmanager
    def received(self, changed: Callable[[], None]) -> Iterator[None]:
        """Take reports, and call ``changed`` after each, until the block ends; then close the socket."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._take, changed)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)
            self._socket.close()

    def _take(self, changed: Callable[[], None]) -> None:
        text, (*_, (_, _, sender)), _, _ = self._socket.recvmsg(REPORT_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        pid, uid, _ = CREDENTIALS.unpack(sender)
        fields = dict(line.partition("=")[::2] for line in text.decode(errors="replace").splitlines())
        if uid == os.getuid() and STATE in fields:  # Any user of the machine reaches the socket.
            self._states[pid] = fields[STATE]
            changed()
