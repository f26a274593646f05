"""
A simulated network below the real `ZmqLink` and `ZmqHub`, in place of their sockets.

    ZmqLink ─▶ Session ─▶ Port.send ─▶ lost? duplicated? delayed? reordered? cut off? ─▶ Port ─▶ Session ─▶ ZmqHub

It is harsher than TCP below ZeroMQ, which loses frames only when a connection breaks and never reorders them. Frames
that a process sent before it was killed may arrive after its restart. Frames of a hub are dropped once another hub is
bound to the address, because the new one answers `Reset`.
"""

import asyncio
import re
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import Any

import zmq
from msgspec import Struct

from asyncrl.messages.codec import Ack
from asyncrl.messages.wire import CODEC
from asyncrl.wire.sockets import TICK_S
from tests.simulation.trace import Trace
from tests.simulation.virtual_time import PROCESS, VirtualLoop

NO_PROCESS = Context()
"""Context of frames in transit: no process."""


class Weather(Struct):
    """Mean delay of a frame, and probabilities of its faults."""

    delay_s: float = 0.001
    """Mean delay in seconds."""
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0


class Frame:
    """The part of `zmq.Frame` that is used."""

    def __init__(self, content: bytes) -> None:
        self.bytes = content
        self.buffer = memoryview(content)

    def __len__(self) -> int:
        return len(self.bytes)


class Socket:
    """The part of `zmq.Socket` that is used before it is given to `FdSocket`."""

    def __init__(self, network: "Network", kind: int) -> None:
        self.is_hub = kind == zmq.ROUTER
        self.address = ""
        self.routing_id = b""
        self._network = network

    def setsockopt(self, option: int, value: Any) -> None:
        """Stores the routing id; other options have no effect."""
        if option == zmq.ROUTING_ID:
            self.routing_id = value

    def connect(self, address: str) -> None:
        self.address = address

    def bind(self, address: str) -> None:
        """Bind a ROUTER; port 0 takes a free port."""
        self.address = self._network.free_address() if address.endswith("*") else address

    def getsockopt_string(self, _option: int) -> str:
        return self.address


class Port:
    """Stand-in for `FdSocket`: one end of a connection, owned by a process."""

    def __init__(
        self,
        network: "Network",
        socket: Socket,
        on_message: Callable[[list[Frame]], None],
        on_tick: Callable[[], None],
    ) -> None:
        self.socket = socket
        self.process = PROCESS.get()
        self.context = copy_context()
        self.closed = False
        self._network = network
        self._on_message = on_message
        self._on_tick = on_tick
        self._waiting: list[list[Frame]] | None = None
        """Frames received while paused; None while not paused."""
        self._loop = asyncio.get_running_loop()
        self._ticks = self._loop.call_later(TICK_S, self._tick)
        network.plug_in(self)

    def send(self, frames: list[bytes]) -> bool:
        """Send a frame. Returns False if a hub has no such link."""
        if self.closed or not self.process.is_alive:
            return False
        if self.socket.is_hub:
            return self._network.to_link(self, *frames)
        return self._network.to_hub(self, frames[0])

    def take(self, frames: list[Frame]) -> None:
        if self._waiting is not None:
            self._waiting.append(frames)
        elif not self.closed and self.process.is_alive:
            self._on_message(frames)

    def pause(self) -> None:
        self._waiting = [] if self._waiting is None else self._waiting

    def resume(self) -> None:
        if self._waiting:
            for frames in self._waiting:
                self._loop.call_soon(self.take, frames)
        self._waiting = None

    def close(self, linger_ms: int = 0) -> None:
        self.closed = True
        self._ticks.cancel()

    def _tick(self) -> None:
        if self.process.is_alive:
            self._ticks = self._loop.call_later(TICK_S, self._tick)
            self._on_tick()


