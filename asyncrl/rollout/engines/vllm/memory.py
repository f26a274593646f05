"""Memory that vLLM will take beside the weights."""

from typing import Any

import torch

from asyncrl.config.config import Config
from asyncrl.config.memory import EngineRoom, MemoryPart
from asyncrl.rollout.engines.transformers.kv_cache import KVCache


def plan(config: Config, text_config: Any, room: EngineRoom) -> list[MemoryPart]:
    """Keys and values, the rest of vLLM's fraction of a device and at least those of one request; a module loaded."""
    vllm, dtype = config.rollout.vllm, getattr(torch, config.model.dtype)
    positions = vllm.max_model_len or config.longest_request
    cache = KVCache(text_config, slots=1, positions=positions, dtype=dtype, device=torch.device("meta"))
    one_request = cache.num_bytes // min(vllm.tensor_parallel_size, cache.kv_heads)
    left = 0 if room.device is None else int(vllm.gpu_memory_utilization * room.device) - room.weights
    num_bytes = vllm.kv_cache_bytes or max(left, one_request)
    return [
        MemoryPart(name="KV cache", device=num_bytes, setting="rollout.vllm.gpu_memory_utilization"),
        MemoryPart(name="module being loaded", device=room.parameter),
    ]
