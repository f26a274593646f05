"""A further rank of the trainer that cannot start reports the cause to the first rank."""

import asyncio

from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.run_file import decode
from asyncrl.node.trainer.place import RankPlace
from asyncrl.node.trainer.shard import run_shard
from tests.node.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_shard(run, run, who, RankPlace(1, 1, 2, "127.0.0.1", "ipc://x"), asyncio.Event())


def test_a_rank_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu", "ranks": 2}})
    error, reason = refused(config, "shard", start)
    assert error == reason
    assert "npu devices need torch_npu" in error
