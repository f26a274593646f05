"""
Training step of the trainer's model on a device: tokens per second and model FLOPs utilization (MFU).

    PYTHONPATH=bench python -m ours.device_step qwen3-0.6b cuda [TOKENS] [SPREAD] [PEAK_TFLOPS]

Random weights of a real model shape, bfloat16 matrix products with float32 weights, gradient checkpointing, AdamW. MFU
counts the FLOPs of the model once; recomputed activations do not count. Prints one JSON object.
"""

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.micro_batches import micro_batches
from asyncrl.trainer.packing.step import trajectory_info
from asyncrl.trainer.packing.trajectory import TrainingTrajectory

COMMON = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
SHAPES = {
    "tiny": COMMON
    | {
        "vocab_size": 1024,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
    },
    "qwen3-0.6b": COMMON
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-4b": COMMON
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
H200_TFLOPS = 989.0
"""Peak dense bfloat16 TFLOPS of an H200, from its data sheet."""
PROMPT, STEPS = 256, 3


def flops(shape: dict[str, int], lengths: Iterable[int]) -> float:
    """FLOPs of one forward and backward pass: 6 per token and weight, plus causal attention."""
    heads = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = shape["hidden_size"] * (2 * heads + 2 * keys + 3 * shape["intermediate_size"])
    weights = shape["num_hidden_layers"] * layer + shape["hidden_size"] * shape["vocab_size"]
    return sum(6.0 * weights * length + 6.0 * shape["num_hidden_layers"] * heads * length**2 for length in lengths)


def random_trajectories(num_tokens: int, spread: float) -> list[TrainingTrajectory]:
    """Trajectories of about ``num_tokens`` tokens in total, with completions of 512 to 512 * ``spread`` tokens."""
    random, left = np.random.default_rng(0), num_tokens
    trajectories: list[TrainingTrajectory] = []
    while left > 0:
        length = int(512 * spread ** random.random())
        ids = random.integers(0, 1000, PROMPT + length).astype(np.int32)
        trajectories.append(
            TrainingTrajectory(len(trajectories), ids[:PROMPT], ids[PROMPT:], np.zeros(length, np.float32), 0.0)
        )
        left -= len(ids)
    return trajectories


def main(name: str, device: str, num_tokens: int, spread: float, peak_tflops: float) -> dict[str, object]:
    """Time `STEPS` steps after a warm-up step, and return the line to print."""
    with TemporaryDirectory() as directory:
        torch.set_default_dtype(torch.bfloat16)
        Qwen3ForCausalLM(Qwen3Config(**SHAPES[name])).save_pretrained(directory)
        torch.set_default_dtype(torch.float32)
        policy = Policy(Path(directory), dtype="bfloat16", gradient_checkpointing=True)
    policy.model.to(device)
    optimizer = torch.optim.AdamW(policy.parameters().values(), lr=1e-6, fused=True)
    trajectories = random_trajectories(num_tokens, spread)
    sizes = [trajectory_info(trajectory).size for trajectory in trajectories]
    lengths = [size.total for size in sizes]
    times_s = []
    for _ in range(1 + STEPS):
        started_s = time.perf_counter()
        for places in micro_batches(sizes, max(16384, *lengths)):
            batch = collate([trajectories[place] for place in places], device=torch.device(device))
            policy.score(batch, temperature=1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters().values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        norm.item()  # waits for the device
        times_s.append(time.perf_counter() - started_s)
    step_s = min(times_s[1:])
    tflops = flops(SHAPES[name], lengths) / step_s / 1e12
    return {
        "bench": "trainer_step",
        "case": f"{name} on {device}, completions 512 to {512 * spread:.0f}",
        "tokens_per_s": round(sum(lengths) / step_s),
        "mfu": round(tflops / peak_tflops, 3),
        "tflops": round(tflops, 2),
        "step_s": round(step_s, 3),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device == "cuda" else None,
    }


if __name__ == "__main__":
    numbers = [float(argument) for argument in sys.argv[3:]]
    defaults = [131072.0, 10.0, H200_TFLOPS]
    tokens, spread, peak = numbers + defaults[len(numbers) :]
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], int(tokens), spread, peak)) + "\n")
