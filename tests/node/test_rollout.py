"""A rollout's process says why it cannot begin, to the broker and to whoever started it."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from asyncrl.actor.zmq_link import ZmqHub
from asyncrl.client.handshake import identity
from asyncrl.config.sections import Config, Data, Model, Rollout, Vllm, to_json
from asyncrl.errors import ConfigError
from asyncrl.messages import Bye, Hello, Message, Welcome
from asyncrl.node.rollout import run_rollout


def refused(config: Config) -> tuple[str, str]:
    """What it raises, and what the broker hears."""
    heard: list[Message] = []

    async def broker(hub: ZmqHub) -> None:
        while not any(isinstance(message, Bye) for message in heard):
            peer, message = await hub.receive()
            heard.append(message)
            if isinstance(message, Hello):
                hub.send(peer, Welcome(1, str(Path.cwd()), to_json(config), "tcp://127.0.0.1:1", 0.5))

    async def scene() -> str:
        hub = ZmqHub("tcp://127.0.0.1:0")
        answering = asyncio.create_task(broker(hub))
        who = identity("rollout", "rollout-0")
        try:
            with pytest.raises(ConfigError) as error:
                await run_rollout(hub.address, who, wait_s=10.0, stopping=asyncio.Event())
            async with asyncio.timeout(10):
                await answering
        finally:
            answering.cancel()
            await hub.aclose()
        return str(error.value)

    said = asyncio.run(scene())
    (bye,) = [message for message in heard if isinstance(message, Bye)]
    return said, bye.reason


def with_vllm(each: int = 1) -> Config:
    return Config(
        model=Model(path="m"),
        data=Data(train="t"),
        rollout=Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each)),
    )


def test_an_engine_that_needs_more_devices_than_there_are_is_not_loaded(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    said, heard = refused(with_vllm(2))
    assert said == heard
    assert said == (
        "rollout.vllm.tensor_parallel_size = 2 needs 2 devices, but this process may use 1 (CUDA_VISIBLE_DEVICES=3)"
    )


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    said, heard = refused(with_vllm())
    assert said == heard
    assert "rollout.engine is 'vllm', but vLLM is not installed" in said
    assert "asyncrl[vllm]" in said
