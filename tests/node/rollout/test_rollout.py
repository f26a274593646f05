"""A rollout that cannot start reports the cause to the broker and to its caller."""

import asyncio
from importlib.util import find_spec
from socket import gethostname

import pytest

from asyncrl.client.handshake import Identity
from asyncrl.client.run_address import RunAddress
from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.node.rollout.rollout import run_rollout
from tests.node.refusing import refused


async def start(run: RunAddress, who: Identity) -> None:
    await run_rollout(run, who, wait_s=10.0, stopping=asyncio.Event())


def with_vllm(each: int = 1) -> Config:
    return Config(
        model=Model(path="m"),
        data=Data(train="t"),
        rollout=Rollout(engine="vllm", vllm=Vllm(tensor_parallel_size=each)),
    )


@pytest.mark.slow("vLLM takes seconds to import")
def test_an_engine_that_needs_more_devices_than_there_are_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    error, reason = refused(with_vllm(2), "rollout", start)
    assert error == reason
    assert error == (
        f"on {gethostname()}: rollout.vllm.tensor_parallel_size = 2 needs 2 devices, but this process may use 1 "
        f"(CUDA_VISIBLE_DEVICES=3)"
    )


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_an_engine_that_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    error, reason = refused(with_vllm(), "rollout", start)
    assert error == reason
    assert "rollout.engine is 'vllm', but vLLM is not installed" in error
    assert "asyncrl[vllm]" in error
