"""
A ZeroMQ socket in an asyncio loop, by its file descriptor.

`zmq.asyncio` costs nine times more CPU per message and, worse, an always-ready receiver never yields: heartbeats stop
exactly under load. Here the descriptor wakes us, we drain without blocking for at most `DRAIN_S`, then let the loop
turn. The descriptor is edge-triggered, so after every send its events are looked at again within the same turn.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import zmq

DRAIN_S = 0.001
"""A budget of time, not of messages: decoding 256 batches may take two seconds."""

NOBLOCK, POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
"""As plain numbers: arithmetic on pyzmq's enums costs as much as a receive."""

TICK_S = 0.25
"""An idle socket does not process what its I/O thread queued (libzmq 954); looking at its events does."""


class FdSocket:
    """Owns the socket. Calls ``on_message`` with the frames of each message, ``on_tick`` now and then."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        on_message: Callable[[list[zmq.Frame]], None],
        on_tick: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._on_message = on_message
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._fd = socket.fileno()
        self._scheduled = False
        self._paused = False
        self.closed = False
        self._loop.add_reader(self._fd, self._look)
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._look_soon()

    def send(self, frames: list[bytes]) -> bool:
        """Send, or return False: ZeroMQ's queue is full, a ROUTER has no such peer now, or this is closed."""
        if self.closed:
            return False
        self._look_soon()
        try:
            self._socket.send_multipart(frames, NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def pause(self) -> None:
        """Stop receiving: whoever consumes is behind."""
        self._paused = True

    def resume(self) -> None:
        """Go on receiving."""
        if self._paused:
            self._paused = False
            self._look_soon()

    def close(self, linger_ms: int = 0) -> None:
        """Close at once; ``linger_ms`` is how long ZeroMQ may go on sending. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._tick_handle.cancel()
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=linger_ms)

    def _look_soon(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        if self.closed:
            return
        events = cast("int", self._socket.getsockopt(zmq.EVENTS))
        if events & POLLIN and not self._paused:
            self._drain()

    def _drain(self) -> None:
        deadline = self._loop.time() + DRAIN_S
        while not (self._paused or self.closed):
            try:
                frames = self._receive()
            except zmq.Again:
                return
            self._on_message(frames)
            if self._loop.time() > deadline:
                break
        self._look_soon()

    def _receive(self) -> list[zmq.Frame]:
        """As `recv_multipart`, which asks the socket itself whether more is to come, for twice the price."""
        frames = [self._socket.recv(NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(NOBLOCK, copy=False))
        return frames

    def _tick(self) -> None:
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._look()
        self._on_tick()
