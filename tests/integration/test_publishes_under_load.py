"""
Fifty versions are published to an engine under constant load.

The log-prob of every token is compared with that of the model of its recorded version, given all tokens before it. The
comparison fails for a wrong version, for a request that was started again, and for a cached key of older weights.
"""

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Completion, Engine, Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from tests.rollout.engines.feeding import feed

pytestmark = [
    pytest.mark.slow("vLLM starts"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # vLLM leaves sockets open
]

PUBLISHES, REQUESTS = 50, 8
VOCAB, EOS = 64, 0
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [13, 14], [15, 16, 17, 18]]
LOAD = Sampling(max_tokens=150, temperature=1.0)
GREEDY = Sampling(max_tokens=12, temperature=0.0)
TOLERANCE = 2e-4
"""Tolerance of float32 sums computed in two orders."""
WEIGHTS = Weights(bucket_bytes=16384)


def build() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    words = Tokenizer(models.WordLevel({"<eos>": EOS} | {f"w{i}": i for i in range(1, VOCAB)}, unk_token="w1"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(tmp_path)
    build().save_pretrained(tmp_path)
    return tmp_path


def transformers_engine(path: Path) -> Engine:
    return TransformersEngine.load(str(path), slots=REQUESTS + 2, max_tokens_per_slot=170)


def vllm_engine(path: Path) -> Engine:
    pytest.importorskip("vllm")
    config = Config(
        model=Model(path=str(path)),
        data=Data(train="prompts.jsonl", max_prompt_tokens=20),
        sampling=SamplingConfig(max_tokens=150),
        rollout=Rollout(engine="vllm", slots=REQUESTS + 2, vllm=Vllm(kv_cache_bytes=32 << 20, enforce_eager=True)),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from vLLM's imports
        return VllmEngine.load(config)


class Load:
    """Sends requests until stopped; counts the started ones and keeps the finished ones."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stopping = False
        self.num_started = 0
        self.done: list[tuple[Request, Completion]] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._ask(PROMPTS[i % len(PROMPTS)]) for i in range(REQUESTS)))

    async def _ask(self, prompt_ids: list[int]) -> None:
        while not self._stopping:
            request = Request(prompt_ids=prompt_ids, sampling=LOAD, seed=self.num_started)
            self.num_started += 1
            self.done.append((request, await self._engine.generate(request)))

    async def progress(self, num_tokens: int) -> None:
        """Wait until that many more tokens have been sampled."""
        before = self._num_tokens()
        while self._num_tokens() - before < num_tokens:
            await asyncio.sleep(0.001)

    def stop(self) -> None:
        self._stopping = True

    def _num_tokens(self) -> int:
        return sum(len(completion.completion_ids) for _, completion in self.done)


def greedy(model: PreTrainedModel, prompt_ids: list[int]) -> list[int]:
    """Greedy completion of a fresh model."""
    token_ids = torch.tensor([prompt_ids])
    with torch.no_grad():
        for _ in range(GREEDY.max_tokens):
            token_ids = torch.cat([token_ids, model(token_ids).logits[:, -1:].argmax(-1)], 1)
            if token_ids[0, -1] == EOS:
                break
    return token_ids[0, len(prompt_ids) :].tolist()


@pytest.mark.parametrize(
    "make", [transformers_engine, pytest.param(vllm_engine, marks=pytest.mark.long("vLLM starts"))]
)
def test_fifty_publishes_lose_no_request_and_every_token_has_the_version_of_its_span(
    path: Path, make: Callable[[Path], Engine]
) -> None:
    torch.set_num_threads(1)
    model, versions = build(), []
    engine = make(path)

    async def play() -> Load:
        load = Load(engine)
        async with feed(engine, model, WEIGHTS) as fed:
            running = asyncio.create_task(load.run())
            versions.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            for version in range(1, PUBLISHES + 1):
                await load.progress(60)
                train(model, versions)
                await fed.publish(model, version)
                prompt_ids = PROMPTS[version % len(PROMPTS)]  # older weights have processed this prompt
                fresh = await engine.generate(Request(prompt_ids=prompt_ids, sampling=GREEDY, seed=0))
                assert fresh.completion_ids == greedy(model, prompt_ids), f"version {version}"
            load.stop()
            await running
        return load

    with asyncio.Runner() as runner:
        try:
            load = runner.run(play())
        finally:
            runner.run(engine.aclose())
    assert len(load.done) == load.num_started, "a request was lost"
    assert all(len(c.completion_ids) == LOAD.max_tokens or c.completion_ids[-1] == EOS for _, c in load.done)
    assert sum(len(c.spans) > 1 for _, c in load.done) > PUBLISHES / 2, "too few completions span a swap"
    for request, completion in load.done:
        expected = logprobs(model, versions, request, completion)
        assert torch.tensor(completion.behavior_logprobs).sub(expected).abs().max() < TOLERANCE


def train(model: PreTrainedModel, versions: list[dict[str, Tensor]]) -> None:
    """Set the weights to those of the base model with noise."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(versions[0][name] + torch.randn_like(parameter) * 0.05)
    versions.append({name: tensor.clone() for name, tensor in model.state_dict().items()})


@torch.no_grad()
def logprobs(
    model: PreTrainedModel, versions: list[dict[str, Tensor]], request: Request, completion: Completion
) -> Tensor:
    """[T] log-probs, each under the version of its span."""
    token_ids = torch.tensor(completion.completion_ids)
    first = len(request.prompt_ids)
    parts = []
    for span in completion.spans:
        model.load_state_dict(versions[span.policy_version])
        logits = model(torch.tensor([request.prompt_ids + completion.completion_ids])).logits[0]
        everything = logits[first - 1 : -1].log_softmax(-1).gather(-1, token_ids[:, None])[:, 0]
        parts.append(everything[span.start : span.end])
    return torch.cat(parts)
