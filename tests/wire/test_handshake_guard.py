"""Strangers cannot take memory or descriptors from a hub, and friends are never cut."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncrl.errors import LinkError
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import StoreSet
from asyncrl.messages.wire import CODEC
from asyncrl.wire import zmq_hub
from asyncrl.wire.curve import hub_keys_of, link_keys_of
from asyncrl.wire.zmq_hub import STRANGER_BYTES, ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.wire.ipv6 import has_ipv6

SECRET = bytes(32)
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Of ZMTP 3.1 (rfc.zeromq.org/spec/37)."""
BIG = 4 << 20
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def attentive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "LOOK_S", 0.005)


def with_hub(scene: Callable[[ZmqHub], Awaitable[None]], bind: str | list[str] = "tcp://127.0.0.1:0") -> None:
    async def main() -> None:
        hub = ZmqHub(bind, CODEC, keys=hub_keys_of(SECRET))
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scene(hub)
        finally:
            await hub.aclose()

    asyncio.run(main())


def connected(hub: ZmqHub) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(hub.address.rpartition(":")[2])), timeout=DEADLINE_S)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_handshake_of_many_bytes_is_cut_long_before_its_end() -> None:
    def attack(hub: ZmqHub) -> int:
        """Send all but the last byte; returns how much was taken."""
        with connected(hub) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            taken = stranger.send(GREETING + b"\x06" + (BIG - 1).to_bytes(8, "big"))
            try:
                while taken < BIG:
                    taken += stranger.send(bytes(4096))
                    if taken > 2 * STRANGER_BYTES:
                        stranger.recv(4096)  # the hub's greeting, and then the end
            except OSError:
                pass
            return taken

    async def scene(hub: ZmqHub) -> None:
        before = resident_bytes()
        for _ in range(30):
            assert await asyncio.to_thread(attack, hub) < BIG // 8
        assert resident_bytes() - before < 30 * BIG // 8

    with_hub(scene)


@pytest.mark.parametrize(
    ("bind", "hosts"),
    [
        (["tcp://127.0.0.1:0", "tcp://[::1]:0"], ["127.0.0.1", "::1"]),
        ("tcp://[::]:0", ["127.0.0.1", "::1"]),
        (["tcp://127.0.0.1:0", "tcp://127.0.0.1:*"], ["127.0.0.1", "127.0.0.1"]),
    ],
    ids=["two addresses", "IPv6 for both", "two ports"],
)
def test_strangers_are_cut_at_every_address_of_the_hub(bind: str | list[str], hosts: list[str]) -> None:
    if "::1" in hosts and not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback address")

    def attack(host: str, address: str) -> None:
        """Send more than a stranger may, and read until the hub has cut the connection."""
        port = int(address.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=DEADLINE_S) as stranger, contextlib.suppress(OSError):
            stranger.sendall(GREETING + b"\x06" + BIG.to_bytes(8, "big") + bytes(2 * STRANGER_BYTES))
            while stranger.recv(4096):
                pass

    async def scene(hub: ZmqHub) -> None:
        for host, address in zip(hosts, 2 * hub.addresses, strict=False):
            await asyncio.to_thread(attack, host, address)
        assert hub.num_cut == 2
        friend = ZmqLink(hub.addresses[-1].replace("[::]", "[::1]"), "friend.1", CODEC, keys=link_keys_of(SECRET))
        await friend.send(Offer(1))
        assert await hub.receive() == ("friend.1", Offer(1))
        await friend.aclose()

    with_hub(scene, bind)


def test_of_too_many_strangers_the_oldest_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "MAX_STRANGERS", 5)

    async def scene(hub: ZmqHub) -> None:
        friend = ZmqLink(hub.address, "friend.1", CODEC, keys=link_keys_of(SECRET))
        await friend.send(Offer(1))
        await hub.receive()
        strangers = [connected(hub) for _ in range(12)]
        for stranger in strangers[:7]:
            while await asyncio.to_thread(stranger.recv, 4096):  # the hub's greeting, and then the end
                pass
        for stranger in strangers[7:]:
            assert stranger.recv(4096), "the hub's greeting"
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.recv(4096)
        await friend.send(Offer(2))
        assert await hub.receive() == ("friend.1", Offer(2))
        await friend.aclose()
        for stranger in strangers:
            stranger.close()

    with_hub(scene)


def test_friends_are_not_cut_whatever_they_send_and_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_hub, "MAX_STRANGERS", 40)

    async def scene(hub: ZmqHub) -> None:
        links = [ZmqLink(hub.address, f"friend.{number}", CODEC, keys=link_keys_of(SECRET)) for number in range(20)]
        message = StoreSet("group", "key", bytes(100_000))
        for link in links:
            await link.send(message)
        heard = [await hub.receive() for _ in links]
        assert sorted(heard) == sorted((f"friend.{number}", message) for number in range(20))
        assert hub.num_cut == 0
        for link in links:
            await link.aclose()

    with_hub(scene)


def test_closing_the_hub_ends_the_watch_and_frees_the_port() -> None:
    async def scene(hub: ZmqHub) -> None:
        await hub.aclose()
        await hub.aclose()
        again = None
        async with asyncio.timeout(10):
            while again is None:
                with contextlib.suppress(LinkError):  # ZeroMQ's thread closes the port a moment later.
                    again = ZmqHub(hub.address, CODEC, keys=hub_keys_of(SECRET))
                await asyncio.sleep(0)
        await again.aclose()

    with_hub(scene)
