"""An existing engine is attached to a broker over real sockets, and detached again."""

import asyncio
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Mapping, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from msgspec import structs
from structlog.testing import capture_logs

from asyncrl.actor import zmq_link
from asyncrl.actor.message import Message
from asyncrl.actor.zmq_hub import ZmqHub
from asyncrl.client import handshake
from asyncrl.config.run_file import decode
from asyncrl.config.sections import Weights, to_json
from asyncrl.errors import ConfigError
from asyncrl.messages import (
    CODEC,
    PROTOCOL,
    Beat,
    Bye,
    FetchWeights,
    Hello,
    Lease,
    Leased,
    ListWeights,
    Live,
    Offer,
    Prompt,
    Put,
    PutWeights,
    Ready,
    Sampling,
    Settled,
    SpoolAddress,
    SpoolSet,
    Trajectory,
    Transfer,
    TransferFailed,
    WeightsList,
    Welcome,
)
from asyncrl.node.attach import attach, receiving_ranks
from asyncrl.node.host import Host
from asyncrl.spool.weights.store import WeightStore
from asyncrl.testing import FakeEngine
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.shared import SharedTensors
from tests.weights.shared_memory import shared_memory
from tests.weights.stored import versions

CONFIG = decode({"model": {"path": "model"}, "data": {"train": "train.parquet"}})
LEASE = Lease(
    lease_id=1,
    group_id=0,
    indices=[0],
    split="train",
    prompt=Prompt(text="how many?"),
    sampling=Sampling(max_tokens=8),
    seed=0,
    max_prompt_tokens=64,
    expires_in_s=60.0,
)


async def received(hub: ZmqHub, kind: type[Message]) -> tuple[str, Message]:
    """The next message of a kind; earlier messages are skipped."""
    while True:
        peer, message = await hub.receive()
        if isinstance(message, kind):
            return peer, message


def only_spool(address: str) -> SpoolSet:
    return SpoolSet([SpoolAddress("spool", address)], "spool")


def test_a_host_rolls_out_with_its_own_engine_and_leaves_when_cancelled() -> None:
    engine = FakeEngine(num_tokens=3)

    async def scene() -> list[str]:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        try:
            async with asyncio.timeout(60.0):
                attached = asyncio.create_task(attach(engine, broker.address, "server-1", slots=4))
                peer, hello = await received(broker, Hello)
                assert isinstance(hello, Hello)
                assert (hello.protocol, hello.role, hello.node) == (PROTOCOL, "rollout", "server-1")
                broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
                _, ready = await received(broker, Ready)
                assert ready == Ready(Layout(engine.specs(), CONFIG.weights.bucket_bytes).hash)
                broker.send(peer, LEASE)
                _, put = await received(spool, Put)
                assert isinstance(put, Put)
                attached.cancel()
                await asyncio.wait([attached])
                await received(broker, Bye)
                return [msgspec.msgpack.decode(item.payload, type=Trajectory).node for item in put.items]
        finally:
            await broker.aclose()
            await spool.aclose()

    threads = set(threading.enumerate())
    assert asyncio.run(scene()) == ["server-1"]
    assert set(threading.enumerate()) <= threads


