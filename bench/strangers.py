"""
Attackers that do not know the secret of the run, and the honest trainer whose rate is measured meanwhile.

An attacker turns every few seconds from the broker to a sink, a bare ZeroMQ ROUTER with keys of its own, and back: the
same work for the machine, another victim. The rates of the honest run in both are compared.
"""

import asyncio
import contextlib
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Generator
from pathlib import Path

import holders
import keyed
import msgspec
import uvloop
import zmq
from meter import Rate, cpu_s
from msgspec import Struct
from ours.durable import _join, _Trainer
from processes import report
from zmq.utils import z85

from asyncrl.cli import node
from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.session import Hello
from asyncrl.messages.supervisor import Exited
from asyncrl.messages.trainer import Stepped
from asyncrl.messages.wire import PROTOCOL
from asyncrl.wire.handshake import identity

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
BIG = 4 << 20
SETTLE_S = 0.7
"""Pause after a change of the victim."""
COUNT = struct.Struct("dd")
"""Trajectories so far, and the time of the last one."""
HONEST = ("producer", "reward", "consumer", "spool")


class Window(Struct, frozen=True):
    """Some seconds of one victim."""

    victim: str
    trajectories_per_s: float
    peak_kib: int
    """Most resident memory of the broker."""
    broker_cpu: float
    """Cores used by the broker."""
    num: int
    """Frames or connections of the attacker."""


# ── honest ──────────────────────────────────────────────────────────────────────────────────


class Counter:
    """Counts like a `Meter`, for other processes to read, and never ends."""

    rate: Rate | None = None

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(COUNT.size)
            self._count = mmap.mmap(file.fileno(), COUNT.size)
        self._num = 0

    def add(self, num: int, num_bytes: int) -> None:
        self._num += num
        self._count[:] = COUNT.pack(self._num, time.perf_counter())


async def _consume(address: str, path: str) -> None:
    link, spools, _ = await _join(address, identity("trainer", "consumer"))
    trainer = _Trainer(link, spools, Counter(Path(path)))  # type: ignore[arg-type]
    await asyncio.gather(trainer.serve(), trainer.train())


def consume(address: str, path: str) -> None:
    uvloop.run(_consume(address, path))


# ── what is attacked ────────────────────────────────────────────────────────────────────────


def broker(sink_port: str, *arguments: str) -> None:
    """Run a broker in this process, and a sink in another one: a kernel that groups by session gives both one share."""
    if os.fork() == 0:
        _sink(sink_port)
    node.main(list(arguments))


def _sink(port: str) -> None:
    """A ROUTER with the broker's key, which lets everybody in, or with one that nobody knows."""
    keys = keyed.hub_keys()
    router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    router.setsockopt(zmq.MAXMSGSIZE, BIG)
    router.setsockopt(zmq.BACKLOG, 4096)
    router.setsockopt(zmq.HANDSHAKE_IVL, 5000)
    router.setsockopt(zmq.CURVE_SERVER, 1)
    router.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.private) if keys else zmq.curve_keypair()[1])
    router.bind(f"tcp://127.0.0.1:{port}")
    while True:
        router.recv_multipart()


def attack(kind: str, ports: str, seconds: str, rounds: str, *where: str) -> None:
    """Attack sink and broker in turn; ``ports`` are theirs; ``where`` is the broker's process and a folder."""
    broker_pid, path = where
    victims = dict(zip(("sink", "broker"), map(int, ports.split(",")), strict=True))
    recorded = Path(path) / "recorded.bin"
    chunks = msgspec.msgpack.decode(recorded.read_bytes()) if recorded.exists() else []
    windows = []
    for turn in range(int(rounds)):
        for victim in sorted(victims, reverse=bool(turn % 2)):
            attacker = (KINDS | holders.KINDS)[kind](victims[victim], chunks)
            next(attacker)
            windows.append(_measured(victim, attacker, float(seconds), int(broker_pid), Path(path)))
            attacker.close()
            time.sleep(SETTLE_S)
    report(path, windows)


