"""
What somebody without a key tries from another machine. Prints what came back, as JSON.

    python -m tests.cluster.intruder record PORT HOST:PORT FILE      proxy of one honest connection, which it keeps
    python -m tests.cluster.intruder attack HOST:PORT BROKER_PUBLIC FILE
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
from pathlib import Path

import zmq
from zmq.utils import z85

from asyncrl.messages.codec import Envelope, encode
from asyncrl.messages.session import Hello
from asyncrl.messages.wire import PROTOCOL
from asyncrl.wire.curve import new_pair

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
"""First bytes of ZMTP 3.1 (rfc.zeromq.org/spec/37)."""
CURVE_HELLO_BYTES = 202
QUIET_S = 0.5
CHUNK = 65536


def greeting(mechanism: bytes) -> bytes:
    return SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def attack(address: tuple[str, int], broker_public: bytes, recorded: bytes) -> dict[str, int]:
    """Bytes, or messages of sockets, that came back, by what was sent."""
    hello = encode(Envelope(1, 0, Hello(PROTOCOL, "trainer", "trainer", "1")))
    ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    tried = {
        "nothing": b"",
        "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
        "random": os.urandom(4000),
        "NULL": greeting(b"NULL") + ready + bytes((0, len(hello))) + hello,
        "PLAIN": greeting(b"PLAIN") + b"\x04\x10\x05HELLO\x04root\x04root",
        "CURVE garbage": greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + os.urandom(194),
        "largest frame": greeting(b"CURVE") + b"\x06" + (1 << 62).to_bytes(8, "big") + bytes(1 << 20),
        "replay": recorded,
    }
    found = {name: received(address, sent) for name, sent in tried.items()}
    greeted, said_hello = len(greeting(b"CURVE")), len(greeting(b"CURVE")) + CURVE_HELLO_BYTES
    steps = recorded[:greeted], recorded[greeted:said_hello], recorded[said_hello:]
    found["replay step by step"] = received(address, *steps)
    keys = {"wrong server key": new_pair()[0], "unknown key": broker_public}
    return found | {name: messages(address, server, hello) for name, server in keys.items()}


def received(address: tuple[str, int], *steps: bytes) -> int:
    """Bytes that come back; after each step the other end is awaited until it is quiet or closes."""
    num = 0
    with socket.create_connection(address, timeout=10.0) as stranger:
        stranger.settimeout(QUIET_S)
        for step in steps:
            with contextlib.suppress(OSError):  # quiet, or reset
                stranger.sendall(step)
                while data := stranger.recv(CHUNK):
                    num += len(data)
    return num


def messages(address: tuple[str, int], server: bytes, hello: bytes) -> int:
    """Messages that come back to a DEALER with a key that nobody has allowed."""
    public, private = new_pair()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(server))
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(public))
    dealer.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(private))
    dealer.connect(f"tcp://{address[0]}:{address[1]}")
    dealer.send(hello)
    num = 0
    while dealer.poll(int(1000 * 2 * QUIET_S)):
        dealer.recv()
        num += 1
    context.destroy(linger=0)
    return num


async def record(port: int, address: tuple[str, int], file: Path) -> None:
    """Pass one connection on, and keep what its client sends and what both say."""

    async def passed(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_connection(*address)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter, keep: Path) -> None:
            with keep.open("ab", buffering=0) as kept:
                while data := await source.read(CHUNK):
                    kept.write(data)
                    to.write(data)
            to.close()

        answers = file.with_suffix(".answers")
        await asyncio.gather(pump(near, there, file), pump(far, back, answers), return_exceptions=True)

    async with await asyncio.start_server(passed, "0.0.0.0", port):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", port, to, path]:
            asyncio.run(record(int(port), parsed(to), Path(path)))
        case ["attack", to, public, path]:
            sys.stdout.write(json.dumps(attack(parsed(to), bytes.fromhex(public), Path(path).read_bytes())))
