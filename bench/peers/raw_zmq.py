"""
Upper bound for throughput: three blocking pyzmq processes with credits; no accounting, acknowledgements or disk.

    producer ─ DEALER ─▶ ROUTER relay ROUTER ─▶ DEALER ─ consumer         batch: one frame of concatenated payloads
       ▲─────────────────── credit ──────────────┘
"""

import time
from collections.abc import Callable, Iterator
from itertools import cycle

import zmq
from meter import Meter, Rate
from payloads import batches, decode
from processes import Processes, free_address, report

NAME = "raw zmq relay"
REQUIRES = "zmq"
WINDOW = 2048
"""Maximum trajectories between producer and consumer."""
MIN_BATCHES = 8
PATIENCE_S = 60.0

PRODUCER, CONSUMER = b"producer", b"consumer"


async def flow(processes: Processes, batch: int, seconds: float) -> Rate:
    """Trajectories per second through the relay."""
    address = free_address()
    relaying = await processes.start(__name__, "relay", address)
    await processes.start(__name__, "produce", address, batch)
    consumer = await processes.start(
        __name__, "consume", address, batch, seconds, relaying.pid or 0, str(processes.path)
    )
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


async def round_trips(processes: Processes, seconds: float) -> list[float]:
    """Seconds of each call of an echo process."""
    address = free_address()
    await processes.start(__name__, "echo", address)
    caller = await processes.start(__name__, "call", address, seconds, str(processes.path))
    return await processes.result(caller, list[float], seconds + PATIENCE_S)


def relay(address: str) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.bind(address)
    while True:
        sender, body = socket.recv_multipart(copy=False)
        socket.send_multipart([CONSUMER if sender.bytes == PRODUCER else PRODUCER, body], copy=False)


def produce(address: str, batch: str) -> None:
    feed(address, cycle([b"".join(some) for some in batches(int(batch))]))


def feed(address: str, frames: Iterator[bytes]) -> None:
    """Send one frame for each credit, endlessly."""
    socket = dealer(address, PRODUCER)
    while True:
        for _ in range(int(socket.recv())):
            socket.send(next(frames), copy=False)


def consume(address: str, batch: str, seconds: str, relay_pid: str, result: str) -> None:
    num = int(batch)

    def read(body: memoryview) -> None:
        size = len(body) // num
        for first in range(0, len(body), size):
            decode(body[first : first + size])

    report(result, drain(address, num, Meter(float(seconds), int(relay_pid)), read))


def drain(address: str, num: int, meter: Meter, read: Callable[[memoryview], None]) -> Rate:
    """Receive batches of ``num`` trajectories, pass them to ``read`` and grant credit until ``meter`` finishes."""
    socket = dealer(address, CONSUMER)
    window = max(MIN_BATCHES, WINDOW // num)
    time.sleep(0.5)  # The relay cannot route credit to a producer that has not connected yet.
    socket.send(str(window).encode())
    owed = 0
    while meter.rate is None:
        body = socket.recv(copy=False).buffer
        read(body)
        meter.add(num, len(body))
        owed += 1
        if owed >= window // 4:
            socket.send(str(owed).encode())
            owed = 0
    return meter.rate


def echo(address: str) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(address)
    while True:
        socket.send_multipart(socket.recv_multipart())


def call(address: str, seconds: str, result: str) -> None:
    socket = dealer(address, b"caller")
    took_s: list[float] = []
    ends_s = time.perf_counter() + float(seconds)
    while (start_s := time.perf_counter()) < ends_s:
        socket.send(bytes(100))
        socket.recv()
        took_s.append(time.perf_counter() - start_s)
    report(result, took_s)


def dealer(address: str, name: bytes) -> "zmq.Socket[bytes]":
    """A socket with identity ``name``, connected to the relay."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, name)
    socket.connect(address)
    return socket


CHILDREN = {"relay": relay, "produce": produce, "consume": consume, "echo": echo, "call": call}
