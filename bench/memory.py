"""
Memory that real model shapes need, by the planner: bytes a device and a host at every phase, in decimal gigabytes.

    python bench/memory.py [--shapes 0.6b,8b,30b-a3b,70b]

Prints a line for each phase of the trainer, and one for a rollout. Nothing is measured: tests compare the planner with
real ranks.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import smoke
from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

from asyncrl.config.run_file import decode
from asyncrl.runtime.memory import Room, plan_memory

QWEN3 = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
CHECKPOINTING = {"gradient_checkpointing": True}
CASES: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "0.6b": (
        Qwen3Config(
            **QWEN3, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
            tie_word_embeddings=True,
        ),
        {**CHECKPOINTING, "ranks": 1}, "cuda", 80,
    ),
    "8b": (
        Qwen3Config(
            **QWEN3, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
            tie_word_embeddings=False,
        ),
        {**CHECKPOINTING, "ranks": 8}, "cuda", 80,
    ),
    "30b-a3b": (
        Qwen3MoeConfig(
            **QWEN3 | {"num_key_value_heads": 4}, hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=48,
            num_attention_heads=32, num_experts=128, num_experts_per_tok=8, tie_word_embeddings=False,
        ),
        {**CHECKPOINTING, "ranks": 8, "nodes": 2}, "npu", 64,
    ),
    "70b": (
        LlamaConfig(
            vocab_size=128256, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
            num_key_value_heads=8, tie_word_embeddings=False, dtype="bfloat16",
        ),
        {**CHECKPOINTING, "ranks": 8, "nodes": 4}, "cuda", 80,
    ),
}  # fmt: skip
"""Config of the model, settings of the trainer, its kind of device, and the decimal gigabytes of a device."""
TENSOR_PARALLEL = {"30b-a3b": 2, "70b": 4}
"""Devices of a rollout, if several."""


def main(shapes: list[str]) -> None:
    for shape in shapes:
        with TemporaryDirectory(prefix="asyncrl-bench-") as folder:
            show(shape, Path(folder))


def show(shape: str, folder: Path) -> None:
    model, trainer, device, gigabytes = CASES[shape]
    model.save_pretrained(folder)
    config = decode(
        {
            "model": {"path": str(folder), "dtype": "bfloat16"},
            "data": {"train": "unused", "max_prompt_tokens": 1024},
            "sampling": {"max_tokens": 8192},
            "schedule": {"groups_per_step": 64, "group_size": 8},
            "trainer": {**trainer, "device": device},
            "rollout": {"engine": "vllm", "vllm": {"tensor_parallel_size": TENSOR_PARALLEL.get(shape, 1)}},
        }
    )
    plan = plan_memory(config, Room(device=gigabytes * 10**9))
    for phase in [*plan.trainer, plan.rollout]:
        parts = {part.name: [_gb(part.device), _gb(part.host)] for part in phase.parts}
        line = {"case": f"{shape}, {phase.name}", "ours": _gb(phase.device), "unit": "GB a device", "better": "lower"}
        print(json.dumps({"bench": "memory", **line, "host_gb": _gb(phase.host), "of": gigabytes, "parts": parts}))
    print(json.dumps({"bench": "memory", "case": f"{shape}, fits", "problem": plan.problem}), flush=True)


def _gb(num_bytes: int) -> float:
    return round(num_bytes / 1e9, 2)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[*CASES])
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed().shapes)
