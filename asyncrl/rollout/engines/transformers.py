"""
The engine that comes with asyncrl: a transformers model, decoded in the host's own event loop.

    generate ─▶ waiting ─▶ SlotTable ─ one step, one turn of the loop, one step … ─▶ the caller's future
                              ▲
             pause ─ swap ─ resume       nothing runs between two steps, so there is nothing to lock

No thread, and no task while there is nothing to decode.

transformers' own continuous batching (5.19) is not used: it decodes in a background thread behind blocking queues,
draws every request from one process-wide generator with `torch.multinomial`, so that a request cannot have a seed, and
can neither say which weights wrote a token nor compute the cache of a running request again.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages import Prompt
from asyncrl.rollout.engine import Completion, Request
from asyncrl.rollout.engines import parameters, qwen3, text
from asyncrl.rollout.engines.forward import Forward, ModelForward, check_attention
from asyncrl.rollout.engines.job import Job
from asyncrl.rollout.engines.kv_cache import KVCache
from asyncrl.rollout.engines.limits import check
from asyncrl.rollout.engines.slots import SlotTable
from asyncrl.weights.contents.layout import TensorSpec


class TransformersEngine:
    """An `Engine` over one model. Takes the model over: parameters of some families move into shared storage."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        slots: int,
        max_tokens_per_slot: int,
        kv: Literal["keep", "recompute"] = "recompute",
        policy_version: int = 0,
        chat_template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    ) -> None:
        """
        Allocate the cache; nothing is computed yet.

        Args:
            model: On its device, in its dtype.
            tokenizer: The model's.
            slots: Completions decoded together.
            max_tokens_per_slot: Longest prompt and completion together.
            kv: After new weights, compute the cache of running completions again, or go on with the old one.
            policy_version: Whose weights the model has now.
            chat_template_kwargs: Handed to the tokenizer's chat template with every chat.

        Raises:
            ConfigError: The model's attention does not fit the slots, or its weights cannot be replaced.
        """
        parameters.check_loadable(model)
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._template_kwargs = chat_template_kwargs
        self._kv = kv
        self._max_tokens = max_tokens_per_slot
        self._vocab_size: int = model.get_input_embeddings().weight.shape[0]
        self._table = SlotTable(
            _forward(model, slots, max_tokens_per_slot),
            slots=slots,
            eos_ids=text.eos_ids(model, tokenizer),
            vocab_size=self._vocab_size,
            stops_here=self._stops_here,
            policy_version=policy_version,
            device=model.device,
        )
        self._waiting: deque[Job] = deque()
        self._futures: dict[Job, asyncio.Future[Completion]] = {}
        self._decoding: asyncio.Task[None] | None = None
        self._recomputing: Iterator[int] = iter(())
        """The cache of what ran when the weights changed, on its way to be theirs; nothing is decoded before it is."""
        self._is_paused = False
        self._is_closed = False

    @classmethod
    def load(
        cls,
        model_path: str,
        *,
        slots: int,
        max_tokens_per_slot: int,
        kv: Literal["keep", "recompute"] = "recompute",
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: str = "cpu",
        policy_version: int = 0,
        chat_template_kwargs: text.TemplateKwargs = text.NO_KWARGS,
    ) -> "TransformersEngine":
        """
        An engine of a model directory.

        Raises:
            ConfigError: The directory holds no model or no tokenizer, or the model is not one this engine can run.
        """
        tokenizer = text.load_tokenizer(model_path)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                model_path, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"model.path {model_path!r} cannot be loaded: {error}") from error
        model.requires_grad_(False).to(device)
        return cls(
            model,
            tokenizer,
            slots=slots,
            max_tokens_per_slot=max_tokens_per_slot,
            kv=kv,
            policy_version=policy_version,
            chat_template_kwargs=chat_template_kwargs,
        )

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "paused" if self._is_paused else "open"
        return f"<TransformersEngine {state} running={len(self._table)} waiting={len(self._waiting)}>"

    @property
    def policy_version(self) -> int:
        """Whose weights write the next token."""
        return self._table.policy_version

    def encode(self, prompt: Prompt) -> list[int]:
        """As `Engine.encode`."""
        return text.encode(self._tokenizer, prompt, self._template_kwargs)

    def decode(self, token_ids: list[int]) -> str:
        """As `Engine.decode`."""
        return text.decode(self._tokenizer, token_ids)

    def specs(self) -> list[TensorSpec]:
        """As `Engine.specs`. Tied parameters once."""
        return parameters.specs(self._model)

    async def generate(self, request: Request) -> Completion:
        """
        As `Engine.generate`. Requests wait for a slot in the order they came.

        Raises:
            EngineError: Not retryable if the request cannot be served as it is, or the weights give no finite
                log-probabilities; retryable if the engine was closed or decoding broke down.
        """
        if self._is_closed:
            raise EngineError("the engine was closed")
        check(request, positions=self._max_tokens, vocab_size=self._vocab_size)
        job = Job(request)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._futures[job] = future
        self._waiting.append(job)
        self._wake()
        try:
            return await future
        finally:
            if self._futures.pop(job, None) is not None:  # cancelled: nobody wants the rest
                self._abandon(job)

    def written(self, request: Request) -> Completion | None:
        """As `Engine.written`. A request that waits for a slot has what it came with."""
        if job := next((job for job in self._futures if job.request is request), None):
            return request.resume_from if job in self._waiting else self._table.written(job)
        return None

    async def pause(self) -> None:
        """As `Engine.pause`. Whoever can call it runs between two steps already."""
        self._is_paused = True

    async def swap(self, policy_version: int, weights: Mapping[str, Tensor]) -> None:
        """
        As `Engine.swap`.

        Raises:
            EngineError: Not paused, or a name or shape is not the model's; the old weights are untouched.
        """
        if not self._is_paused:
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        parameters.load(self._model, weights)
        self._table.turn(policy_version)
        if self._kv == "recompute":
            self._recomputing = self._table.recompute()

    async def resume(self) -> None:
        """As `Engine.resume`."""
        self._is_paused = False
        self._wake()

    async def aclose(self) -> None:
        """As `Engine.aclose`. Idempotent."""
        self._is_closed = True
        if self._decoding is not None:
            self._decoding.cancel()
            await asyncio.wait([self._decoding])
        self._fail("the engine was closed")

    # ── the loop ────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        """Decode from the next turn of the event loop on, if there is anything to decode."""
        is_idle = self._decoding is None or self._decoding.done()
        if is_idle and self._has_work():
            self._decoding = asyncio.create_task(self._decode(), name="asyncrl-decode")
            self._decoding.add_done_callback(self._report)

    def _has_work(self) -> bool:
        return not self._is_paused and not self._is_closed and bool(self._waiting or self._table)

    async def _decode(self) -> None:
        while self._has_work():
            if next(self._recomputing, 0):
                await asyncio.sleep(0)
                continue
            self._table.admit(self._waiting)
            for job, result in self._table.step():
                self._settle(job, result)
            await asyncio.sleep(0)

    def _report(self, task: asyncio.Task[None]) -> None:
        """Decoding ended. If it broke down, so did every request: a caller must not wait for ever."""
        if task.cancelled():
            self._fail("the engine was closed" if self._is_closed else "decoding was cancelled")
        elif (error := task.exception()) is not None:
            self._fail(f"decoding broke down: {type(error).__name__}: {error}", error)

    def _settle(self, job: Job, result: Completion | EngineError) -> None:
        future = self._futures.pop(job, None)
        if future is None or future.done():
            return
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _fail(self, reason: str, cause: BaseException | None = None) -> None:
        self._table.clear()
        self._recomputing = iter(())
        self._waiting.clear()
        for job in list(self._futures):
            error = EngineError(reason)
            error.__cause__ = cause
            self._settle(job, error)

    def _abandon(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._table.running:
            self._table.release(job)

    def _stops_here(self, token_ids: list[int], stop: list[str]) -> bool:
        written = text.decode(self._tokenizer, token_ids)
        return any(string in written for string in stop)


def _forward(model: PreTrainedModel, slots: int, positions: int) -> Forward:
    """The fastest way to run this model."""
    config = model.config.get_text_config()
    check_attention(config, positions)
    cache = KVCache(config, slots=slots, positions=positions, dtype=model.dtype, device=model.device)
    return qwen3.Qwen3Forward(model, cache) if qwen3.fits(model) else ModelForward(model, cache)
