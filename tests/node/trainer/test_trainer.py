"""A trainer that cannot start reports the cause to the broker and to its caller."""

import asyncio

from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.run_file import decode
from asyncrl.node.trainer.trainer import run_trainer
from tests.node.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_trainer(run, who, wait_s=10.0, stopping=asyncio.Event())


def test_a_trainer_on_a_missing_device_leaves_with_the_cause() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "trainer": {"device": "npu"}})
    error, reason = refused(config, "trainer", start)
    assert error == reason
    assert "npu devices need torch_npu" in error
