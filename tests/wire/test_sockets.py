import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from asyncrl.errors import LinkError
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC
from asyncrl.wire.curve import hub_keys_of, link_keys_of
from asyncrl.wire.sockets import bind_all, needs_ipv6, new_socket, peer_name, require_bindable, routing_id
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.wire.ipv6 import has_ipv6


def test_a_socket_refuses_larger_frames_and_has_no_heartbeat_that_could_abort_the_process() -> None:
    context = zmq.Context()
    socket = new_socket(context, zmq.DEALER, 1000)
    assert socket.getsockopt(zmq.MAXMSGSIZE) == 1000
    assert socket.getsockopt(zmq.HEARTBEAT_IVL) == 0
    assert socket.getsockopt(zmq.TCP_KEEPALIVE) == 1
    socket.close()
    context.term()


# ── test routing id ───────────────────────────────────────────────────────────────────────────


def test_the_name_is_in_the_routing_id_and_the_rest_cannot_be_guessed() -> None:
    first, second = routing_id("rollout-0.18ea"), routing_id("rollout-0.18ea")
    assert peer_name(first) == peer_name(second) == "rollout-0.18ea"
    assert first != second
    assert len(first) >= len("rollout-0.18ea") + 16


def test_a_stranger_is_called_by_its_whole_routing_id() -> None:
    assert peer_name(b"stranger") == "stranger"
    assert peer_name(b"\xff") == "\N{REPLACEMENT CHARACTER}"


# ── test tcp ──────────────────────────────────────────────────────────────────────────────────
# Hubs listen on several addresses, over both versions of IP.

SECRET = bytes(32)
DEADLINE_S = 30.0
BOTH = ["tcp://127.0.0.1:0", "tcp://[::1]:0"]


needs_both = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback address")


def heard(bind: str | list[str], *hosts: str) -> list[str]:
    """Addresses of a hub that heard a link to each of ``hosts`` on its port, in turn."""

    async def scene() -> list[str]:
        hub = ZmqHub(bind, CODEC, keys=hub_keys_of(SECRET))
        port = hub.address.rpartition(":")[2]
        try:
            async with asyncio.timeout(DEADLINE_S):
                for number, host in enumerate(hosts):
                    link = ZmqLink(f"tcp://{host}:{port}", f"node.{number}", CODEC, keys=link_keys_of(SECRET))
                    await link.send(Offer(number))
                    assert await hub.receive() == (f"node.{number}", Offer(number))
                    await link.aclose()
        finally:
            await hub.aclose()
        return hub.addresses

    return asyncio.run(scene())


@needs_both
def test_a_hub_listens_on_several_addresses_with_one_port() -> None:
    ipv4, ipv6 = heard(BOTH, "127.0.0.1", "[::1]")
    assert ipv4.removeprefix("tcp://127.0.0.1") == ipv6.removeprefix("tcp://[::1]")
    assert not ipv4.endswith(":0")


@needs_both
@pytest.mark.parametrize("bind", ["tcp://*:0", "tcp://[::]:0"])
def test_a_wildcard_of_ipv6_takes_connections_of_both_versions(bind: str) -> None:
    assert heard(bind, "127.0.0.1", "[::1]", "localhost")[0].startswith("tcp://[::]:")


def test_whether_an_address_can_be_bound_is_known_without_a_hub() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LinkError, match=f"cannot bind tcp://127.0.0.1:{port}: the port is in use"):
            require_bindable([f"tcp://127.0.0.1:{port}"])
    require_bindable([f"tcp://127.0.0.1:{port}"])
    require_bindable([f"tcp://127.0.0.1:{port}"])
    require_bindable([])


def test_a_wildcard_of_ipv4_is_found_by_a_name() -> None:
    assert heard("tcp://0.0.0.0:0", "127.0.0.1", "localhost")[0].startswith("tcp://0.0.0.0:")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://[::1]:1", True),
        ("tcp://*:1", True),
        ("tcp://localhost:1", False),
        ("ipc:///run/broker", False),
    ],
)
def test_ipv6_is_used_where_it_is_needed(address: str, expected: bool) -> None:
    assert needs_ipv6(address) == expected


@pytest.mark.parametrize(
    ("known", "expected"), [({socket.AF_INET6}, True), (set(socket.AddressFamily), False), ((), True)]
)
def test_a_name_means_its_ipv4_address_if_it_has_one(
    monkeypatch: pytest.MonkeyPatch, known: set[socket.AddressFamily], expected: bool
) -> None:
    def lookup(host: str, port: None, family: socket.AddressFamily) -> None:
        assert (host, port) == ("gpu-7", None)
        if family not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert needs_ipv6("tcp://gpu-7:5570") == expected


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    async def scene() -> None:
        with pytest.raises(LinkError) as refused:
            ZmqHub(["tcp://127.0.0.1:0", "tcp://203.0.113.9:5570"], CODEC, keys=hub_keys_of(SECRET))
        expected = "cannot bind tcp://203.0.113.9:5570: no network interface of this machine has that address"
        assert str(refused.value) == expected

    asyncio.run(scene())


def test_a_unix_socket_is_never_taken_from_a_living_process(tmp_path: Path) -> None:
    """ZeroMQ itself would replace it: nodes that connect later would speak to the newcomer."""
    address = f"ipc://{tmp_path}/spool"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as first, context.socket(zmq.ROUTER) as second:
        assert bind_all(first, [address]) == [address]
        with pytest.raises(LinkError, match=rf"cannot bind {address}: a process listens there already; stop it, or"):
            bind_all(second, [address])


def test_a_listener_with_more_callers_than_it_takes_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "spool")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        context = stack.enter_context(zmq.Context())
        with pytest.raises(LinkError, match="a process listens there already"):
            bind_all(stack.enter_context(context.socket(zmq.ROUTER)), [f"ipc://{path}"])


def test_the_unix_socket_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "spool"))
        left.listen()
    address = f"ipc://{tmp_path}/spool"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as hub:
        assert bind_all(hub, [address]) == [address]
