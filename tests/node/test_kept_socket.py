"""A cleaner of temporary files takes a run's socket away, and nobody notices."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.actor.sockets.zmq_hub import ZmqHub
from asyncrl.actor.sockets.zmq_link import ZmqLink
from asyncrl.messages.rollout import Offer
from asyncrl.messages.wire import CODEC
from asyncrl.node.kept_socket import keep_socket

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
