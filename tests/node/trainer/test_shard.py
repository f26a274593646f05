"""A further rank of the trainer that cannot start reports the cause to the first rank."""

import asyncio
from pathlib import Path

from asyncrl.client.handshake import Identity
from asyncrl.config.run_file import decode
from asyncrl.node.trainer.shard import run_shard
from tests.node.refusing import refused


async def start(address: str, who: Identity) -> None:
    await run_shard(address, who, 1, Path("store"), asyncio.Event())


def test_a_rank_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu", "ranks": 2}})
    error, reason = refused(config, "shard", start)
    assert error == reason
    assert "npu devices need torch_npu" in error
