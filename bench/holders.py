"""
Attackers that know the broker's public key, which is no secret: some with a key of their own that nobody has allowed,
and some with an allowed one, for rewards. Each is a generator that does a little at a time, and yields its frames.
"""

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count, islice, repeat

import msgspec
import zmq
from keyed import link_keys
from payloads import SUMMARY, payloads
from zmq.utils import z85

from asyncrl.messages.codec import Envelope, Part, cut, encode
from asyncrl.messages.reward import Scored
from asyncrl.messages.session import Beat, Drain, Hello
from asyncrl.messages.spool import Put, PutItem, SpoolRef, Stored, StoredItem
from asyncrl.messages.supervisor import Exited, Interrupt
from asyncrl.messages.trainer import Commit, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Publishing
from asyncrl.messages.wire import PROTOCOL
from asyncrl.runtime.broker import CONTROL
from asyncrl.wire.curve import LinkKeys, new_pair

LOW = "low"
"""Name of the allowed key, whose role is `reward`."""
BURST = 2000
"""Messages of one session."""
GIANT_BYTES = CONTROL.received - 100
SHORTEST_ITEM = msgspec.msgpack.encode([[0, 0], 0])
"""A `ScoredItem` without its optional fields."""
PART_BYTES = 1 << 20
LINGER_MS = 2000
MAX_SOCKETS = 65_535
"""Limit per ZeroMQ context; the default is 1,023."""
UNIT = Unit(0, 0)
FOREIGN = [
    Commit(7, "nowhere"),
    Take(0),
    Publishing(0, 1),
    Interrupt(),
    Drain("producer"),
    Exited("consumer", "bug", restarting=False),
    Stored("producer", "1", [StoredItem(UNIT, 1, SpoolRef("spool", 0, 0, 10, 0), SUMMARY)]),
]

Attack = Generator[int, None, None]


def unlisted(port: int, chunks: list[bytes]) -> Attack:
    """Handshakes with the right public key of the broker, and keys that are not allowed."""
    keys = link_keys(LOW)
    assert keys
    context = zmq.Context()
    try:
        yield 0
        while True:
            crowd = [_dealer(context, port, LinkKeys(*new_pair(), keys.hub), f"trainer.{n}") for n in range(24)]
            for dealer in crowd:
                dealer.send(encode(Envelope(1, 0, Hello(PROTOCOL, "trainer", "trainer", "1"))))
            time.sleep(0.05)
            for dealer in crowd:
                dealer.close()
            yield len(crowd)
    finally:
        context.destroy(linger=0)


def roles(port: int, chunks: list[bytes]) -> Attack:
    """Messages of every other role."""
    yield from _sessions(port, lambda name: (FOREIGN[n % len(FOREIGN)] for n in range(BURST)))


def small(port: int, chunks: list[bytes]) -> Attack:
    """Valid heartbeats, as fast as they go."""
    yield from _sessions(port, lambda name: repeat(Beat(), BURST))


def hellos(port: int, chunks: list[bytes]) -> Attack:
    """Hello again and again, as nodes that the key may not be."""
    yield from _sessions(port, lambda name: repeat(Hello(PROTOCOL, "reward", "consumer", "1"), BURST), joins=False)


def giant(port: int, chunks: list[bytes]) -> Attack:
    """Messages of the largest size, in parts, with as many items as fit: msgpack's shortest form of each."""
    num = GIANT_BYTES // len(SHORTEST_ITEM)
    head, end = encode(Envelope(2, 0, Scored([]))).rsplit(b"\x90", 1)
    whole = head + b"\xdd" + num.to_bytes(4, "big") + SHORTEST_ITEM * num + end
    yield from _sessions(port, lambda name: cut(whole, PART_BYTES))


def unended(port: int, chunks: list[bytes]) -> Attack:
    """A megabyte of a message of the largest size, in a crowd of sessions."""
    yield from _sessions(port, lambda name: [Part(CONTROL.received, memoryview(bytes(PART_BYTES)))], num=64)


def sessions(port: int, chunks: list[bytes]) -> Attack:
    """Many sessions under one key, each with a name of its own."""
    yield from _sessions(port, lambda name: [Beat()], num=64)


def hijack(port: int, chunks: list[bytes]) -> Attack:
    """Sessions with the names of honest nodes, and connections with their routing ids."""
    names = [f"{node}.{start}" for node in ("producer", "consumer", "reward", "spool") for start in ("0", "1")]
    yield from _sessions(port, lambda name: repeat(Beat(), 100), names=names, num=8)


def puts(port: int, chunks: list[bytes]) -> Attack:
    """Payloads for other nodes; its victim is the spool."""
    payload = memoryview(payloads()[0])
    put = Put("producer", "1", [PutItem(UNIT, 1, SUMMARY, payload)] * 16)
    yield from _sessions(port, lambda name: repeat(put, 100))


def _sessions(
    port: int,
    bodies: Callable[[str], Iterable[object]],
    *,
    names: list[str] | None = None,
    num: int = 1,
    joins: bool = True,
) -> Attack:
    """``num`` sessions at once, again and again, that say Hello and then ``bodies``."""
    keys, numbers, context = link_keys(LOW), count(), zmq.Context()
    assert keys
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    try:
        yield 0
        while True:
            fresh = [names[n % len(names)] if names else f"{LOW}-{n}.1" for n in islice(numbers, num)]
            crowd = [(_dealer(context, port, keys, f"{name}~{name}"), name) for name in fresh]
            sent = 0
            for dealer, name in crowd:
                node, _, start = name.partition(".")
                first = [Hello(PROTOCOL, "reward", node, start)] if joins else []
                yield (sent := _send_all(dealer, [*first, *bodies(name)]))
            time.sleep(0.02 if sent else 0.2)
            for dealer, _ in crowd:
                dealer.close()
    finally:
        context.destroy(linger=0)


def _send_all(dealer: "zmq.Socket[bytes]", bodies: Iterable[object]) -> int:
    """Send messages of a session, without waiting for ever; returns how many were taken."""
    num = 0
    for num, frame in enumerate(_frames(bodies), 1):
        if not dealer.poll(200, zmq.POLLOUT):
            return num - 1
        dealer.send(frame)
        with contextlib.suppress(zmq.Again):
            dealer.recv(zmq.NOBLOCK)
    return num


def _frames(bodies: Iterable[object]) -> Iterator[bytes]:
    for seq, body in enumerate(bodies, 1):
        yield encode(Envelope(seq, 0, body))  # type: ignore[arg-type]


def _dealer(
    context: "zmq.Context[zmq.Socket[bytes]]", port: int, keys: LinkKeys, routing_id: str
) -> "zmq.Socket[bytes]":
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, LINGER_MS)
    dealer.setsockopt(zmq.ROUTING_ID, routing_id.encode())
    dealer.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(keys.hub))
    dealer.setsockopt(zmq.CURVE_PUBLICKEY, z85.encode(keys.public))
    dealer.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(keys.private))
    dealer.connect(f"tcp://127.0.0.1:{port}")
    return dealer


KINDS: dict[str, Callable[[int, list[bytes]], Attack]] = {
    function.__name__: function for function in (unlisted, roles, small, hellos, giant, unended, sessions, hijack, puts)
}
