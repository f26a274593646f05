"""
Lower bound for durable transfer: a relay that writes payloads to disk before it forwards them, and nothing else.

    producer ─ DEALER ─▶ ROUTER log ROUTER ─▶ DEALER ─ consumer         batch: one frame of checksums and payloads
       ▲                      │ received batches ─ writev ─ fdatasync ─▶ disk, then forward
       └─────────────────── credit ──────────────────┘

Three blocking processes without leases, grading, accounting, acknowledgements or recovery. The consumer verifies
checksums, as asyncrl does. No system that makes a trajectory durable before its use can do less on this machine.
"""

import os
import struct
import zlib
from itertools import cycle
from pathlib import Path

import zmq
from meter import Meter, Rate
from payloads import batches, decode
from peers.raw_zmq import CONSUMER, PATIENCE_S, PRODUCER, drain, feed
from processes import Processes, free_address, report

SEGMENT_BYTES = 32 << 20
MAX_BUFFERS = 1024
CHECKSUM_BYTES = 4


async def flow(processes: Processes, batch: int, seconds: float) -> Rate:
    """Trajectories per second through the log."""
    address = free_address()
    log = await processes.start(__name__, "keep", address, str(processes.path))
    await processes.start(__name__, "produce", address, batch)
    consumer = await processes.start(__name__, "consume", address, batch, seconds, log.pid or 0, str(processes.path))
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


def keep(address: str, directory: str) -> None:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.bind(address)
    while True:
        with (Path(directory) / "segment").open("wb", buffering=0) as segment:
            while segment.tell() < SEGMENT_BYTES:
                frames = _gather(socket)
                _write(segment.fileno(), [frame.buffer for frame in frames])
                for frame in frames:
                    socket.send_multipart([CONSUMER, frame], copy=False)


def _gather(socket: "zmq.Socket[bytes]") -> list[zmq.Frame]:
    """Receive waiting batches, at least one; forward credit immediately."""
    arrived: list[zmq.Frame] = []
    while True:
        try:
            sender, body = socket.recv_multipart(zmq.NOBLOCK if arrived else 0, copy=False)
        except zmq.Again:
            return arrived
        if sender.bytes == PRODUCER:
            arrived.append(body)
            if len(arrived) == MAX_BUFFERS:
                return arrived
        else:
            socket.send_multipart([PRODUCER, body], copy=False)


def _write(fd: int, buffers: list[memoryview]) -> None:
    if os.writev(fd, buffers) != sum(buffer.nbytes for buffer in buffers):
        raise OSError("writev wrote only a part of the batches")
    os.fdatasync(fd)


def produce(address: str, batch: str) -> None:
    feed(address, map(_frame, cycle(batches(int(batch)))))


def _frame(payloads: list[bytes]) -> bytes:
    return b"".join([struct.pack(f"<{len(payloads)}I", *map(zlib.crc32, payloads)), *payloads])


def consume(address: str, batch: str, seconds: str, log_pid: str, result: str) -> None:
    num = int(batch)

    def read(body: memoryview) -> None:
        payloads = body[CHECKSUM_BYTES * num :]
        size = len(payloads) // num
        for place, checksum in enumerate(struct.unpack_from(f"<{num}I", body)):
            payload = payloads[place * size : (place + 1) * size]
            if zlib.crc32(payload) != checksum:
                raise ValueError("checksum mismatch: a payload is damaged")
            decode(payload)

    report(result, drain(address, num, Meter(float(seconds), int(log_pid)), read))


CHILDREN = {"keep": keep, "produce": produce, "consume": consume}
