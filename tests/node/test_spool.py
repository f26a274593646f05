"""A spool's process serves its folder across restarts of the broker and of itself."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncrl.actor.message import Message
from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.actor.sockets.zmq_link import ZmqLink
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.messages.session import Hello, Stop, Welcome
from asyncrl.messages.spool import Fetch, Fetched, Put, PutItem, SpoolSet, Stored
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.wire import CODEC
from asyncrl.node.spool import run_spool

DEADLINE_S = 60.0
CONFIG = decode({"model": {"path": "m"}, "data": {"train": "t"}})
WELCOME = Welcome(1, "/runs/x", to_json(CONFIG), SpoolSet(), 0.5, "run-1")
PUT = Put("r", "1", [PutItem(Unit(0, 0), 7, TrajectorySummary(2, 1, 0, 0, 1, "stop"), memoryview(b"payload"))])


class Broker:
    """A broker that the test plays."""

    def __init__(self) -> None:
        self._hub = ZmqHub("ipc://*", CODEC)
        self.run = RunAddress(self._hub.address)
        self.peer = ""

    async def hear(self, kind: type[Message]) -> Message:
        while True:
            peer, message = await self._hub.receive()
            if isinstance(message, kind):
                self.peer = peer
                return message

    async def welcome(self) -> Hello:
        hello = await self.hear(Hello)
        assert isinstance(hello, Hello)
        self._hub.send(self.peer, WELCOME)
        return hello

    def say(self, message: Message) -> None:
        self._hub.send(self.peer, message)

    def restart(self) -> None:
        self._hub.forget(self.peer)

    async def aclose(self) -> None:
        await self._hub.aclose()


def play(scene: Callable[[Broker], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = Broker()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scene(broker)
        finally:
            await broker.aclose()

    asyncio.run(run())


def serving(broker: Broker, folder: Path, name: str = "spool-0") -> "asyncio.Task[None]":
    return asyncio.create_task(
        run_spool(broker.run, name, folder, bind="", wait_s=DEADLINE_S, stopping=asyncio.Event())
    )


def test_it_joins_with_its_address_and_again_under_the_same_name_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def scene(broker: Broker) -> None:
        running = serving(broker, tmp_path)
        first = await broker.welcome()
        assert first.spool is not None
        assert (first.role, first.run_id, first.spool.name) == ("spool", "", first.node)
        assert first.node.startswith("spool-0-")
        broker.restart()
        again = await broker.welcome()
        assert (again.node, again.spool, again.run_id) == (first.node, first.spool, "run-1")
        broker.say(Stop("the run is complete"))
        await running

    play(scene)


def test_its_files_survive_it(tmp_path: Path) -> None:
    async def scene(broker: Broker) -> None:
        running = serving(broker, tmp_path)
        hello = await broker.welcome()
        assert hello.spool is not None
        rollout = ZmqLink(hello.spool.address, "r.1", CODEC)
        await rollout.send(PUT)
        stored = await broker.hear(Stored)
        assert isinstance(stored, Stored)
        ref = stored.items[0].ref
        assert ref.spool == hello.node
        running.cancel()
        await asyncio.wait([running])
        await rollout.aclose()

        running = serving(broker, tmp_path)
        hello = await broker.welcome()
        assert (hello.node, hello.run_id) == (ref.spool, "run-1")
        assert hello.spool is not None
        trainer = ZmqLink(hello.spool.address, "t.1", CODEC)
        await trainer.send(Fetch(1, [ref]))
        assert await trainer.receive() == Fetched(1, [memoryview(b"payload")])
        broker.say(Stop("the run is complete"))
        await running
        await trainer.aclose()

    play(scene)


def test_a_folder_of_another_spool_is_refused_before_the_broker_is_asked(tmp_path: Path) -> None:
    async def scene(broker: Broker) -> None:
        running = serving(broker, tmp_path)
        await broker.welcome()
        running.cancel()
        await asyncio.wait([running])
        with pytest.raises(ConfigError, match="has the payloads of the spool spool-0"):
            await serving(broker, tmp_path, "spool-1")

    play(scene)
