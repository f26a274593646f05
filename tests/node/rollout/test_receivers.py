"""Weights reach an attached engine by the way that it has named."""

import asyncio
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import structs

from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.config.config import to_json
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.session import Hello, Ready, Welcome
from asyncrl.messages.weights import FetchWeights, ListWeights, Live, PutWeights, Transfer, TransferFailed, WeightsList
from asyncrl.messages.wire import CODEC
from asyncrl.node.embedding.attach import attach
from asyncrl.node.rollout.receivers import receiving_ranks
from asyncrl.spool.weights.store import WeightStore
from asyncrl.testing import FakeEngine
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.shared import SharedTensors
from tests.node.rollout.attached import CONFIG, only_spool, received
from tests.weights.shared_memory import shared_memory
from tests.weights.stored import versions


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
            assert failed == TransferFailed(0, 3, "the spool has no files that lead to version 3")
            attached.cancel()
            await asyncio.wait([attached])
        await broker.aclose()
        await spool.aclose()

    asyncio.run(scene())
