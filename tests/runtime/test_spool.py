"""A cleaner of temporary files takes a run's socket away, and nobody notices."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Hello, Stop, Welcome
from asyncrl.messages.spool import Fetch, Fetched, Put, PutItem, SpoolSet, Stored
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.process import StopEvent
from asyncrl.runtime.sessions import RunNode
from asyncrl.runtime.spool import keep_socket, run_spool
from asyncrl.wire.handshake import identity
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

DEADLINE_S = 30.0


class Looks:
    """Lets one look at the socket happen at a time."""

    def __init__(self) -> None:
        self._due, self.seen = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def sleep(self, _: float) -> None:
        self.seen.release()
        await self._due.acquire()

    async def look(self) -> None:
        await self.seen.acquire()
        self._due.release()
        await self.seen.acquire()
        self.seen.release()


def test_whoever_connects_after_the_cleaner_is_heard_and_so_are_all_others(tmp_path: Path) -> None:
    async def main() -> None:
        (folder := tmp_path / "asyncrl-1").mkdir(mode=0o700)
        hub, looks = ZmqHub(f"ipc://{folder}/spool", CODEC), Looks()
        keeping = asyncio.create_task(keep_socket(hub, looks.sleep))
        before = ZmqLink(hub.address, "a.0", CODEC)
        await before.send(Offer(1))
        assert await hub.receive() == ("a.0", Offer(1))
        shutil.rmtree(folder)
        await looks.look()
        assert folder.stat().st_mode & 0o777 == 0o700
        after = ZmqLink(hub.address, "b.0", CODEC)
        await after.send(Offer(2))
        assert await hub.receive() == ("b.0", Offer(2))
        await before.send(Offer(3))
        assert await hub.receive() == ("a.0", Offer(3))
        await looks.look()
        keeping.cancel()
        for each in (before, after, hub):
            await each.aclose()

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert [line["event"] for line in logs if line["event"].startswith("socket.")] == ["socket.made_again"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_that_another_user_made_meanwhile_is_not_taken_and_told_of_once(tmp_path: Path) -> None:
    async def main() -> None:
        (folder := tmp_path / "asyncrl-1").mkdir(mode=0o700)
        hub, looks = ZmqHub(f"ipc://{folder}/spool", CODEC), Looks()
        keeping = asyncio.create_task(keep_socket(hub, looks.sleep))
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, 65534)
        await looks.look()
        await looks.look()
        assert list(folder.iterdir()) == []
        keeping.cancel()
        await hub.aclose()

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
    assert [line["event"] for line in logs] == ["socket.lost"]


def test_a_hub_without_a_unix_socket_has_none_to_keep() -> None:
    class Hub:
        address = "tcp://127.0.0.1:5570"

    asyncio.run(asyncio.wait_for(keep_socket(Hub()), DEADLINE_S))  # type: ignore[arg-type]


# ── test spool ────────────────────────────────────────────────────────────────────────────────
# A spool's process serves its folder across restarts of the broker and of itself.

DEADLINE_S_SPOOL = 60.0
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
            async with asyncio.timeout(DEADLINE_S_SPOOL):
                await scene(broker)
        finally:
            await broker.aclose()

    asyncio.run(run())


def serving(broker: Broker, folder: Path, name: str = "spool-0") -> "asyncio.Task[None]":
    node = RunNode(identity("spool", name), broker.run, wait_s=DEADLINE_S_SPOOL)
    return asyncio.create_task(run_spool(node, StopEvent(), folder=folder, bind=""))


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


def test_its_log_has_the_name_that_the_run_knows_it_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("asyncrl.runtime.spool.about", lambda **fields: told.append(fields["node"]))

    async def scene(broker: Broker) -> None:
        running = serving(broker, tmp_path)
        hello = await broker.welcome()
        assert told == [hello.node]
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
