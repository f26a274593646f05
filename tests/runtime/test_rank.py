"""A further rank of the trainer that cannot start reports the cause to the first rank."""

import asyncio

from asyncrl.config.run_file import decode
from asyncrl.runtime.rank import run_rank
from asyncrl.runtime.ranks import RankPlace
from asyncrl.wire.handshake import Identity
from asyncrl.wire.run_address import RunAddress
from tests.runtime.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_rank(run, run, who, RankPlace(1, 1, 2, "127.0.0.1", "ipc://x"), asyncio.Event())


def test_a_rank_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu", "ranks": 2}})
    error, reason = refused(config, "shard", start)
    assert error == reason
    assert "npu devices need torch_npu" in error