class MultiProcessFake(FakeEngine):
    """An engine whose own processes map the weights."""

    ranks = 2

    def __init__(self) -> None:
        super().__init__(num_tokens=3)
        self.loaded: list[dict[str, torch.Tensor]] = []
        """What a process has read, by version."""

    def specs(self) -> list[TensorSpec]:
        return versions.SPECS

    async def receiver(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("it takes part in no collective")

    async def swap(self, policy_version: int, weights: Mapping[str, torch.Tensor]) -> None:
        place = msgspec.json.decode(msgspec.json.encode(SharedTensors.of(weights)), type=SharedTensors)
        self.loaded.append({name: tensor.clone() for name, tensor in place.map().items()})
        await super().swap(policy_version, {})


async def serve_weights(hub: ZmqHub, store: WeightStore) -> None:
    while True:
        peer, message = await hub.receive()
        if isinstance(message, ListWeights | FetchWeights):
            hub.send(peer, store.answer(message))


def test_the_processes_of_an_engine_map_each_version_that_the_node_has_fetched(tmp_path: Path) -> None:
    engine = MultiProcessFake()
    config = structs.replace(CONFIG, weights=Weights(bucket_bytes=128))

    async def scene(store: WeightStore) -> None:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        serving = asyncio.create_task(serve_weights(spool, store))
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(engine, broker.address, "server-1", slots=4, weights="spool"))
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(config), only_spool(spool.address), beat_s=0.05))
            _, ready = await received(broker, Ready)
            assert ready == Ready(versions.LAYOUT.hash, ranks=1, weights="spool")
            for version, weights in ((3, versions.anchor(3)), (4, versions.delta(4))):
                base = None if weights.is_anchor else versions.contents(version - 1)
                [part] = versions.parts(versions.contents(version), base)
                store.put(PutWeights(weights, 0, zlib.crc32(part), memoryview(part), is_last=True))
                broker.send(peer, Transfer(0, version, members=[], keep=False, deadline_s=0.0))
                _, live = await received(broker, Live)
                assert isinstance(live, Live)
                assert live.policy_version == version
            attached.cancel()
            await asyncio.wait([attached])
        serving.cancel()
        await broker.aclose()
        await spool.aclose()

    with closing(WeightStore(tmp_path)) as store:
        asyncio.run(scene(store))
    for loaded, version in zip(engine.loaded, (3, 4), strict=True):
        expected = versions.tensors(version)
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert engine.calls == ["pause", "swap 3", "resume", "pause", "swap 4", "resume"]
    assert shared_memory() == []


def test_the_first_process_of_an_engine_receives_for_all_unless_each_loads_bucket_by_bucket() -> None:
    ranks = [
        receiving_ranks(engine, Weights(staging=staging))
        for engine in (MultiProcessFake(), FakeEngine())
        for staging in ("whole", "bucket")
    ]
    assert ranks == [1, 2, 1, 1]


def test_a_host_that_fetches_its_weights_says_so_and_asks_the_spool() -> None:
    async def scene() -> None:
        broker, spool = ZmqHub("ipc://*", CODEC), ZmqHub("ipc://*", CODEC)
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(
                attach(FakeEngine(num_tokens=3), broker.address, "server-1", slots=4, weights="spool")
            )
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
            _, ready = await received(broker, Ready)
            assert isinstance(ready, Ready)
            assert ready.weights == "spool"
            broker.send(peer, Transfer(0, 3, members=[], keep=False, deadline_s=0.0))
            asking, _ = await received(spool, ListWeights)
            assert asking == f"{peer}.weights.1"
            spool.send(asking, WeightsList([]))
            _, failed = await received(broker, TransferFailed)
            assert failed == TransferFailed(0, 3, "the spool has no files that lead to policy_version 3")
            attached.cancel()
            await asyncio.wait([attached])
        await broker.aclose()
        await spool.aclose()

    asyncio.run(scene())


def free_address() -> str:
    return f"ipc://{tempfile.mkdtemp()}/broker"


def test_a_host_that_starts_first_waits_for_the_broker_with_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "FIRST_WARNING_S", 0.01)
    address = free_address()

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(FakeEngine(num_tokens=3), address, "server-1", slots=4))
            while len(logs) < 2:
                await asyncio.sleep(0.005)
            broker = ZmqHub(address, CODEC)
            _, hello = await received(broker, Hello)
            assert isinstance(hello, Hello)
            assert hello.node == "server-1"
            attached.cancel()
            await asyncio.wait([attached])
            await broker.aclose()

    with capture_logs() as logs:
        asyncio.run(scene(logs))
    assert {(entry["event"], entry["log_level"], entry["address"]) for entry in logs} == {
        ("broker.awaited", "warning", address)
    }


