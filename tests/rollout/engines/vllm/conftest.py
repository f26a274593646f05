"""One vLLM for all tests of this folder: starting it takes longer than all of them."""

import asyncio
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.environment import Environment
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.engine import Completion, Request
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.engine import VllmEngine

VOCAB = 64
VERSIONS = 6
"""Policies 0 .. 5, no two alike."""
BLOCK = 32
"""Tokens of a KV cache block, the least that a CPU's attention takes."""

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def build_model(policy_version: int) -> PreTrainedModel:
    """Weights large enough that the distributions are far from uniform. Heads as small as vLLM has them on a CPU."""
    torch.manual_seed(100 + policy_version)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def config(model_path: Path) -> Config:
    """Configuration of a run with the model."""
    return Config(
        model=Model(path=str(model_path)),
        data=Data(train="prompts.jsonl", max_prompt_tokens=160),
        sampling=SamplingConfig(max_tokens=240),
        environment=Environment(tools=["calculator"], max_tokens=240),  # its load is measured
        rollout=Rollout(
            engine="vllm",
            slots=16,
            vllm=Vllm(kv_cache_bytes=32 << 20, enforce_eager=True, engine_args={"block_size": BLOCK}),
        ),
    )


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A model directory with version 0, and all versions beside it."""
    path = tmp_path_factory.mktemp("model")
    build_model(0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    for version in range(VERSIONS):
        weights = {name: parameter.detach() for name, parameter in build_model(version).named_parameters()}
        save_file(weights, path / f"v{version}.safetensors")
    return path


@pytest.fixture(scope="session")
def loaded(config: Config) -> VllmEngine:
    """The one vLLM, started by `VllmEngine.load` in a thread that ends before it is used, as in a node."""
    pytest.importorskip("vllm")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")  # vLLM's own imports
        patch.syspath_prepend(Path(__file__).parent)  # vLLM's processes inherit the path
        _, why = arguments.FIXED["worker_extension_cls"]
        patch.setitem(arguments.FIXED, "worker_extension_cls", ("file_weights.FromFiles", why))
        engine = thread.submit(VllmEngine.load, config).result()
    sys.modules.pop("file_weights", None)
    return engine


@pytest.fixture(scope="session")
def run(loaded: VllmEngine) -> Iterator[Run]:
    """Runs a coroutine in the event loop that vLLM has bound itself to."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "3")  # outputs of one step are read in parts
        yield runner.run
        pid = core_pid(loaded)
        runner.run(loaded.aclose())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def core_pid(engine: VllmEngine) -> int:
    """Process id of vLLM's engine core."""
    (process,) = engine._adapter._llm.engine_core.resources.engine_manager.processes
    return process.pid


@pytest.fixture
def make_engine(
    loaded: VllmEngine, run: Run, tokenizer: PreTrainedTokenizerBase, model_path: Path
) -> Callable[..., VllmEngine]:
    """``make_engine(kv=...)``: an engine over the one vLLM, which has version 0 again."""

    def make(known: PreTrainedTokenizerBase = tokenizer, **options: Any) -> VllmEngine:
        engine = VllmEngine(loaded._adapter._llm, known, model_path=str(model_path), **options)
        run(_publish(loaded, 0))
        return engine

    return make


@pytest.fixture
def engine(make_engine: Callable[..., VllmEngine]) -> VllmEngine:
    """An engine with default options."""
    return make_engine()


@pytest.fixture
def publish() -> Callable[[VllmEngine, int], Awaitable[None]]:
    """``await publish(engine, version)`` pauses, swaps and resumes like an actor."""
    return _publish


@pytest.fixture(scope="session")
def model_of() -> Callable[[int], PreTrainedModel]:
    """The transformers model of a version."""
    return build_model


@pytest.fixture
def has_written() -> Callable[[VllmEngine, Request, int], Awaitable[Completion]]:
    """``await has_written(engine, request, num_tokens)`` waits for that many tokens and returns them."""
    return _has_written


async def _publish(engine: VllmEngine, policy_version: int) -> None:
    await engine.pause()
    await engine.swap(policy_version, {})
    await engine.resume()


async def _has_written(engine: VllmEngine, request: Request, num_tokens: int) -> Completion:
    async with asyncio.timeout(20):
        while not (written := engine.written(request)) or len(written.completion_ids) < num_tokens:
            await asyncio.sleep(0)
    return written
