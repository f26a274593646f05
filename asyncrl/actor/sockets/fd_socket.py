"""
A ZeroMQ socket in an asyncio loop, driven by its file descriptor.

`zmq.asyncio` costs nine times more CPU per message, and a receiver that is always ready never yields: heartbeats stop
under load. Here the loop watches the descriptor, and each wake-up reads for at most `DRAIN_S`. The descriptor is
edge-triggered: the socket's events are checked again in the same loop iteration after every send.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import zmq

DRAIN_S = 0.001
"""A budget of time and not of messages: decoding 256 batches may take two seconds."""

NOBLOCK, POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
"""Plain numbers: arithmetic on pyzmq's enums costs as much as a receive."""

TICK_S = 0.25
"""An idle socket processes what its I/O thread queued only when its events are read (libzmq issue 954)."""


class FdSocket:
    """
    Owner of one socket.

    Args:
        on_message: Called with the frames of each message.
        on_tick: Called every `TICK_S` seconds.
    """

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
        self._loop.add_reader(self._fd, self._check)
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._schedule_check()

    def send(self, frames: list[bytes]) -> bool:
        """Send without waiting. False if ZeroMQ's queue is full, a ROUTER has no such peer, or the socket is closed."""
        if self.closed:
            return False
        self._schedule_check()
        try:
            self._socket.send_multipart(frames, NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True

    def pause(self) -> None:
        """Stop receiving."""
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._schedule_check()

    def close(self, linger_ms: int = 0) -> None:
        """Close at once; ZeroMQ may go on sending for ``linger_ms``. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._tick_handle.cancel()
        self._loop.remove_reader(self._fd)
        self._socket.close(linger=linger_ms)

    def _schedule_check(self) -> None:
        if not self._scheduled and not self.closed:
            self._scheduled = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
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
        self._schedule_check()

    def _receive(self) -> list[zmq.Frame]:
        """One message. `recv_multipart` would ask the socket after each frame, at twice the cost."""
        frames = [self._socket.recv(NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(NOBLOCK, copy=False))
        return frames

    def _tick(self) -> None:
        self._tick_handle = self._loop.call_later(TICK_S, self._tick)
        self._check()
        self._on_tick()