def test_a_broker_that_falls_silent_is_joined_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq_link, "SILENT_TICKS", 2)

    async def scene(logs: list[MutableMapping[str, Any]]) -> None:
        broker, spool = ZmqHub(free_address(), CODEC), ZmqHub(free_address(), CODEC)
        address = broker.address
        async with asyncio.timeout(60.0):
            attached = asyncio.create_task(attach(FakeEngine(num_tokens=3), address, "server-1", slots=4))
            peer, _ = await received(broker, Hello)
            broker.send(peer, Welcome(1, "runs/x", to_json(CONFIG), only_spool(spool.address), beat_s=0.05))
            await received(broker, Ready)
            await broker.aclose()
            while "broker.lost" not in {entry["event"] for entry in logs}:
                await asyncio.sleep(0.01)
            assert not attached.done()
            broker = ZmqHub(address, CODEC)
            again, _ = await received(broker, Hello)
            assert again != peer
            attached.cancel()
            await asyncio.wait([attached])
            await broker.aclose()
            await spool.aclose()

    with capture_logs() as logs:
        asyncio.run(scene(logs))


HOST = """
import asyncio, logging, sys
from asyncrl import attach
from asyncrl.client import handshake
from asyncrl.testing import FakeEngine

handshake.FIRST_WARNING_S = 0.05

async def main():
    task = asyncio.create_task(attach(FakeEngine(num_tokens=3), sys.argv[1], "server-1", slots=4, wait_s=0.3))
    await asyncio.wait([task])
    print("the host serves on", type(task.exception()).__name__)

asyncio.run(main())
logging.basicConfig(format="%(message)s")
logging.error("configured")
asyncio.run(main())
"""


class Served(NamedTuple):
    """Output of a host whose broker is not there, and its errors before and after it configured logging."""

    address: str
    output: str
    before: list[str]
    after: list[str]


