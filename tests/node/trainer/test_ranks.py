"""A trainer of several processes fails at once when a rank dies before the group is formed."""

import asyncio
import sys
from collections.abc import Callable

import pytest

from asyncrl.actor.supervise import Child
from asyncrl.client.handshake import identity
from asyncrl.config.run_file import decode
from asyncrl.errors import RankDied
from asyncrl.messages import Welcome
from asyncrl.node.trainer import ranks
from asyncrl.node.trainer.ranks import with_ranks
from asyncrl.trainer.ranks.ranks import Ranks

WELCOME = Welcome(1, "run", b"{}", "tcp://spool", 0.5)
JOINS_AND_DIES = """
import asyncio, os, sys
from asyncrl.client.handshake import identity, join

async def main():
    await join(sys.argv[1], identity("shard", "trainer-0-rank-1"), 30.0)
    os._exit(3)

asyncio.run(main())
"""


@pytest.mark.timeout(60)
def test_a_rank_that_dies_before_the_group_is_formed_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"ranks": 2}})

    def dying(_who: object, rank: int, address: str, _store: object) -> Child:
        return Child(f"trainer-0-rank-{rank}", [sys.executable, "-c", JOINS_AND_DIES, address], None, {})

    async def load(form: Callable[[], Ranks], _: object) -> None:
        await asyncio.to_thread(form)

    async def main() -> None:
        monkeypatch.setattr(ranks, "_child", dying)
        with pytest.raises(RankDied, match="trainer-0-rank-1 exited with 3"):
            await with_ranks(config, identity("trainer", "trainer-0"), WELCOME, load)

    asyncio.run(main())  # ends the thread that waits for the group
