"""
The built-in engine: a transformers model decoded in a thread of its own.

    event loop    generate ─▶ waiting             the caller's future ◀─ finished, turns of the loop
                                 │                                           ▲
    thread                       └─▶ SlotTable ─ one step, or one prefill ───┘
                                        ▲
    pause ─ swap ─ resume ──────────────┘ between two steps

Everything that computes runs in the thread: steps, prefills, pictures, new weights. The event loop of the host keeps
turning meanwhile, so that heartbeats, messages and users' requests never wait for a model. There is no task while there
is nothing to decode. Weights, cache and sampler are on the device of the model, the current one of the thread.

transformers' own continuous batching (5.19) is not used: it decodes in a background thread behind blocking queues,
draws all requests from one process-wide generator with `torch.multinomial`, so a request cannot have a seed, and can
neither tell which weights wrote a token nor recompute the cache of a running request.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from asyncrl.config.config import Config
from asyncrl.config.model.directory import check_model
from asyncrl.config.model.weights import check_weights
from asyncrl.engine import Completion, EngineLoad, Request
from asyncrl.errors import ConfigError, EngineError
from asyncrl.plug_in import describe
from asyncrl.rollout.engines import limits, text
from asyncrl.rollout.engines.limits import check
from asyncrl.rollout.engines.tokenized import TokenizedEngine
from asyncrl.rollout.engines.transformers import qwen3
from asyncrl.rollout.engines.transformers.forward import Forward, ModelForward, check_attention
from asyncrl.rollout.engines.transformers.kv_cache import KVCache, RouteCache
from asyncrl.rollout.engines.transformers.pictures import PlacedPictures, VisionTower, mrope
from asyncrl.rollout.engines.transformers.slots import SlotJob, SlotTable
from asyncrl.vision.processor import ENCODED, ImageProcessor
from asyncrl.weights.contents.architecture import NONE, on_meta, read_config, require_held, set_generation_config
from asyncrl.weights.contents.layout import TensorSpec
from asyncrl.weights.contents.token_ids import find_token_ids, load_tokenizer
from asyncrl.weights.groups.device import current, device_name, device_thread, torch_device
from asyncrl.weights.offload import Offloader

# ── turns ─────────────────────────────────────────────────────────────────────────────────────
# Turns of the event loop between two decode steps.
#
# A request takes several turns of the loop until it reaches the engine: a socket is read, a task starts, another
# wakes up. With a single turn between two steps, each of these would wait for a step.

QUIET = 2
"""Turns in a row without other work after which the loop has nothing to do; a wake-up alone may look like none."""
MOST = 32
"""Turns after which the next step runs in any case."""
NOISE = 3.0
"""A turn this many times longer than the shortest one had other work."""
FORGET = 1.001
"""Growth of the shortest duration per turn, so that it follows the machine's speed."""