@pytest.fixture(scope="module")
def served() -> Served:
    address = free_address()
    command = [sys.executable, "-c", HOST, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = done.stderr.splitlines()
    place = said.index("configured")
    return Served(address, done.stdout, said[:place], said[place + 1 :])


def test_a_host_that_configured_no_logging_gets_no_output(served: Served) -> None:
    assert served.output == "the host serves on LinkError\n" * 2
    assert served.before == []


def test_an_end_that_nobody_awaits_is_an_error_in_the_log_that_the_host_configured(served: Served) -> None:
    address, said = served.address, served.after
    assert said[0] == f"broker.awaited node='server-1' address='{address}' waited_s=0.1"
    cause = f"LinkError: no broker answered at {address} within 0.3 s: is it running, and is the address right?"
    assert f"rollout.ended node='server-1' address='{address}' cause='{cause}'" in said


class Run:
    """A scripted broker and its spool, and an engine attached to them."""

    def __init__(self, engine: FakeEngine, host: Host) -> None:
        self.engine, self.host = engine, host
        self.broker, self.spool = ZmqHub(free_address(), CODEC), ZmqHub(free_address(), CODEC)
        self.peer = ""
        self.attached = asyncio.create_task(attach(engine, self.broker.address, "server-1", slots=4, host=host))

    async def welcome(self) -> Hello:
        """Answer the next Hello, and wait until the node is ready."""
        self.peer, hello = await received(self.broker, Hello)
        spools = only_spool(self.spool.address)
        self.broker.send(self.peer, Welcome(1, "runs/x", to_json(CONFIG), spools, beat_s=0.05, run_id="r1"))
        await received(self.broker, Ready)
        assert isinstance(hello, Hello)
        return hello

    async def settle(self) -> Put:
        """Take what the node puts next, and settle it."""
        _, put = await received(self.spool, Put)
        assert isinstance(put, Put)
        items = [Leased(item.unit, item.lease_id) for item in put.items]
        is_unfinished = put.items[0].summary.finish_reason == "unfinished"
        self.broker.send(self.peer, Settled([], items) if is_unfinished else Settled(items))
        return put

    async def __aenter__(self) -> "Run":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.attached.cancel()
        await asyncio.wait([self.attached])
        await self.broker.aclose()
        await self.spool.aclose()


def test_users_who_stay_for_long_have_the_node_hand_back_its_work_and_join_again_later() -> None:
    engine, host = FakeEngine(), Host(grace_s=0.0, hand_back_s=0.05)

    async def scene() -> None:
        states = list[str]()
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            assert (await run.welcome()).run_id == ""
            run.broker.send(run.peer, LEASE)
            await engine.started(1)
            engine.write(2)
            with host.user_request():
                put = await run.settle()
                assert [(item.summary.num_tokens, item.summary.finish_reason) for item in put.items] == [
                    (2, "unfinished")
                ]
                await received(run.broker, Bye)
                states.append(host.health.state)
            assert (await run.welcome()).run_id == "r1", "it joins no other run"
            assert host.health.policy_version == -1
        assert [*states, host.health.state] == ["paused_for_users", "ended"]

    asyncio.run(scene())


def test_users_in_hand_keep_the_node_from_offering_slots_and_from_decoding() -> None:
    engine, host = FakeEngine(num_tokens=3), Host(grace_s=0.0)

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            with host.user_request():
                await run.welcome()
                run.broker.send(run.peer, LEASE)
                messages = [(await run.broker.receive())[1] for _ in range(3)]
                assert {type(message) for message in messages} == {Beat}, (
                    "its leases are kept, and no more are asked for"
                )
                assert engine.requests == []
            await received(run.broker, Offer)
            await run.settle()

    asyncio.run(scene())


def test_a_lost_broker_shows_in_the_health_and_its_return_too() -> None:
    engine, host = FakeEngine(num_tokens=3), Host()

    async def scene() -> None:
        async with asyncio.timeout(60.0), Run(engine, host) as run:
            await run.welcome()
            run.broker.forget(run.peer)  # As a broker that restarted.
            await run.welcome()
        assert host.health.last_error.startswith("LinkReset: ")

    asyncio.run(scene())


LEFTOVERS = """
import asyncio, os, sys
from pathlib import Path
import zmq
from asyncrl import Host
from asyncrl.testing import FakeEngine
sys.path.insert(0, sys.argv[1])
from test_attach import LEASE, Run

def links():
    for path in Path("/proc/self/fd").iterdir():
        try:
            yield os.readlink(path)
        except FileNotFoundError:  # the descriptor of this listing
            pass

def children(threads):
    for thread in threads:
        try:
            yield from (thread / "children").read_text().split()
        except FileNotFoundError:  # a thread that has ended meanwhile
            pass

def left():
    threads = list(Path("/proc/self/task").iterdir())
    return sum(link.startswith("socket:") for link in links()), len(threads), list(children(threads))

async def main():
    zmq.Context.instance().socket(zmq.PAIR).close()  # ZeroMQ's context keeps two threads for the process.
    before = left()
    for attempt in range(3):
        async with Run(FakeEngine(), Host()) as run:
            await run.welcome()
            run.broker.send(run.peer, LEASE)
            await run.engine.started(1)
            assert left() > before
        assert asyncio.all_tasks() == {asyncio.current_task()}
        async with asyncio.timeout(20):
            while left() != before:  # ZeroMQ's thread closes what was given back.
                await asyncio.sleep(0.01)
    print("nothing left behind")

asyncio.run(main())
"""


def test_a_cancelled_node_leaves_no_socket_thread_or_child_behind() -> None:
    command = [sys.executable, "-c", LEFTOVERS, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("nothing left behind\n", "")


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="address is 'localhost:5570': expected tcp://HOST"):
        asyncio.run(attach(FakeEngine(num_tokens=3), "localhost:5570", "server-1", slots=4))
