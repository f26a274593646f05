"""Settings of rollouts."""

from operator import attrgetter
from typing import Any, Literal

from asyncrl.config.engines import EngineEntry, engine_entry
from asyncrl.config.sections.section import Count, Fraction, Natural, NonNegative, Section


class Vllm(Section, frozen=True, kw_only=True):
    """Settings of ``rollout.engine = "vllm"``."""

    tensor_parallel_size: Count = 1
    """Devices that share one engine's model [tensor_model_parallel_size]."""
    gpu_memory_utilization: Fraction = 0.9
    """Fraction of a device's memory for weights, activations and KV cache."""
    kv_cache_bytes: Natural = 0
    """Bytes of KV cache on each device; 0 takes what ``gpu_memory_utilization`` leaves [kv_cache_memory_bytes]."""
    enforce_eager: bool = False
    """Neither compile nor capture graphs: starts sooner, decodes slower."""
    max_model_len: Natural = 0
    """Longest request, prompt and completion together, in tokens; 0 takes the longest that this run can have."""
    enable_chunked_prefill: bool | None = None
    """Read long prompts in parts, between decode steps of others. Unset: true, except on a CPU, which lacks it."""
    engine_args: dict[str, Any] = {}
    """Further engine arguments by vLLM's names; those that asyncrl sets itself are refused [engine_kwargs.vllm]."""


class Rollout(Section, frozen=True, kw_only=True):
    """Processes that sample trajectories."""

    replicas: Count = 2
    """Number of rollout processes that ``asyncrl run`` starts."""
    engine: str = "transformers"
    """
    ``transformers`` comes with asyncrl and runs anywhere; ``vllm`` is installed separately and fast on devices. Or
    ``file.py:name``, a function of the configuration that returns an `Engine` of your own.
    """
    vllm: Vllm = Vllm()
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """
    Device of each rollout. ``auto`` is the cpu for transformers, and for vLLM the first available of cuda, npu and cpu.
    On a machine with one device, rollouts share it with a trainer of the same ``trainer.device``.
    """
    colocated: bool = False
    """
    Trainer and rollouts take turns at the same devices, as in synchronous recipes [actor_rollout_ref.hybrid_engine]:
    rollouts sleep while the trainer trains, and the trainer's memory is on the host while they sample.
    """
    slots: Count = 64
    """Completions that one engine decodes together [max_num_seqs]."""
    kv: Literal["keep", "recompute"] = "recompute"
    """KV cache of running completions after new weights are loaded: recompute it, or keep the old one."""
    replay_routes: bool = False
    """
    With a mixture of experts: record which experts each token takes in each layer, and have the trainer send it to the
    same ones. A byte for each, two with more than 256 experts [enable_rollout_routing_replay].
    """
    threads: Count = 1
    """Torch threads of one rollout; with vLLM those of each of its processes, on a CPU."""
    progress_every_s: NonNegative = 0.0
    """Seconds between two saves of unfinished completions, the most that a killed node loses; 0 never saves."""
    episodes: Natural = 0
    """
    Episodes in hand at a time, with an ``[environment]``: more than ``slots``, because an episode whose environment
    thinks needs no slot. 0 takes twice ``slots``, or four for each core of ``environment.command``, each of which is a
    process.
    """
    drain_s: NonNegative = 30.0
    """Seconds after SIGTERM to save unfinished completions, which other nodes then continue."""

    @property
    def entry(self) -> EngineEntry:
        """Entry of the engine in the catalogue; raises `ConfigError` if there is none of this name."""
        return engine_entry(self.engine)

    @property
    def wanted_device(self) -> Literal["auto", "cpu", "cuda", "npu"]:
        """``device`` as the engine understands it: not every engine takes what it finds."""
        return self.entry.auto_device if self.device == "auto" else self.device

    @property
    def num_devices(self) -> int:
        """Devices that share one engine's model, if it is on devices: as many processes hold a part of it each."""
        return int(self.own(self.entry.num_devices, 1))

    def own(self, key: str, default: Any = None) -> Any:
        """Value of a setting by its key below ``[rollout]``; ``default`` for the empty key of one that is not there."""
        return attrgetter(key)(self) if key else default
