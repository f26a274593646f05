"""
Cases of `bench/gpu.py`, each in a process of its own.

    PYTHONPATH=bench python -m ours.gpu_cases CASE cuda|cpu SIZE      prints lines of JSON

SIZE is ``whole``, or ``tiny`` to see that a case runs. A case that cannot run raises `Skipped` with the reason.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

Line = dict[str, object]
MIB, GIB = 1 << 20, 1 << 30
LOOPBACK = "127.0.0.1"
QUICKSTART = Path(__file__).parents[2] / "conf" / "quickstart.toml"
QUICKSTART_STEPS = 10


class Skipped(Exception):
    """A case cannot run here; the message is the reason."""


def seconds_of(run: Callable[[], object], device: str, rounds: int = 5) -> float:
    """Seconds of the fastest of several calls, after a first one that is not counted."""
    synchronize = torch.get_device_module(device).synchronize
    times_s = []
    for _ in range(1 + rounds):
        synchronize()
        started_s = time.perf_counter()
        run()
        synchronize()
        times_s.append(time.perf_counter() - started_s)
    return min(times_s[1:])


def require_gpu(device: str) -> None:
    if device == "cpu":
        raise Skipped("needs a GPU")


# ── the trainer ─────────────────────────────────────────────────────────────────────────────


def step(shape: str, device: str, *, is_tiny: bool) -> Iterator[Line]:
    from ours.device_step import H200_TFLOPS, main

    tokens, spread = (512, 1.0) if is_tiny else (131072, 10.0)
    found = main("tiny" if is_tiny else shape, device, tokens, spread, H200_TFLOPS)
    more = {key: found[key] for key in ("mfu", "peak_gib", "step_s")}
    yield {"case": f"step, {shape}", "ours": found["tokens_per_s"], "unit": "tokens/s", "better": "higher", **more}


def attention(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """Error of one variable-length kernel in bfloat16, relative to the largest value in float32."""
    import numpy as np

    from asyncrl.trainer.packing.packed_attention import packed_attention
    from asyncrl.trainer.packing.row import Row

    require_gpu(device)
    lengths = [7, 64, 1000] if is_tiny else [33, 512, 1000, 4096]
    starts = np.cumsum([0, *lengths])
    row = Row([np.arange(*ends) for ends in pairwise(starts)], torch.device(device))
    generator = torch.Generator(device).manual_seed(0)
    shapes = [(1, heads, int(starts[-1]), 128) for heads in (16, 8, 8)]
    heads = [torch.randn(shape, device=device, generator=generator) for shape in shapes]

    def computed(dtype: torch.dtype) -> list[torch.Tensor]:
        own = [part.to(dtype).requires_grad_() for part in heads]
        out, _ = packed_attention(torch.nn.Module(), own[0], own[1], own[2], None, row=row)
        gradients = torch.autograd.grad(out.float().square().sum(), own)
        return [out.detach().float(), *(gradient.float() for gradient in gradients)]

    errors = [
        float((got - want).abs().max() / want.abs().max())
        for got, want in zip(computed(torch.bfloat16), computed(torch.float32), strict=True)
    ]
    for name, error, limit in (("forward", errors[0], 3e-3), ("backward", max(errors[1:]), 8e-3)):
        case = f"varlen_attn, error of its {name}"
        yield {"case": case, "ours": error, "unit": "of the largest", "limit": limit, "better": "lower"}


def experts(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """Grouped products of a mixture of experts, with the sizes of Qwen3-30B-A3B."""
    tokens, hidden, inner, number = (64, 32, 16, 4) if is_tiny else (131072, 2048, 768, 128)
    ends = torch.arange(1, number + 1, dtype=torch.int32, device=device) * (tokens // number)
    tflops = {}
    for dtype in (torch.bfloat16, torch.float32):
        rows = torch.randn(tokens, hidden, device=device, dtype=dtype)
        weights = torch.randn(number, hidden, inner, device=device, dtype=dtype)
        grouped: Any = torch.nn.functional.grouped_mm
        taken_s = seconds_of(lambda: grouped(rows, weights, offs=ends), device)  # noqa: B023  called at once
        tflops[dtype] = 2 * tokens * hidden * inner / taken_s / 1e12
    yield compared("grouped_mm of experts", tflops[torch.bfloat16], "TFLOP/s", "in float32", tflops[torch.float32])


# ── transfers ───────────────────────────────────────────────────────────────────────────────


def copies(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """Copies of staging buffers, page-locked and not."""
    require_gpu(device)
    size = 16 * MIB if is_tiny else GIB
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    found: dict[str, list[float]] = {}
    for kind, is_locked in (("pinned", True), ("pageable", False)):
        here = torch.zeros(size, dtype=torch.uint8, pin_memory=is_locked)
        ways = (lambda: here.copy_(there), lambda: there.copy_(here))  # noqa: B023  called at once
        found[kind] = [size / seconds_of(way, device) / 1e9 for way in ways]
    for i, way in enumerate(("to the host", "to the device")):
        yield compared(f"copy {way}", found["pinned"][i], "GB/s", "pageable", found["pageable"][i])


def nccl(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """A group of one rank: what NCCL costs before any network does."""
    from torch._C._distributed_c10d import HashStore

    from asyncrl.weights.groups.deadline import Deadline
    from asyncrl.weights.groups.device import torch_device
    from asyncrl.weights.groups.group import form

    require_gpu(device)
    own, deadline = torch_device(f"{device}:0"), Deadline(60.0)
    times_s = [time.perf_counter()]
    group = form("nccl", HashStore(), 0, 1, interface=LOOPBACK, deadline=deadline, device=own)
    times_s.append(time.perf_counter())
    bucket = torch.zeros(MIB if is_tiny else 64 * MIB, dtype=torch.uint8, device=own)
    broadcast_s = seconds_of(lambda: group.broadcast(bucket, 0, deadline), device)
    times_s.append(time.perf_counter())
    group.close()
    ended_s = time.perf_counter() - times_s[2]
    for what, taken_s in (("form", times_s[1] - times_s[0]), ("broadcast 64 MiB", broadcast_s), ("abort", ended_s)):
        yield {"case": f"nccl alone, {what}", "ours": rounded(taken_s), "unit": "s", "better": "lower"}


def ipc(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """Another process reads device memory by its handle."""
    import torch.multiprocessing as mp

    require_gpu(device)
    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    reader = context.Process(target=read_shared, args=(tensors, answers))
    reader.start()
    memory = torch.arange((16 * MIB if is_tiny else GIB) // 8, device=device)
    tensors.put(memory)
    total, taken_s = answers.get(timeout=120.0)
    reader.join()
    if total != int(memory.sum()):
        raise Skipped("the other process read other values")
    yield {"case": "CUDA IPC, copy", "ours": rounded(memory.nbytes / taken_s / 1e9), "unit": "GB/s", "better": "higher"}


def read_shared(tensors: Any, answers: Any) -> None:
    memory = tensors.get()
    own = torch.empty_like(memory)
    taken_s = seconds_of(lambda: own.copy_(memory), memory.device.type)
    answers.put((int(own.sum()), taken_s))


# ── rollouts, and the whole loop ────────────────────────────────────────────────────────────


def engine(device: str, *, is_tiny: bool) -> Iterator[Line]:
    """The built-in engine in bfloat16, with random weights of a real shape and every slot taken."""
    from ours.device_step import SHAPES
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from asyncrl.messages.trajectory import Sampling
    from asyncrl.rollout.engine import Request
    from asyncrl.rollout.engines.transformers.engine import TransformersEngine

    shape, slots, length = ("tiny", 2, 8) if is_tiny else ("qwen3-0.6b", 64, 512)
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with TemporaryDirectory() as folder:
        torch.set_default_dtype(torch.bfloat16)
        Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], eos_token_id=1)).save_pretrained(folder)
        torch.set_default_dtype(torch.float32)
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b").save_pretrained(folder)
        where = device if device == "cpu" else f"{device}:0"
        sizes: dict[str, Any] = {"slots": slots, "max_tokens_per_slot": 64 + length}
        own = TransformersEngine.load(folder, dtype="bfloat16", device=where, **sizes)

    async def decode() -> tuple[int, float]:
        sampling = Sampling(max_tokens=length)
        requests = [Request(prompt_ids=[2 + seed] * 64, sampling=sampling, seed=seed) for seed in range(slots)]
        started_s = time.perf_counter()
        done = await asyncio.gather(*map(own.generate, requests))
        return sum(len(one.completion_ids) for one in done), time.perf_counter() - started_s

    asyncio.run(decode())
    num_tokens, taken_s = asyncio.run(decode())
    yield {
        "case": f"built-in engine, {shape}, {slots} completions",
        "ours": rounded(num_tokens / taken_s),
        "unit": "tokens/s",
        "better": "higher",
        "peak_gib": None if device == "cpu" else rounded(torch.cuda.max_memory_allocated() / GIB),
    }


def quickstart(device: str, *, is_tiny: bool, colocated: bool = False) -> Iterator[Line]:
    """The first steps of the quickstart, with trainer and rollouts on the only device, at once or in turns."""
    from base_model import make_base

    steps = 2 if is_tiny else QUICKSTART_STEPS
    with TemporaryDirectory() as folder:
        settings = [f'run.dir="{folder}"', "run.name=gpu", f"steps={steps}", 'data.held_out=""', "rollout.replicas=1"]
        settings += [f"trainer.device={device}", f"rollout.device={device}", "trainer.warmup_steps=1"]
        if device != "cpu":
            settings.append("model.dtype=bfloat16")
        if colocated:
            settings.append("rollout.colocated=true")
        make_base(QUICKSTART, settings)
        options = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "asyncrl", "run", str(QUICKSTART), *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise Skipped((done.stderr or done.stdout).strip().splitlines()[-1])
        summary = json.loads((Path(folder) / "gpu" / "summary.json").read_text())
        lines = [json.loads(line) for line in (Path(folder) / "gpu" / "metrics.jsonl").read_text().splitlines()]
    taken_s = lines[-1]["time_s"] - lines[0]["time_s"]
    turns = {key: rounded(value) for key, value in lines[-1].items() if key.startswith("turn_")}
    yield {
        "case": f"quickstart{', colocated' * colocated}, {steps} steps",
        "ours": rounded((len(lines) - 1) / taken_s),
        "unit": "steps/s",
        "better": "higher",
        "logprob_gap": summary["logprob_gap_mean"],
        "publish_s": rounded(lines[-1]["publish_s"]),
        "pause_s": rounded(lines[-1]["pause_s"]),
    } | turns


def compared(case: str, ours: float, unit: str, peer: str, value: float) -> Line:
    """A rate beside that of a peer."""
    numbers = {"ours": rounded(ours), "unit": unit, "peer": peer, "peer_value": rounded(value)}
    return {"case": case, **numbers, "ratio": rounded(ours / value), "better": "higher"}


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


CASES: dict[str, Callable[..., Iterator[Line]]] = {
    "step-0.6b": lambda *where, **size: step("qwen3-0.6b", *where, **size),
    "attention": attention,
    "experts": experts,
    "copies": copies,
    "nccl": nccl,
    "ipc": ipc,
    "engine": engine,
    "step-4b": lambda *where, **size: step("qwen3-4b", *where, **size),
    "quickstart": quickstart,
    "colocated": lambda *where, **size: quickstart(*where, **size, colocated=True),
}
"""In the order in which they run: what is worth most first."""


def main(case: str, device: str, size: str) -> None:
    try:
        for line in CASES[case](device, is_tiny=size == "tiny"):
            print(json.dumps({"bench": "gpu"} | line), flush=True)
    except Skipped as reason:
        print(json.dumps({"bench": "gpu", "case": case, "skipped": str(reason)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
