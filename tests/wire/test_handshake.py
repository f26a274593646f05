"""A connection is a node's identity with its links."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.errors import ConfigError, LinkClosed, LinkError, LinkRefused, LinkReset
from asyncrl.files.access import write_secret
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Beat, Bye, Hello, Reject, Stop, Welcome
from asyncrl.messages.spool import Put, SpoolAddress, SpoolSet
from asyncrl.messages.supervisor import Progress
from asyncrl.messages.weights import ListWeights
from asyncrl.messages.wire import CODEC, PROTOCOL
from asyncrl.wire import handshake, zmq_link
from asyncrl.wire.curve import hub_keys_of
from asyncrl.wire.handshake import (
    Connection,
    identity,
    join,
    leave,
    send_beats,
    shake_hands,
    spool_connector,
    spool_links,
    weights_links,
    why_silent,
)
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from tests.wire.only_spool import only


def test_two_connections_of_one_node_are_different() -> None:
    hub = MemoryHub()
    who = identity("reward", "reward-0")
    first, second = (Connection(who, hub.connect(who.peer), only(hub, who.peer)) for _ in range(2))
    assert first != second
    assert first.identity == second.identity


# ── test handshake ────────────────────────────────────────────────────────────────────────────
# A node joins its broker, is refused, or fails in one sentence if no broker answers.

DEADLINE_S = 30.0
SECRET = bytes(32)
WELCOME = Welcome(broker_term=3, run_dir="runs/x", config=b"{}", spools=SpoolSet(), beat_s=0.5)


def test_a_node_says_hello_and_is_welcomed() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        hub = ZmqHub("ipc://*", CODEC)
        joining = asyncio.create_task(join(RunAddress(hub.address), who, DEADLINE_S))
        said = Hello(PROTOCOL, "rollout", "rollout-0", who.incarnation, host=socket.gethostname())
        assert await hub.receive() == (who.peer, said)
        hub.send(who.peer, WELCOME)
        link, welcome = await joining
        assert welcome == WELCOME
        await link.send(Offer(1))
        assert await hub.receive() == (who.peer, Offer(1))
        await link.aclose()
        await hub.aclose()

    asyncio.run(scene())


def test_a_spool_of_any_host_is_on_the_host_at_which_the_node_reached_the_broker(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", SECRET)
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        hub = ZmqHub("tcp://0.0.0.0:0", CODEC, keys=hub_keys_of(SECRET))
        broker = hub.address.replace("0.0.0.0", "localhost")
        run = RunAddress(broker, tmp_path / "secret")
        joining = asyncio.create_task(join(run, who, DEADLINE_S))
        await hub.receive()
        hub.send(who.peer, replace(WELCOME, spools=SpoolSet([SpoolAddress("spool", "tcp://*:5571")])))
        link, welcome = await joining
        links = spool_links(welcome.spools, who, run)
        assert links.spools == SpoolSet([SpoolAddress("spool", "tcp://localhost:5571")])
        await link.aclose()
        await hub.aclose()

    asyncio.run(scene())


def test_a_refusal_is_raised_with_the_reason_of_the_broker() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        hub = ZmqHub("ipc://*", CODEC)
        joining = asyncio.create_task(join(RunAddress(hub.address), who, DEADLINE_S))
        await hub.receive()
        hub.send(who.peer, Reject("this broker speaks protocol 2, you speak 1"))
        hub.forget(who.peer)
        with pytest.raises(LinkRefused, match="protocol 2, you speak 1"):
            await joining
        await hub.aclose()

    asyncio.run(scene())


def test_joining_without_a_broker_fails_in_one_sentence_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "LINGER_MS", 1)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        called_s = loop.time()
        with pytest.raises(LinkError) as raised:
            await join(RunAddress("ipc:///nowhere"), identity("reward", "reward-0"), 0.05)
        assert str(raised.value) == (
            "no broker answered at ipc:///nowhere within 0.05 s: nothing listens there: the broker does not run, the "
            "run is over, or the address is wrong"
        )
        assert loop.time() - called_s < DEADLINE_S

    asyncio.run(scene())


def test_a_broker_that_ends_between_hello_and_welcome_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has acknowledged the Hello, so the link would not repeat it to the next broker."""
    monkeypatch.setattr(handshake, "ASK_S", 0.01)
    address = f"ipc://{tmp_path}/broker"

    async def scene() -> None:
        first = ZmqHub(address, CODEC)
        joining = asyncio.create_task(join(RunAddress(address), identity("reward", "reward-0"), DEADLINE_S))
        await first.receive()
        assert isinstance((await first.receive())[1], Beat), "the Hello was acknowledged before"
        await first.aclose()
        second = ZmqHub(address, CODEC)
        with pytest.raises(LinkReset, match="does not know this session"):
            await joining
        await second.aclose()

    asyncio.run(scene())


def test_messages_before_the_welcome_are_skipped() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("supervisor-0.1")
        hub.send("supervisor-0.1", Progress(1, 2, {}))
        hub.send("supervisor-0.1", WELCOME)
        assert await shake_hands(link, identity("supervisor", "supervisor-0")) == WELCOME

    asyncio.run(scene())


