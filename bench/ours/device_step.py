"""
Training steps of the learner on a device, with the shapes of real models: tokens per second, model FLOPs utilization
(MFU), and the peak of memory beside the planner's.

    PYTHONPATH=bench python -m ours.device_step qwen3-0.6b cuda [PEAK_TFLOPS]

Random weights, bfloat16 products with float32 weights, gradient checkpointing, AdamW. MFU counts the FLOPs of the model
once; recomputed activations do not count. Prints one JSON object.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.memory import TrainerMemory
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SingleRank
from asyncrl.weights.groups.device import make_current

QUICKSTART = Path(__file__).parents[2] / "conf" / "quickstart.toml"
COMMON = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
SHAPES = {
    "tiny": COMMON
    | {
        "vocab_size": 1024,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "qwen3-0.6b": COMMON
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "qwen3-4b": COMMON
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
H100_TFLOPS = 989.0
"""Peak dense bfloat16 TFLOPS of an H100 and of an H200, from their data sheets."""
NORM = 4.0
"""Weights of the last norm: tokens then have an entropy like a real model's, instead of that of a uniform draw."""
WORDS = 900
"""Token ids of prompts and completions are below this."""
GIB = 1 << 30


def save_model(shape: str, path: Path, device: str) -> Path:
    """Write a random model in bfloat16, with a tokenizer, made on a device; an existing one is kept."""
    if (path / "tokenizer.json").exists():
        return path
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], eos_token_id=1, max_position_embeddings=8192))
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        model.model.norm.weight.fill_(NORM)
    model.save_pretrained(path)
    ids = range(2, int(SHAPES[shape]["vocab_size"]))  # Those that the tokenizer does not have are never sampled.
    words = Tokenizer(WordLevel({"a": 0, "b": 1, **{f"w{i}": i for i in ids}}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b").save_pretrained(path)
    return path


def dtype_on(device: str) -> Literal["float32", "bfloat16"]:
    """Dtype that is computed with: some CPUs are a hundred times slower in bfloat16."""
    return "float32" if device == "cpu" else "bfloat16"


def configured(path: Path, device: str, *, is_tiny: bool) -> Config:
    """Configuration of a step of 32 completions of up to 1,792 tokens in bfloat16, in one row if they fit."""
    prompt, longest, row, groups = (8, 24, 1024, 2) if is_tiny else (256, 1792, 65536, 8)
    settings = {
        "model.path": f'"{path}"',
        "model.dtype": dtype_on(device),
        "trainer.device": device,
        "trainer.gradient_checkpointing": "true",
        "trainer.max_tokens_per_micro_batch": row,
        "data.max_prompt_tokens": prompt,
        "sampling.max_tokens": longest,
        "schedule.groups_per_step": groups,
        "schedule.group_size": 4,
    }
    return load_config(QUICKSTART, [f"{key}={value}" for key, value in settings.items()])


def random_trajectories(config: Config) -> list[TrainingTrajectory]:
    """The trajectories of a step, with completions of a quarter of the most tokens and more."""
    random, found = np.random.default_rng(0), []
    most = config.sampling.max_tokens
    for group in range(config.schedule.groups_per_step):
        prompt = random.integers(2, WORDS, config.data.max_prompt_tokens).astype(np.int32)
        for index in range(config.schedule.group_size):
            ids = random.integers(2, WORDS, int(random.integers(most // 4, most))).astype(np.int32)
            logprobs = np.full(len(ids), -9.0, np.float32)
            found.append(TrainingTrajectory(group, prompt, ids, logprobs, float(random.integers(0, 2)), index=index))
    return found


def flops(shape: dict[str, int], trajectories: Sequence[TrainingTrajectory]) -> float:
    """FLOPs of a forward and backward pass: 6 a token and weight, the head for completion tokens, causal attention."""
    heads = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    layer = shape["hidden_size"] * (2 * heads + 2 * keys + 3 * shape["intermediate_size"])
    scored = sum(len(one.completion_ids) for one in trajectories)
    packed = scored + sum({one.group_id: len(one.prompt_ids) for one in trajectories}.values())
    pairs = sum((len(one.prompt_ids) + len(one.completion_ids)) ** 2 for one in trajectories)
    of_layers = shape["num_hidden_layers"] * (layer * packed + heads * pairs)
    return 6.0 * (of_layers + shape["hidden_size"] * shape["vocab_size"] * scored)


def make_learner(shape: str, path: Path, device: str) -> tuple[Learner, Config]:
    """A learner of a saved model on a device, and its configuration."""
    config = configured(path, device, is_tiny=shape == "tiny")
    ranks = SingleRank(device)
    make_current(ranks.device)
    return Learner(config, path, ranks=ranks), config


def measured(shape: str, learner: Learner, config: Config, peak_tflops: float = H100_TFLOPS) -> dict[str, object]:
    """The faster of two steps after a first one, which warms up."""
    device = config.trainer.device
    synchronize = torch.get_device_module(device).synchronize
    trajectories = random_trajectories(config)
    tokens = sum(len(one.completion_ids) for one in trajectories)
    times_s, metrics = [], dict[str, float]()
    for _ in range(3):
        synchronize()
        started_s = time.perf_counter()
        metrics = learner.train(trajectories)
        synchronize()
        times_s.append(time.perf_counter() - started_s)
    step_s = min(times_s[1:])
    tflops = flops(SHAPES[shape], trajectories) / step_s / 1e12
    planned = sum(part.device for part in TrainerMemory(config, Path(config.model.path)).step().parts)
    return {
        "case": f"step, {shape}",
        "ours": round(tokens / step_s),
        "unit": "tokens/s",
        "better": "higher",
        "mfu": round(tflops / peak_tflops, 3),
        "tflops": round(tflops, 2),
        "step_s": round(step_s, 3),
        "first_s": round(times_s[0], 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / GIB, 2) if device == "cuda" else None,
        "planned_gib": round(planned / GIB, 2),
        "skipped_updates": metrics["skipped"],
    }


if __name__ == "__main__":
    name, kind = sys.argv[1:3]
    peak = float(sys.argv[3]) if len(sys.argv) > 3 else H100_TFLOPS
    with TemporaryDirectory() as directory:
        model_path = save_model(name, Path(directory), kind)
        line = measured(name, *make_learner(name, model_path, kind), peak)
    sys.stdout.write(json.dumps({"bench": "trainer_step"} | line) + "\n")