class Network:
    """The network of one schedule."""

    def __init__(self, loop: VirtualLoop, dice: Random, weather: Weather, trace: Trace) -> None:
        self.weather = weather
        self._loop = loop
        self._dice = dice
        self._trace = trace
        self._hubs: dict[str, Port] = {}
        self._links: dict[tuple[str, bytes], Port] = {}
        self._last_s: dict[tuple[str, bytes, bool], float] = {}
        """Arrival time of the newest frame by direction."""
        self._cut: dict[str, bool] = {}
        """Unreachable processes; True if their frames are held until they are reachable again, False if lost."""
        self._ports = count(20_000)

    # ── stand-ins for pyzmq ─────────────────────────────────────────────────────────────────

    def socket(self, _context: object, kind: int, _max_frame_bytes: int) -> Socket:
        return Socket(self, kind)

    def attach(self, socket: Socket, on_message: Callable[..., None], on_tick: Callable[[], None]) -> Port:
        return Port(self, socket, on_message, on_tick)

    def free_address(self) -> str:
        """An address with an unused port."""
        return f"ipc://{next(self._ports)}"

    # ── faults ──────────────────────────────────────────────────────────────────────────────

    def cut(self, name: str, *, holds: bool) -> None:
        """Make a process unreachable. Its frames are held or lost."""
        self._cut[name] = holds

    def mend(self, name: str) -> None:
        self._cut.pop(name, None)

    # ── frames ──────────────────────────────────────────────────────────────────────────────

    def plug_in(self, port: Port) -> None:
        """Register a connected or bound socket."""
        socket = port.socket
        if socket.is_hub:
            self._hubs[socket.address] = port
        else:
            self._links[socket.address, socket.routing_id] = port

    def to_hub(self, link: Port, frame: bytes) -> bool:
        address, routing_id = link.socket.address, link.socket.routing_id

        def arrive() -> None:
            self._deliver(self._hubs.get(address), link, [Frame(routing_id), Frame(frame)])

        self._travel((address, routing_id, True), arrive)
        return True

    def to_link(self, hub: Port, routing_id: bytes, frame: bytes) -> bool:
        address = hub.socket.address
        link = self._links.get((address, routing_id))
        if link is None or link.closed or not link.process.is_alive:
            return False

        def arrive() -> None:
            self._deliver(link, hub, [Frame(frame)])

        self._travel((address, routing_id, False), arrive)
        return True

    def _travel(self, way: tuple[str, bytes, bool], arrive: Callable[[], None]) -> None:
        dice, weather = self._dice, self.weather
        luck = dice.random()
        if luck < weather.loss:
            return
        due_s = self._loop.time() + dice.expovariate(1 / weather.delay_s)
        if luck < weather.loss + weather.duplication:
            self._loop.call_at(due_s + dice.expovariate(1 / (20 * weather.delay_s)), arrive, context=NO_PROCESS)
        if luck > 1 - weather.reordering:
            due_s += dice.expovariate(1 / (5 * weather.delay_s))
        else:
            due_s = self._last_s[way] = max(due_s, self._last_s.get(way, 0.0))
        self._loop.call_at(due_s, arrive, context=NO_PROCESS)

    def _deliver(self, port: Port | None, sender: Port, frames: list[Frame]) -> None:
        if port is None or port.closed or not port.process.is_alive:
            return
        if sender.socket.is_hub and self._hubs[sender.socket.address] is not sender:
            return  # The connection ended with the hub.
        for name in (port.process.name, sender.process.name):
            if (holds := self._cut.get(name)) is not None:
                if holds:
                    self._loop.call_later(0.5, self._deliver, port, sender, frames, context=NO_PROCESS)
                return
        if self._trace.is_on:
            self._trace_frame(port, sender, frames[-1])
        self._loop.call_soon(port.take, frames, context=port.context)

    def _trace_frame(self, port: Port, sender: Port, frame: Frame) -> None:
        envelope = CODEC.decode(frame.bytes)
        if not isinstance(envelope.body, Ack) and type(envelope.body).__name__ not in ("Beat", "Welcome"):
            body = re.sub("<memory at 0x[0-9a-f]+>", "…", str(envelope.body))  # Addresses differ from run to run.
            self._trace.say(f"─▶ {port.process.name}  #{envelope.seq} {body}", sender.process.name)
