"""An engine's own processes: started from any thread, ended with the engine, and detected when they die."""

import asyncio
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import uvloop
from msgspec.structs import replace

pytest.importorskip("vllm")

from asyncrl.config.config import Config
from asyncrl.config.sections.run import Model
from asyncrl.engine import Request
from asyncrl.errors import ConfigError, EngineDied, EngineError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from tests.rollout.engines.vllm.conftest import core_pid

REQUEST = Request(prompt_ids=[5, 9, 7], sampling=Sampling(max_tokens=200, temperature=0.0), seed=0)


@contextmanager
def vllms_own_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


async def started(config: Config) -> VllmEngine:
    """Created in a thread that has ended before the engine is used, as in a node."""
    with vllms_own_warnings(), ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, VllmEngine.load, config)


@pytest.mark.long("the engine of all tests of this folder is made in a thread, and leaves no process")
def test_an_engine_made_in_a_thread_serves_the_loop_and_leaves_no_process(config, has_written):
    async def scenario() -> int:
        engine = await started(config)
        pid = core_pid(engine)
        running = asyncio.create_task(engine.generate(REQUEST))
        await has_written(engine, REQUEST, 1)
        await engine.aclose()
        with pytest.raises(EngineError, match="the engine was closed"):
            await running
        await engine.resume()  # An actor resumes the engine after every error.
        return pid

    pid = uvloop.run(scenario())

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow("vLLM starts")
def test_a_dead_engine_core_fails_every_call_with_its_pid_and_signal(config, has_written):
    async def scenario() -> None:
        engine = await started(config)
        running = asyncio.create_task(engine.generate(REQUEST))
        await has_written(engine, REQUEST, 1)
        pid = core_pid(engine)
        os.kill(pid, signal.SIGSTOP)
        pausing = asyncio.create_task(engine.pause())
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)

        for attempt in (running, pausing, engine.generate(REQUEST), engine.pause()):
            with pytest.raises(EngineDied, match=rf"vLLM's engine core \(pid {pid}\) died: signal 9"):
                await attempt
        await engine.aclose()

    uvloop.run(scenario())


def test_arguments_that_vllm_refuses_are_a_config_error(config, tmp_path):
    long = replace(config.rollout.vllm, max_model_len=10_000)
    refused = replace(config, rollout=replace(config.rollout, vllm=long))
    with vllms_own_warnings(), pytest.raises(ConfigError, match=r"^vLLM refuses its arguments .*10000"):
        VllmEngine.load(refused)

    with pytest.raises(ConfigError, match="is not a model directory"):
        VllmEngine.load(replace(config, model=Model(path=str(tmp_path))))


def test_a_model_that_would_kill_vllm_at_the_first_token_is_refused(config, make_model, tokenizer, tmp_path):
    make_model("qwen3").save_pretrained(tmp_path)  # heads of 8 values
    tokenizer.save_pretrained(tmp_path)

    short = replace(config.rollout, vllm=replace(config.rollout.vllm, max_model_len=200))
    with vllms_own_warnings(), pytest.raises(ConfigError, match="heads have 8 values"):
        VllmEngine.load(replace(config, model=Model(path=str(tmp_path)), rollout=short))
