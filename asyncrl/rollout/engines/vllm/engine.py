"""
vLLM as an `Engine` whose workers receive the weights, or map those that the node has fetched or that one of them has.

    generate ─▶ vLLM's queue ─ steps in vLLM's process ─▶ the finished completion
                                  │
    pause ─── no step runs, all tokens have arrived ─── swap ─── resume
                                  └─▶ token count of each request: its next span starts there

Invariants:
 - A token's version is that of the step that wrote it, however late it is read: spans are cut by counts taken while
   no step runs, never by arrival times.
 - No request starts with keys and values of older weights: ``kv="recompute"`` drops all of them at every swap; under
   ``kv="keep"`` a request without tokens restarts, and shares cached prefixes only with requests of its version.
"""

import asyncio
import math
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.config.sections.weights import Weights
from asyncrl.engine import Completion, EngineLoad, Request, Send, WeightReceiver
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.weights import Member
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.limits import check
from asyncrl.rollout.engines.tokenized import TokenizedEngine
from asyncrl.rollout.engines.vllm import checkpoint
from asyncrl.rollout.engines.vllm.arguments import NOT_INSTALLED, reads_pictures
from asyncrl.rollout.engines.vllm.environment import DEFAULTS, environment
from asyncrl.rollout.engines.vllm.relay import WorkersReceiver
from asyncrl.rollout.engines.vllm.request import VllmRequest, placed
from asyncrl.vision.processor import ImageProcessor
from asyncrl.weights.contents.architecture import NONE
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.contents.token_ids import load_tokenizer
from asyncrl.weights.shared import SharedTensors, shared_staging

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.engine.async_llm import AsyncLLM

    from asyncrl.rollout.engines.vllm.adapter import VllmOutput

# ruff: noqa: PLC0415  vLLM takes seconds to import, and its logging is configured first