def _measured(victim: str, attacker: Generator[int, None, None], seconds: float, pid: int, path: Path) -> Window:
    """Attack for ``seconds``; the sink for longer if need be: rates are divided by what goes on beside that attack."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets VmHWM
    cpu, start_s, (num_before, at_s) = cpu_s(pid), time.perf_counter(), read_count(path / "count")
    num, is_peer = 0, victim == "sink"
    while time.perf_counter() - start_s < seconds or (is_peer and read_count(path / "count")[0] == num_before):
        num += next(attacker)
    took_s, (num_after, until_s) = time.perf_counter() - start_s, read_count(path / "count")
    rate = (num_after - num_before) / max(until_s - at_s, took_s / 2)
    return Window(victim, rate, memory_kib(pid, "VmHWM"), (cpu_s(pid) - cpu) / took_s, num)


def read_count(path: Path) -> tuple[float, float]:
    """Trajectories so far, and the time of the last one."""
    data = path.read_bytes() if path.exists() else b""
    num, at_s = COUNT.unpack(data) if len(data) == COUNT.size else (0.0, 0.0)
    return num, at_s


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{field}:")[2].split()[0])


# ── attackers: generators that do a little at a time, and yield the number of frames or connections ─────────────────


def _frames(rng: random.Random, num: int) -> bytes:
    """Frames of ZMTP with messages of every role, one byte in thirty of them changed."""
    out = bytearray()
    for _ in range(num):
        body = encode(Envelope(rng.randrange(3), 0, rng.choice(MESSAGES)))
        out += bytes((0, len(body))) + body
    for _ in range(len(out) // 30):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


MESSAGES = [
    Hello(PROTOCOL, "trainer", "trainer-0", "1"),
    Exited("trainer-0", "bug", restarting=False),
    Stepped(10**7, 1, {}),
]


def mutated(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """A thousand mutated frames to a connection: after nothing, a greeting, or a mutated recorded handshake."""
    rng = random.Random(port)
    pool = [_frames(rng, 1000) for _ in range(20)]
    yield 0
    while True:
        start = rng.choice((b"", GREETING, b"".join(chunks[:2])))
        with _connected(port) as stranger:
            _send(stranger, start + rng.choice(pool))
        yield 1000


def dealers(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """DEALERs without a mechanism, with a password, and with a key that is not the hub's."""
    rng, frame = random.Random(port), encode(Envelope(1, 0, MESSAGES[0]))
    context = zmq.Context()
    try:
        yield 0
        while True:
            crowd = [_dealer(context, index % 3) for index in range(24)]
            for dealer in crowd:
                dealer.connect(f"tcp://127.0.0.1:{port}")
            for _ in range(20):
                for dealer in crowd:
                    changed = bytearray(frame)
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
                    with contextlib.suppress(zmq.Again):
                        dealer.send(bytes(changed), zmq.NOBLOCK)
            time.sleep(0.02)
            for dealer in crowd:
                dealer.close(linger=0)
            yield 20 * len(crowd)
    finally:
        context.destroy(linger=0)


def _dealer(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, b"trainer-0.1")
    if kind == 1:
        dealer.setsockopt(zmq.PLAIN_USERNAME, b"root")
        dealer.setsockopt(zmq.PLAIN_PASSWORD, b"root")
    elif kind == 2:
        public, private = zmq.curve_keypair()
        dealer.setsockopt(zmq.CURVE_SERVERKEY, public)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, private)
    return dealer


def oversize(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """Frames that announce 2^62 bytes, and a megabyte of them."""
    megabyte = bytes(1 << 20)
    yield 0
    while True:
        with _connected(port) as stranger:
            _send(stranger, GREETING + b"\x06" + (1 << 62).to_bytes(8, "big"))
            _send(stranger, megabyte)
        yield 1


def unfinished(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """A handshake of 4 MiB in many connections at once that lacks its last byte, on connections that stay open."""
    command = GREETING + b"\x06" + (BIG - 1).to_bytes(8, "big") + bytes(BIG - 2)
    yield from _held(port, command, most=400)


def multipart(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """Frames that all announce another one."""
    yield from _held(port, GREETING + (b"\x01\xff" + bytes(255)) * 1000, most=400)


def replay(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """The recorded bytes of an honest node, in the rhythm in which it sent them."""
    yield 0
    while True:
        with _connected(port) as stranger:
            stranger.settimeout(0.02)
            for chunk in chunks:
                _send(stranger, chunk)
                with contextlib.suppress(OSError):
                    if not stranger.recv(4096):
                        break
        yield 1


def idle(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """A thousand connections that say nothing."""
    yield from _held(port, b"", most=1000, pause_s=0.01)


def flood(port: int, chunks: list[bytes]) -> Generator[int, None, None]:
    """Connect, greet, close, as fast as it goes."""
    yield 0
    while True:
        with _connected(port) as stranger:
            _send(stranger, GREETING)
        yield 1


def _held(port: int, sent: bytes, *, most: int, pause_s: float = 0.0) -> Generator[int, None, None]:
    """Hold up to ``most`` connections open; when there are more, the oldest is closed."""
    held: list[socket.socket] = []
    try:
        yield 0
        while True:
            stranger = _connected(port)
            held.append(stranger)
            _send(stranger, sent)
            if len(held) > most:
                held.pop(0).close()
                time.sleep(pause_s)
            yield 1
    finally:
        for stranger in held:
            stranger.close()


def _connected(port: int) -> socket.socket:
    for _ in range(100):
        with contextlib.suppress(OSError):
            stranger = socket.create_connection(("127.0.0.1", port), timeout=0.5)
            # Closed by a reset, so that no port of the attacker is left waiting.
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return stranger
        time.sleep(0.01)
    raise OSError(f"nobody accepts at port {port}")


def _send(stranger: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # The other end closed the connection, which is its right.
        stranger.sendall(data)


KINDS: dict[str, Callable[[int, list[bytes]], Generator[int, None, None]]] = {
    function.__name__: function for function in (mutated, dealers, oversize, unfinished, multipart, replay, idle, flood)
}
CHILDREN = {"consume": consume, "broker": broker, "attack": attack}