class LoopTurns:
    """Gives the event loop turns until it has no other work."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._shortest_s = float("inf")

    async def give(self) -> int:
        """Let other tasks run. Returns the number of turns."""
        num_quiet = 0
        for turn in range(1, MOST + 1):
            start_s = self._clock()
            await asyncio.sleep(0)
            seconds = self._clock() - start_s
            self._shortest_s = min(self._shortest_s * FORGET, seconds)
            num_quiet = num_quiet + 1 if seconds <= NOISE * self._shortest_s else 0
            if num_quiet == QUIET:
                return turn
        return MOST


# ── picture forward ───────────────────────────────────────────────────────────────────────────
# Forward pass with pictures in the prefill, by transformers' own code of the model.


class PictureForward(ModelForward):
    """
    `Forward` that always passes positions [3, B, P] to the model.

    Without them transformers (5.19) reuses offsets stored on the module, which belong to another batch.
    """

    def __init__(self, model: PreTrainedModel, cache: KVCache, tower: VisionTower) -> None:
        super().__init__(model, cache)
        self._tower = tower

    def _inputs(self, ids: Tensor, lengths: Tensor, placed: Sequence[PlacedPictures | None]) -> dict[str, Any]:
        # Padding may have image tokens of an earlier request, and the model would expect a picture at each.
        real = self._columns[: ids.shape[1]] < lengths[:, None]
        inputs = {"input_ids": ids.where(real, 0)}
        if not placed:
            return inputs | {"position_ids": self._columns[: ids.shape[1]].expand(3, *ids.shape)}
        features = self._tower.see(placed)
        seen = SimpleNamespace(
            pooler_output=[features.embeddings], deepstack_features=[[layer] for layer in features.deepstack]
        )
        return inputs | {
            "position_ids": mrope(placed, ids.shape[1], ids.device),
            ENCODED: {"image": seen},
        }

    def _position_ids(self, rotary: Tensor) -> Tensor:
        return rotary[:, None].expand(3, -1, -1)


# ── engine ────────────────────────────────────────────────────────────────────────────────────

Result = TypeVar("Result")


class TransformersEngine(TokenizedEngine):
    """An `Engine` for one model, which it owns: parameters of some families move into shared storage."""

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
        split_special_tokens: bool = True,
        prefill_tokens: int = 0,
        processor: ImageProcessor | None = None,
        replay_routes: bool = False,
    ) -> None:
        """
        Allocate the KV cache.

        Args:
            max_tokens_per_slot: Longest prompt and completion together, tokens.
            kv: After new weights, ``recompute`` the cache of running completions or ``keep`` the old one.
            prefill_tokens: Most tokens that requests share a prefill with; 0 takes those of the device. A request that
                arrives meanwhile waits for its end; `PrefillPace` keeps that to about half a second.
            processor: Image processor of the model; None if the model reads no pictures.
            replay_routes: Record the experts of tokens, for requests that ask for it.

        Raises `ConfigError` if the model's attention does not fit the slots, its weights cannot be replaced, or it has
        no experts to record.
        """
        limits.check_loadable(model)
        super().__init__(
            tokenizer,
            chat_template_kwargs=chat_template_kwargs,
            split_special_tokens=split_special_tokens,
            processor=processor,
        )
        self._model = model.eval()
        self._tower = VisionTower(model, processor) if processor else None
        self._kv = kv
        self._slots = slots
        self._max_tokens = max_tokens_per_slot
        num_rows: int = model.get_input_embeddings().weight.shape[0]
        self.token_ids = find_token_ids(model, tokenizer, processor)
        self.device: torch.device = model.device
        """Device of the weights."""
        with current(self.device):
            self._table = SlotTable(
                _forward(model, slots, max_tokens_per_slot, self._tower),
                slots=slots,
                eos_ids=self.token_ids.ends,
                vocab_size=num_rows,
                stops_here=self._stops_here,
                policy_version=policy_version,
                prefill_tokens=prefill_tokens,
                device=self.device,
                never=self.token_ids.without_probability(num_rows),
            )
        self._thread = device_thread(self.device, "asyncrl-engine")
        self._waiting: deque[SlotJob] = deque()
        """Requests without a slot; changed under the table's lock, because the thread takes from it."""
        self._futures: dict[SlotJob, asyncio.Future[Completion]] = {}
        self._decoding: asyncio.Task[None] | None = None
        self._computing: asyncio.Future[None] | None = None
        """The step in the thread; None between two, when everything that it finished has reached its caller."""
        self._recomputing: Iterator[int] = iter(())
        """Recomputation of the cache after a swap; it ends before the next step."""
        if replay_routes:
            self._table.cache.routes = RouteCache(model, slots=slots, positions=max_tokens_per_slot)
        self._turns = LoopTurns()
        self._offloader = Offloader()
        self._is_paused = False
        self._is_closed = False

    @classmethod
    def load(
        cls,
        model_path: str,
        *,
        dtype: Literal["float32", "bfloat16"] = "float32",
        device: str = "cpu",
        overrides: Mapping[str, Any] = NONE,
        **options: Any,
    ) -> "TransformersEngine":
        """
        Load a model directory onto a device such as ``cuda:0``, with ``model.overrides``.

        ``options`` are those of the constructor.

        Raises `ConfigError` as the constructor does, or if there is no such device.
        """
        check_model(model_path, overrides)
        own = torch_device(device)
        tokenizer = load_tokenizer(model_path)
        processor = ImageProcessor.load(Path(model_path))
        family = AutoModelForImageTextToText if processor else AutoModelForCausalLM
        source = f"model.path={model_path}"
        try:
            config = read_config(Path(model_path), overrides)
            require_held(on_meta(family, config, source), check_weights(Path(model_path), "model.path"), source)
            model = family.from_pretrained(
                model_path,
                config=config,
                dtype=getattr(torch, dtype),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
            set_generation_config(model, Path(model_path), overrides)
        except ConfigError:
            raise
        except Exception as error:  # a wrong value in config.json may raise anything
            raise ConfigError(f"{source} cannot be loaded: {describe(error, __file__)}") from error
        with current(own):
            return cls(model.requires_grad_(False).to(own), tokenizer, processor=processor, **options)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "paused" if self._is_paused else "open"
        return f"<TransformersEngine {state} running={len(self._table)} waiting={len(self._waiting)}>"

    @property
    def policy_version(self) -> int:
        return self._table.policy_version

    def specs(self) -> list[TensorSpec]:
        return limits.specs(self._model)

    async def generate(self, request: Request) -> Completion:
        """
        See `Engine.generate`. Requests wait for a slot in order of priority, then of arrival.

        Invalid requests, damaged pictures and non-finite log-probs are final.
        """
        if self._is_closed:
            raise EngineError("the engine was closed")
        check(request, positions=self._max_tokens, vocab_size=self.token_ids.vocab_size)
        if request.sampling.replay_routes and self._table.cache.routes is None:
            raise EngineError("this engine records no experts: make it with replay_routes", retryable=False)
        job = SlotJob(request, await self._placed(request))
        if self._is_closed:
            raise EngineError("the engine was closed")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._futures[job] = future
        with self._table.lock:
            behind = (place for place, job in enumerate(self._waiting) if job.request.priority > request.priority)
            self._waiting.insert(next(behind, len(self._waiting)), job)
        self._wake()
        try:
            return await future
        finally:
            if self._futures.pop(job, None) is not None:  # cancelled
                self._abandon(job)

    async def _placed(self, request: Request) -> PlacedPictures | None:
        """Pictures of a request among its tokens; they are decoded in the thread."""
        if self._tower is not None:
            return await self._in_thread(self._tower.place, request) if request.images else self._tower.place(request)
        if request.images:
            raise EngineError(text.READS_NONE, retryable=False)
        return None

    def written(self, request: Request) -> Completion | None:
        """See `Engine.written`. A request that waits for a slot has the tokens of its ``resume_from``."""
        if job := next((job for job in self._futures if job.request is request), None):
            with current(self.device), self._table.lock:
                return request.resume_from if job in self._waiting else self._table.written(job)
        return None

    def measure(self) -> EngineLoad:
        """See `MeasuredEngine.measure`. A request uses the cache of its whole slot; no prefix outlives it."""
        num_running = len(self._table.running)
        return EngineLoad(num_running / self._slots, 0, num_running, len(self._waiting))

    @property
    def num_computed(self) -> int:
        """See `Engine`."""
        return self._table.num_computed

    async def pause(self) -> None:
        self._is_paused = True
        while self._is_paused and self._computing:
            await asyncio.wait([self._computing])

    async def swap(self, policy_version: int, weights: Mapping[str, Tensor]) -> None:
        """See `Engine.swap`. Raises `EngineError` and keeps the old weights if not paused or if they do not match."""
        if not self._is_paused:
            raise EngineError("swap needs a paused engine: call pause() first", retryable=False)
        await self._in_thread(self._load, policy_version, weights)

    def _load(self, policy_version: int, weights: Mapping[str, Tensor]) -> None:
        limits.load(self._model, weights)
        self._forget()
        self._table.set_version(policy_version)
        if self._kv == "recompute":
            self._recomputing = self._table.recompute()

    async def resume(self) -> None:
        self._is_paused = False
        self._wake()

    async def sleep(self) -> int:
        """See `SleepingEngine.sleep`. On a CPU the weights stay where they are, and the cache keeps its memory."""
        return await self._in_thread(self._park)

    def _park(self) -> int:
        self._forget()
        self._table.forget_memory()
        weights = [*self._model.parameters(), *self._model.buffers()]
        return self._offloader.offload(weights, self._table.cache.memory())

    async def wake(self) -> None:
        await self._in_thread(self._offloader.onload)

    async def aclose(self) -> None:
        self._is_closed = True
        if self._decoding is not None:
            self._decoding.cancel()
            await asyncio.wait([self._decoding])
        self._fail("the engine was closed")
        self._thread.shutdown(wait=False)

    # ── the loop ────────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        is_idle = self._decoding is None or self._decoding.done()
        if is_idle and self._has_work():
            self._decoding = asyncio.create_task(self._decode(), name="asyncrl-decode")
            self._decoding.add_done_callback(self._report)

    def _has_work(self) -> bool:
        return not self._is_paused and not self._is_closed and bool(self._waiting or self._table)

    async def _decode(self) -> None:
        while self._has_work():
            self._computing = asyncio.get_running_loop().create_future()
            try:
                for job, result in await self._in_thread(self._compute):
                    self._settle(job, result)
            finally:
                done, self._computing = self._computing, None
                done.set_result(None)
            await self._turns.give()

    def _compute(self) -> list[tuple[SlotJob, Completion | EngineError]]:
        """One batch of a recomputation, or one step with the prefill before it. Returns what has ended."""
        if next(self._recomputing, 0):
            return []
        self._table.admit(self._waiting)
        return self._table.step()

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """
        Call a function in the engine's thread, after the calls before it.

        It runs to its end even if the caller is cancelled, who is told then: nobody may change the slots under it.
        """
        running = asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            running.exception()  # It is nobody's any more.
            raise

    def _report(self, task: asyncio.Task[None]) -> None:
        """Fail every request if the decoding task failed, so that no caller waits forever."""
        if task.cancelled():
            self._fail("the engine was closed" if self._is_closed else "decoding was cancelled")
        elif (error := task.exception()) is not None:
            self._fail(f"decoding failed: {type(error).__name__}: {error}", error)

    def _settle(self, job: SlotJob, result: Completion | EngineError) -> None:
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

    def _abandon(self, job: SlotJob) -> None:
        with self._table.lock:
            if job in self._waiting:
                self._waiting.remove(job)
            elif job in self._table.running:
                self._table.release(job)

    def _forget(self) -> None:
        """Drop the features of pictures, because the weights have changed."""
        if self._tower is not None:
            self._tower.forget()


def load(config: Config) -> TransformersEngine:
    """Load ``config.model`` in this process, for `EngineEntry.load`. Raises as `TransformersEngine.load`."""
    torch.set_num_threads(config.rollout.threads)
    disable_progress_bar()  # a log is not a terminal
    return TransformersEngine.load(
        config.model.path,
        slots=config.rollout.slots,
        max_tokens_per_slot=config.longest_request,
        kv=config.rollout.kv,
        replay_routes=config.rollout.replay_routes,
        dtype=config.model.dtype,
        device=device_name(config.rollout.device),
        overrides=config.model.overrides,
        chat_template_kwargs=config.data.chat_template_kwargs,
        split_special_tokens=config.data.split_special_tokens,
    )


def _forward(model: PreTrainedModel, slots: int, positions: int, tower: VisionTower | None) -> Forward:
    """The fastest forward pass that supports this model."""
    config = model.config.get_text_config()
    check_attention(config, positions)
    cache = KVCache(config, slots=slots, positions=positions, dtype=model.dtype, device=model.device)
    if tower is not None:
        kind = qwen3.Qwen3VLForward if qwen3.fits_vl(model) else PictureForward
        return kind(model, cache, tower)
    return qwen3.Qwen3Forward(model, cache) if qwen3.fits(model) else ModelForward(model, cache)