class VllmEngine(TokenizedEngine):
    """An `Engine`, `MultiProcessEngine` and `MeasuredEngine` for one vLLM."""

    def __init__(
        self,
        llm: "AsyncLLM",
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_path: str,
        kv: Literal["keep", "recompute"] = "recompute",
        policy_version: int = 0,
        chat_template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
        split_special_tokens: bool = True,
        overrides: Mapping[str, Any] = NONE,
        owns_llm: bool = False,
    ) -> None:
        """
        Use a vLLM that is running already.

        Args:
            llm: Runs ``model_path`` with `asyncrl.rollout.engines.vllm.arguments.FIXED`; may serve others too, who are
                given no ids without a text either. For runs with ``sampling.seeded = false`` it needs a ``seed`` that
                no other rollout has: vLLM's default is 0.
            kv: After new weights, ``recompute`` the cache of running completions or ``keep`` the old one.
            overrides: ``model.overrides``, which ``llm`` has as ``hf_overrides``.
            owns_llm: Closing this engine shuts ``llm`` down.

        Raises `ConfigError` if ``llm`` has other arguments, or ``model_path`` has no causal language model.
        """
        from asyncrl.rollout.engines.vllm.adapter import Adapter

        super().__init__(
            tokenizer,
            chat_template_kwargs=chat_template_kwargs,
            split_special_tokens=split_special_tokens,
            processor=ImageProcessor.load(Path(model_path)),
        )
        self._adapter = Adapter(llm)
        self.ranks = self._adapter.ranks
        self._owns_llm = owns_llm
        self._kv = kv
        self.policy_version = policy_version
        self._salt = uuid.uuid4().hex
        """Key of the current weights in vLLM's prefix cache. Random: weights made again may share a version."""
        self._checkpoint = checkpoint.read(model_path, tokenizer, self._adapter.dtype, overrides, self._processor)
        self.token_ids = self._checkpoint.token_ids
        self._checking: asyncio.Task[None] | None = None
        self._requests: list[VllmRequest] = []
        self._num_written = 0
        """Tokens of requests that have ended."""
        self._is_paused = False
        self._is_closed = False

    @classmethod
    def load(cls, config: Config, *, policy_version: int = 0) -> "VllmEngine":
        """Start vLLM and load the model, in any thread. Raises `ConfigError` or `EngineDied`, as `launch` does."""
        if find_spec("vllm") is None:
            raise ConfigError(NOT_INSTALLED)
        check_model(config.model.path, config.model.overrides)
        tokenizer = load_tokenizer(config.model.path)
        with_pictures = reads_pictures(config.model.path)
        with environment(DEFAULTS):
            from asyncrl.rollout.engines.vllm.launch import launch

            return cls(  # No variable for vLLM: its imports keep this frame alive.
                launch(config, with_pictures=with_pictures),
                tokenizer,
                model_path=config.model.path,
                kv=config.rollout.kv,
                policy_version=policy_version,
                chat_template_kwargs=config.data.chat_template_kwargs,
                split_special_tokens=config.data.split_special_tokens,
                overrides=config.model.overrides,
                owns_llm=True,
            )

    def specs(self) -> list[TensorSpec]:
        return self._checkpoint.specs

    # ── requests ────────────────────────────────────────────────────────────────────────────

    async def generate(self, request: Request) -> Completion:
        """
        Sample one completion. Unlike `Engine.generate`, a resumed request has draws of its own: a function of its seed
        and its number of resumed tokens, but not those of an uninterrupted request, because vLLM cannot skip draws.

        Invalid requests and weights without finite log-probabilities are not retryable. Raises `ConfigError` if vLLM's
        workers would give wrong log-probs.
        """
        if self._is_closed:
            raise EngineError("the engine was closed")
        check(request, positions=self._adapter.max_tokens, vocab_size=self.token_ids.vocab_size)
        vllm_request = VllmRequest(request, placed(request, self._processor), self._checkpoint.expert_layers)
        self._requests.append(vllm_request)
        try:
            await self._workers_checked()
            output = await self._sample(vllm_request)
        finally:
            self._requests.remove(vllm_request)
        self._num_written += len(output.token_ids)
        if not all(map(math.isfinite, output.logprobs)):
            raise EngineError(
                f"policy version {self.policy_version} gave log-probabilities that are not finite; check its weights",
                retryable=False,
            )
        return vllm_request.completion(output, "length" if output.finish_reason == "length" else "stop")

    def written(self, request: Request) -> Completion | None:
        """See `Engine.written`. A request that waits in vLLM has the tokens of its ``resume_from``."""
        vllm_request = next((candidate for candidate in self._requests if candidate.request is request), None)
        if vllm_request is None:
            return None
        output = self._adapter.written(vllm_request.id)
        return vllm_request.completion(output, "unfinished") if output and output.token_ids else request.resume_from

    @property
    def num_computed(self) -> int:
        """See `Engine`: tokens written so far."""
        return self._num_written + sum(self._adapter.num_written(one.id) or 0 for one in self._requests)

    def measure(self) -> EngineLoad | None:
        """See `MeasuredEngine.measure`."""
        return self._adapter.measure()

    async def _workers_checked(self) -> None:
        """Return once the workers were checked. Done at the first call, as vLLM starts without an event loop."""
        if self._checking is None:
            self._checking = asyncio.create_task(self._adapter.check_workers(self._checkpoint.without_probability))
        await asyncio.shield(self._checking)  # A caller that is cancelled leaves the check to the others.
        if self._is_closed:
            raise EngineError("the engine was closed")

    async def _sample(self, vllm_request: VllmRequest) -> "VllmOutput":
        sampling = vllm_request.request.sampling
        params = self._adapter.params(
            sampling,
            max_tokens=sampling.max_tokens - vllm_request.num_resumed,
            seed=vllm_request.seed,
            eos_ids=list(self.token_ids.ends),
            spells_special=any(token in string for string in sampling.stop for token in self._special.values()),
        )
        while True:
            prompt = await self._adapter.prepare(vllm_request.prompt)
            vllm_request.begin(self.policy_version)  # Nothing is awaited until vLLM has the request.
            output = await self._adapter.sample(
                vllm_request.id, prompt, params, self._salt, vllm_request.request.priority
            )
            if output.finish_reason in ("stop", "length"):
                _check_prompt(vllm_request, output)
                return self._until_stop(vllm_request, output)
            if not vllm_request.restarts:
                raise EngineError("the engine was closed" if self._is_closed else "vLLM aborted the request")

    def _until_stop(self, vllm_request: VllmRequest, output: "VllmOutput") -> "VllmOutput":
        """Cut at the end of a stop string that starts in the resumed tokens, which vLLM takes for prompt."""
        stop, resumed = vllm_request.request.sampling.stop, vllm_request.resumed_ids
        if not stop or not resumed:
            return output
        window = text.stop_window(stop)
        for end in range(1, min(window, len(output.token_ids)) + 1):
            if self._stops_here(resumed[-window:] + output.token_ids[:end], stop):
                return replace(
                    output,
                    token_ids=output.token_ids[:end],
                    logprobs=output.logprobs[:end],
                    masks=output.masks[:end],
                    finish_reason="stop",
                )
        return output

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    async def receiver(self, member: Member, send: Send, weights: Weights, *, interface: str) -> WeightReceiver:
        """See `MultiProcessEngine.receiver`. Raises `ConfigError` if vLLM's workers cannot take new weights."""
        await self._workers_checked()
        adapter, specs = self._adapter, self.specs()
        is_shared = weights.staging == "whole" and self.ranks > 1
        connect = WorkersReceiver.connect
        return await connect(
            adapter.call_workers,
            specs,
            member,
            send,
            weights,
            interface=interface,
            get_cause=adapter.engine_died,
            staging=shared_staging(Layout(specs, weights.bucket_bytes)) if is_shared else None,
        )

    async def pause(self) -> None:
        """See `Engine.pause`. Requests and caches are kept."""
        await self._adapter.pause()
        self._is_paused = True

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]") -> None:
        """
        Have the workers load the version they have received, or ``weights`` from shared memory; see `Engine.swap`.

        Raises `EngineError` if not paused, or ``weights`` are elsewhere, and changes nothing. An error of the workers
        leaves the engine unusable.
        """
        if not self._is_paused:
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        call: tuple[str, object] = ("asyncrl_swap", policy_version)
        if weights:
            call = "asyncrl_swap_shared", msgspec.json.encode(SharedTensors.locate(weights)).decode()
        await asyncio.gather(  # Concurrent: no step runs, and each round trip would lengthen the pause.
            self._adapter.call_workers(*call),
            self._adapter.announce_weights(policy_version, reset_cache=self._kv == "recompute"),
        )
        self.policy_version, self._salt = policy_version, uuid.uuid4().hex
        for vllm_request in self._requests:
            num_written = self._adapter.num_written(vllm_request.id) or 0
            vllm_request.spans.set_version(policy_version, vllm_request.num_resumed + num_written)
            vllm_request.restarts = self._kv == "keep" and not num_written
        await self._adapter.abort([vllm_request.id for vllm_request in self._requests if vllm_request.restarts])

    async def resume(self) -> None:
        """See `Engine.resume`. Also ends a `pause` that was cancelled."""
        if not self._is_closed:
            await self._adapter.resume()
        self._is_paused = False

    async def sleep(self) -> int:
        """See `SleepingEngine.sleep`. vLLM must have been started with ``enable_sleep_mode``."""
        await self._adapter.sleep()
        return sum(spec.num_bytes for spec in self.specs())

    async def wake(self) -> None:
        """See `SleepingEngine.wake`."""
        await self._adapter.wake()

    async def aclose(self) -> None:
        """See `Engine.aclose`. If this engine owns vLLM, returns when its processes have ended."""
        self._is_closed = True
        await self._adapter.abort([vllm_request.id for vllm_request in self._requests])
        if self._owns_llm:
            await self._adapter.aclose()


def _check_prompt(vllm_request: VllmRequest, output: "VllmOutput") -> None:
    """Raise `EngineError` if vLLM counts other image tokens than the request: the trainer would see another prompt."""
    if output.num_prompt_tokens != vllm_request.num_prompt_tokens:
        raise EngineError(
            f"vLLM read a prompt as {output.num_prompt_tokens} tokens, expected {vllm_request.num_prompt_tokens}: it "
            f"cuts pictures otherwise than asyncrl; remove what rollout.vllm.engine_args sets for pictures",
            retryable=False,
        )
