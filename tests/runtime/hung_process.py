"""
A first rank whose thread is in a collective that never completes, while its other rank is killed.

    python -m tests.runtime.hung_process LIBRARY      prints the error that ends the ranks

LIBRARY is ``aborts``, which ends the collective when the group is aborted, or ``stuck``, which never does.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack

from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.errors import RankDied
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolSet
from asyncrl.runtime import process, ranks
from asyncrl.runtime import ranks as ranks_module
from asyncrl.runtime.ranks import HubAddress, only_machine
from asyncrl.runtime.sessions import NodeSession, RunNode
from asyncrl.trainer.loop.publications import compute_thread
from asyncrl.trainer.ranks.ranks import Ranks
from asyncrl.weights.groups.group import CPU
from asyncrl.wire.handshake import identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.workers.child import Child

CONFIG = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"ranks": 2}})
WHO, WELCOME = identity("trainer", "trainer-0"), Welcome(1, "run", to_json(CONFIG), SpoolSet(), 0.5)
JOINS_AND_STAYS = """
import asyncio, sys
from asyncrl.wire.handshake import identity, join
from asyncrl.wire.run_address import RunAddress

async def main():
    await join(RunAddress(sys.argv[1]), identity("shard", "trainer-0-rank-1"), 30.0)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class HungGroup:
    """A group whose collectives wait for a rank that is gone, as a device's library does."""

    def __init__(self, library: str) -> None:
        self._aborts = library == "aborts"
        self._is_aborted = threading.Event()

    def all_reduce(self) -> None:
        self._is_aborted.wait()
        raise RankDied("a rank of the trainer is dead or stuck: the communicator was aborted")

    def abort(self) -> None:
        if self._aborts:
            self._is_aborted.set()

    def close(self) -> None: ...


async def main(library: str) -> None:
    group, children = HungGroup(library), []

    async def start_ranks(
        stack: AsyncExitStack, _session: object, _place: object, hub: HubAddress, *, leave_s: float
    ) -> list[Child]:
        child = Child("trainer-0-rank-1", [sys.executable, "-c", JOINS_AND_STAYS, hub.address], None, {})
        stack.push_async_callback(child.end, leave_s)
        await child.start()
        children.append(child)
        return [child]

    async def work(*, form: Callable[[], Ranks], others: object) -> None:
        async with compute_thread(CPU) as thread:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(thread, form)
            os.kill(children[0].pid or 0, signal.SIGKILL)
            await loop.run_in_executor(thread, group.all_reduce)

    ranks.start_ranks = start_ranks  # type: ignore[assignment]
    ranks_module.form_group = lambda *_: group  # type: ignore[assignment]
    process.LET_GO_S = 1.0
    try:
        node = RunNode(WHO, RunAddress("ipc://x"), wait_s=None)
        session = NodeSession(node, WHO, MemoryHub().connect(WHO.peer), WELCOME)
        await ranks.with_ranks(session, work, only_machine("trainer-0", 2, "127.0.0.1"))
    except RankDied as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