def test_two_starts_of_a_node_are_two_peers() -> None:
    starts = [identity("rollout", "rollout-0") for _ in range(2)]
    assert starts[0].peer != starts[1].peer
    assert all(start.peer.startswith("rollout-0.") for start in starts)


def test_spool_links_use_the_addresses_of_the_welcome_each_under_a_name_of_its_own() -> None:
    who = identity("rollout", "rollout-0")
    put = Put("rollout-0", who.incarnation, [])

    async def scene() -> None:
        spool = ZmqHub("ipc://*", CODEC)
        connect = spool_connector(who, None)
        for peer in (f"{who.peer}.1", f"{who.peer}.2"):
            link = connect(SpoolAddress("spool", spool.address))
            await link.send(put)
            assert await spool.receive() == (peer, put)
            await link.aclose()
        spools = SpoolSet([SpoolAddress("spool", spool.address)], "spool")
        links = spool_links(spools, identity("rollout", "rollout-1"), RunAddress(""))
        running = asyncio.create_task(links.run())
        await links.put(put)
        assert (await spool.receive())[1] == put
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await spool.aclose()

    asyncio.run(scene())


def test_each_link_for_weights_is_another_peer_of_the_spool() -> None:
    who = identity("rollout", "rollout-0")

    async def scene() -> None:
        spool = ZmqHub("ipc://*", CODEC)
        connect = weights_links(SpoolSet([SpoolAddress("spool", spool.address)]), who, RunAddress(""))
        links = [connect(), connect()]
        for link in links:
            await link.send(ListWeights())
        peers = {(await spool.receive())[0] for _ in links}
        assert peers == {f"{who.peer}.weights.1", f"{who.peer}.weights.2"}
        for link in links:
            await link.aclose()
        await spool.aclose()

    asyncio.run(scene())


def test_without_a_spool_at_the_broker_no_weights_can_be_fetched() -> None:
    spools = SpoolSet([SpoolAddress("spool-a-1", "ipc:///spool")])
    connect = weights_links(spools, identity("rollout", "rollout-0"), RunAddress(""))
    with pytest.raises(ConfigError, match=r"broker\.spool is false"):
        connect()


def test_beats_continue_until_the_link_closes_and_report_their_lag() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        lags_s: list[float] = []

        def sign(lag_s: float) -> Beat:
            lags_s.append(lag_s)
            return Beat(lag_s)

        beating = asyncio.create_task(send_beats(link, 0.0, sign))
        heard = [await hub.receive() for _ in range(3)]
        assert heard == [("a.1", Beat(lag_s)) for lag_s in lags_s[:3]]
        assert all(lag_s >= 0 for lag_s in lags_s)
        await link.aclose()
        with pytest.raises(LinkClosed):
            await beating

    asyncio.run(scene())


def test_leaving_sends_bye_and_closes_the_link() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        await leave(link, "done")
        assert await hub.receive() == ("a.1", Bye("done"))
        with pytest.raises(LinkClosed):
            await link.send(Offer(1))

    asyncio.run(scene())


def test_leaving_a_broker_that_is_gone_only_closes_the_link() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("a.1")
        hub.send("a.1", Stop("over"))
        hub.forget("a.1")
        await leave(link, "done")
        assert await link.receive() == Stop("over")
        with pytest.raises(LinkReset):
            await link.receive()

    asyncio.run(scene())


# ── test silence ──────────────────────────────────────────────────────────────────────────────
# An address at which no broker answers is told by what a connection to it finds.

ADDRESS = "tcp://gpu-7:5570"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "gpu-7 is not a known host"),
        (ConnectionRefusedError(), "nothing listens there: the broker does not run, the run is over, or the address"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "gpu-7 cannot be reached: No route to host"),
        (TimeoutError(), "gpu-7 does not answer: it is down"),
        (None, "something listens there and gives no answer"),
    ],
)
def test_each_cause_has_its_sentence(error: Exception | None, said: str) -> None:
    async def connect(address: str) -> None:
        assert address == ADDRESS
        if error is not None:
            raise error

    assert asyncio.run(why_silent(ADDRESS, connect)).startswith(said)


def test_a_connection_that_never_comes_about_is_given_up() -> None:
    async def connect(_address: str) -> None:
        await asyncio.get_running_loop().create_future()

    assert asyncio.run(why_silent(ADDRESS, connect, look_s=0.01)).startswith("gpu-7 does not answer")


def test_a_socket_is_connected_to_for_real(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    address = f"ipc://{path}"
    assert asyncio.run(why_silent(address)).startswith("nothing listens there")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert asyncio.run(why_silent(address)).startswith("nothing listens there")
        server.listen()
        assert asyncio.run(why_silent(address)).startswith("something listens there")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert asyncio.run(why_silent(f"tcp://localhost:{port}")).startswith("nothing listens there")
        server.listen()
        assert asyncio.run(why_silent(f"tcp://127.0.0.1:{port}")).startswith("something listens there")
