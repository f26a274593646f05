"""Start vLLM's engine core and workers as processes of this node."""

import dataclasses
import secrets
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from asyncrl.config.config import Config
from asyncrl.errors import ConfigError, EngineDied
from asyncrl.rollout.engines.vllm.arguments import engine_args
from asyncrl.rollout.engines.vllm.environment import environment, on_cpu
from asyncrl.rollout.engines.vllm.load import LoadMeter
from asyncrl.weights.contents.architecture import config_changes

# ── launch ────────────────────────────────────────────────────────────────────────────────────

ON_ASCEND = {"weight_nz_mode": 0}
"""Settings of vllm-ascend that ``engine_args.additional_config`` may replace: no layout but the plain one takes new
weights."""

NO_VIDEOS = {"video": 0}
"""Most items of a prompt; ``engine_args`` may limit pictures. vLLM would set memory aside for the longest video."""

UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Given by class, because on a CPU vLLM reads the name ``uni`` as ``mp`` to bind threads, which is not wanted."""


def launch(config: Config, *, with_pictures: bool = False) -> AsyncLLM:
    """
    Start vLLM and load the model. May be called from any thread, with or without an event loop.

    Raises `ConfigError` if vLLM refuses its arguments or cannot run the model here, `EngineDied` if it does not start.
    """
    names = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    is_cpu = current_platform.is_cpu()
    args = engine_args(config, names, is_cpu=is_cpu)
    if with_pictures:
        args = {"limit_mm_per_prompt": NO_VIDEOS} | args
    args["seed"] = secrets.randbits(31)  # Requests without a seed draw from it, so no two engines may share one.
    if config.model.overrides:
        args["hf_overrides"] = config_changes(Path(config.model.path), config.model.overrides)
    if current_platform.device_type == "npu":
        args["additional_config"] = ON_ASCEND | args.get("additional_config", {})
    # With one worker the engine core is the worker: one process less to start and to message at every step.
    args["distributed_executor_backend"] = UNIPROC if config.rollout.vllm.tensor_parallel_size == 1 else "mp"
    with environment(on_cpu(config.rollout.threads) if is_cpu else {}):
        vllm_config = _vllm_config(args)
        if is_cpu:
            _check_heads(vllm_config)
        try:
            # Statistics cost time at every step, and only episodes are steered by them.
            meters = [LoadMeter] if config.environment.is_set else None
            return AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=True, stat_loggers=meters)
        except (RuntimeError, TimeoutError) as error:
            raise EngineDied(f"vLLM's engine did not start, see its output above: {error}") from error


def _vllm_config(args: dict[str, Any]) -> Any:
    try:
        return AsyncEngineArgs(**args).create_engine_config(UsageContext.ENGINE_CONTEXT)
    except (ValueError, TypeError, AssertionError, NotImplementedError, OSError) as error:
        raise ConfigError(f"vLLM refuses its arguments (rollout.vllm and model): {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The error's message without the text that pydantic adds."""
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return str(error)


def _check_heads(vllm_config: Any) -> None:
    """Raise if vLLM has no CPU attention kernel for the head size; vLLM itself would die at the first token."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # noqa: PLC0415  needs a CPU build

    size, sizes = vllm_config.model_config.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
    if not vllm_config.model_config.use_mla and size not in sizes:
        raise ConfigError(
            f"the model's attention heads have {size} values, but on a CPU vLLM supports only "
            f"{', '.join(map(str, sizes))}; use another model, or rollout.engine='transformers'"
        )
