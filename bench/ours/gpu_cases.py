"""
Cases of `bench/gpu.py`: functions of a `Place` that yield lines. One that cannot run raises `Skipped` with the reason.

Lines that only a GPU reaches are marked by ``place.device != "cpu"``, or follow `Place.gpu`.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from ours.device_step import (
    GIB,
    QUICKSTART,
    dtype_on,
    make_learner,
    measured,
    random_trajectories,
    save_model,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from asyncrl.config.run_file import load_config, read_raw, to_toml
from asyncrl.engine import Completion, Engine, Request
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers import sampler
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.tools.toy import step_sums
from asyncrl.tools.toy.models import save_model as save_toy
from asyncrl.tools.toy.models import tokenizer_from_words
from asyncrl.tools.toy.text_model import TextModelSizes, random_model
from asyncrl.tools.toy.tiny import scaled
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.packed_attention import packed_attention
from asyncrl.trainer.packing.row import Row
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.weights.groups.device import require, torch_device

T = TypeVar("T")
Line = dict[str, object]
Decoded = tuple[Request, Completion]
MIB = 1 << 20
LOOPBACK = "127.0.0.1"
VLLM_CACHE = 8 << 30
"""Bytes of keys and values: vLLM shares the device with a trainer here."""
PACKAGES = ("transformers", "triton", "pyzmq", "msgspec", "numpy", "vllm")
ROUNDING = 2.0**-7
"""Distance of two numbers in bfloat16, relative to them at most: what one more rounding may cost."""
RECIPES = {"mixture of experts": "dapo-qwen3-30b-a3b-npu", "pictures": "geo3k-qwen3-vl-8b-sync-npu"}
TWO_RANKS = """
import sys, time, torch, torch.distributed as d
torch.cuda.set_device(0)
store = d.TCPStore("127.0.0.1", int(sys.argv[3]), 2, sys.argv[2] == "0")
d.init_process_group(sys.argv[1], store=store, rank=int(sys.argv[2]), world_size=2)
x = torch.ones(64 << 20, dtype=torch.uint8, device="cuda"); started = time.time()
d.broadcast(x, 0); torch.cuda.synchronize(); print("broadcast in", round(time.time() - started, 4), "s")
"""


class Skipped(Exception):
    """A case cannot run here; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Device of a case, and its folders."""

    device: str
    is_small: bool
    folder: str
    """Models that cases share."""
    base: str
    """Folder of the quickstart's model and data; empty if it is to be made."""
    out: str
    """Logs."""

    @property
    def index(self) -> str:
        """Name of the first device."""
        return self.device if self.device == "cpu" else f"{self.device}:0"

    def gpu(self) -> None:
        """Raise `Skipped` on a CPU."""
        if self.device == "cpu":
            raise Skipped("needs a GPU")

    def model(self, shape: str) -> tuple[str, Path]:
        """A shape, or the tiny one, and the directory of a random model of it."""
        name = "tiny" if self.is_small else shape
        return name, save_model(name, Path(self.folder) / name, self.device)

    def seconds_of(self, run: Callable[[], object], rounds: int = 5) -> float:
        """Seconds of the fastest of several calls, after a first one that is not counted."""
        synchronize = torch.get_device_module(self.device).synchronize
        times_s = []
        for _ in range(1 + rounds):
            synchronize()
            started_s = time.perf_counter()
            run()
            synchronize()
            times_s.append(time.perf_counter() - started_s)
        return min(times_s[1:])


# ── the machine ─────────────────────────────────────────────────────────────────────────────


def machine(place: Place) -> Iterator[Line]:
    """Versions, ceilings, and the price of a new shape for each kind of attention."""
    versions = {name: _version(name) for name in PACKAGES}
    yield {"case": "versions", "python": sys.version.split()[0], "torch": torch.__version__, **versions}
    yield {"case": "host", "cores": os.cpu_count(), "device": place.device}
    try:
        require(place.device)
    except ConfigError as error:
        raise Skipped(str(error)) from error
    side, size = (64, MIB) if place.is_small else (8192, GIB)
    here = torch.ones(size, dtype=torch.uint8, device=place.device)
    there = torch.empty_like(here)
    yield figure("copy", 2 * size / place.seconds_of(lambda: there.copy_(here)) / 1e9, "GB/s")
    left, right = (torch.randn(side, side, device=place.device, dtype=torch.bfloat16) for _ in "ab")
    yield figure("product in bfloat16", 2 * side**3 / place.seconds_of(lambda: left @ right) / 1e12, "TFLOP/s")
    one = torch.ones(64, device=place.device)

    def thousand() -> None:
        for _ in range(1000):
            one.add_(1)

    yield figure("launch", 1e3 * place.seconds_of(thousand), "us", better="lower")
    if place.device == "cpu":
        return
    found = torch.cuda.get_device_properties(0)
    gib = rounded(found.total_memory / GIB)
    yield {"case": "device", "name": found.name, "gib": gib, "multiprocessors": found.multi_processor_count}
    for name in ("default", "cudnn", "efficient", "math"):
        yield attention_plan(place, name)


def attention_plan(place: Place, name: str) -> Line:
    """Seconds of attention of a decode step at shapes that were not seen before, and afterwards."""
    kinds = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    first, later = [], []
    for rows, length in ((64, 128), (64, 144), (63, 144), (63, 160)):
        cells = torch.randn(rows, 576, 2, 8, 128, device=place.device, dtype=torch.bfloat16)
        keys, values = (part.transpose(1, 2) for part in cells[:, :length].unbind(2))
        queries = torch.randn(rows, 8, 2, 128, device=place.device, dtype=torch.bfloat16)
        bias = torch.zeros(rows, 1, 1, length, device=place.device, dtype=torch.bfloat16)

        def call() -> None:
            F.scaled_dot_product_attention(queries, keys, values, bias)  # noqa: B023  called at once

        try:
            with sdpa_kernel(kinds[name]) if name in kinds else nullcontext():
                torch.cuda.synchronize()
                started_s = time.perf_counter()
                call()
                torch.cuda.synchronize()
                first.append(time.perf_counter() - started_s)
                later.append(place.seconds_of(call))
        except RuntimeError as error:
            return {"case": f"attention, {name}", "failed": str(error)[:80]}
    line = figure(f"attention, {name}, a new shape", 1e3 * sorted(first)[len(first) // 2], "ms", better="lower")
    return line | {"later_us": rounded(1e6 * min(later))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


# ── the engine ──────────────────────────────────────────────────────────────────────────────


def engine(place: Place) -> Iterator[Line]:
    """Decode rates in bfloat16 with random weights, and the gap of log-probs to the trainer's."""
    shape, path = place.model("qwen3-0.6b")
    slots, length = ((1, 4), 8) if place.is_small else ((1, 64, 256), 128)
    own = load(place, path, slots=max(slots), positions=64 + length)
    forward: Any = own._table._forward
    yield {"case": "engine, elementwise kernels", "kind": type(forward._kernels).__name__}
    lines, done = asyncio.run(rates(own, f"engine, {shape}", slots, length))
    yield from lines
    if place.device != "cpu":
        yield figure("engine, peak of memory", torch.cuda.max_memory_allocated() / GIB, "GiB", better="lower")
    yield from gaps(place, path, "engine", done)
    if place.device != "cpu":
        yield captured(place, own, min(64, max(slots)), 64 + length)


def vllm(place: Place) -> Iterator[Line]:
    """The same of vLLM, step by step and compiled; then the loop with it, in turns with the trainer and beside it."""
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    shape, path = place.model("qwen3-0.6b")
    slots, length = ((1, 4), 8) if place.is_small else ((1, 64, 256), 128)
    for kind, is_eager in (("compiled", False), ("eager", True))[1 if place.is_small else 0 :]:
        settings = {
            "model.path": path,
            "model.dtype": dtype_on(place.device),
            "rollout.engine": "vllm",
            "rollout.device": place.device,
            "rollout.slots": max(slots),
            "rollout.vllm.kv_cache_bytes": VLLM_CACHE >> 7 if place.is_small else VLLM_CACHE,
            "rollout.vllm.enforce_eager": is_eager,
        }
        config = load_config(QUICKSTART, [f"{key}={str(value).lower()}" for key, value in settings.items()])
        started_s = time.perf_counter()
        own = VllmEngine.load(config)
        yield figure(f"vllm, {kind}, start", time.perf_counter() - started_s, "s", better="lower")
        lines, done = asyncio.run(closing(own, rates(own, f"vllm, {kind}, {shape}", slots, length)))
        yield from lines
        yield from gaps(place, path, f"vllm, {kind}", done)


def vllm_loop(place: Place) -> Iterator[Line]:
    """The quickstart with vLLM on the trainer's device, beside it and in turns with it; and weights of 1.2 GB."""
    if find_spec("vllm") is None:
        raise Skipped("vLLM is not installed")
    base = base_of(place)
    own = {"rollout.engine": "vllm", "rollout.slots": 128, "rollout.vllm.enforce_eager": "true"}
    own["rollout.vllm.gpu_memory_utilization"] = 0.3
    for is_colocated in (False, True)[: 1 if place.device == "cpu" else 2]:
        steps = 2 if place.is_small else 8 if is_colocated else 40
        settings = quickstart_settings(place, base, steps, colocated=is_colocated) | own
        settings["rollout.vllm.kv_cache_bytes"] = VLLM_CACHE >> 3
        case = f"quickstart, vllm{', colocated' * is_colocated}, {steps} steps"
        yield run(place, case, QUICKSTART, settings, limit_s=110.0)
    if not place.is_small:
        shape, path = place.model("qwen3-0.6b")
        settings = publish_settings(path, base) | own | {"rollout.vllm.kv_cache_bytes": VLLM_CACHE}
        yield run(place, f"whole loop, vllm, {shape}", QUICKSTART, settings, limit_s=115.0)


def load(place: Place, path: Path, *, slots: int, positions: int) -> TransformersEngine:
    sizes: dict[str, Any] = {"slots": slots, "max_tokens_per_slot": positions}
    return TransformersEngine.load(str(path), dtype=dtype_on(place.device), device=place.index, **sizes)


async def rates(own: Engine, case: str, slots: Sequence[int], length: int) -> tuple[list[Line], list[Decoded]]:
    """A line for each number of completions, and those of the last."""
    lines, done = [], []
    for number in slots:
        first, second, later = [await decoded(own, number, length) for _ in range(3)]
        line = figure(f"{case}, {number} completions", later[1], "tokens/s") | {"second": rounded(second[1])}
        lines.append(line | {"first": rounded(first[1]), "ms_per_step": rounded(1e3 * number / later[1])})
        done = second[0]
    return lines, done


async def decoded(own: Engine, number: int, length: int) -> tuple[list[Decoded], float]:
    """Requests of 64 tokens with their completions, and tokens a second, prefill included."""
    sampling = Sampling(max_tokens=length)
    requests = [
        Request(prompt_ids=[2 + (7 * seed + i) % 900 for i in range(64)], sampling=sampling, seed=seed)
        for seed in range(number)
    ]
    started_s = time.perf_counter()
    done = await asyncio.gather(*map(own.generate, requests))
    rate = sum(len(one.completion_ids) for one in done) / (time.perf_counter() - started_s)
    return list(zip(requests, done, strict=True)), rate


async def closing(own: Engine, work: Awaitable[T]) -> T:
    try:
        return await work
    finally:
        await own.aclose()


def gaps(place: Place, path: Path, case: str, done: Sequence[Decoded]) -> Iterator[Line]:
    """Distance of an engine's log-probs to the trainer's, of eight completions."""
    some = done[:8]
    trajectories = [
        TrainingTrajectory(
            place,
            np.array(request.prompt_ids, np.int32),
            np.array(one.completion_ids, np.int32),
            np.array(one.behavior_logprobs, np.float32),
            0.0,
        )
        for place, (request, one) in enumerate(some)
    ]
    sampled = torch.tensor([logprob for _, one in some for logprob in one.behavior_logprobs])
    for dtype in ("bfloat16", "float32"):
        policy = Policy(path, dtype=dtype, device=torch_device(place.index))
        batch = collate(trajectories, device=policy.device)
        with torch.no_grad():
            gap = (policy.score(batch, temperature=1.0).logprobs.float().cpu() - sampled).abs()
        line = figure(f"gap of log-probs, {case}, trainer in {dtype}", float(gap.mean()), "nats", better="lower")
        yield line | {"most": rounded(float(gap.max()))}


def step_of(own: TransformersEngine, rows: int, length: int) -> Callable[[], object]:
    """Forward and sampler of a decode step at a length, without bookkeeping."""
    forward, device = own._table._forward, own.device
    ids = torch.full((rows,), 5, device=device)
    positions = torch.full((rows,), length - 1, device=device)
    cells = torch.arange(rows, device=device) * forward.cache.positions + positions
    uniform = torch.rand(rows, device=device)
    return lambda: sampler.draw_plain(forward.step(ids, positions, cells, length).float(), uniform)


@torch.inference_mode()
def captured(place: Place, own: TransformersEngine, rows: int, length: int) -> Line:
    """A decode step as a CUDA graph: what is left if launches cost nothing."""
    step = step_of(own, rows, length)
    eager_s = place.seconds_of(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph_s = place.seconds_of(graph.replay, rounds=20)
    line = figure(f"decode step of {rows}, as a graph", 1e3 * graph_s, "ms", better="lower")
    return line | {"eager_ms": rounded(1e3 * eager_s), "tokens_per_s": rounded(rows / graph_s)}


# ── the trainer ─────────────────────────────────────────────────────────────────────────────


def step(place: Place, shape: str) -> Iterator[Line]:
    name, path = place.model(shape)
    started_s = time.perf_counter()
    learner, config = make_learner(name, path, place.device)
    load_s = time.perf_counter() - started_s
    yield measured(name, learner, config) | {"load_s": rounded(load_s)}
    for turn in ("the first time", "again"):  # page-locked memory is taken once
        started_s = time.perf_counter()
        moved = learner.sleep()
        slept_s = time.perf_counter() - started_s
        learner.wake()
        yield figure(f"sleep, {name}, {turn}", slept_s, "s", better="lower") | {
            "wake_s": rounded(time.perf_counter() - started_s - slept_s),
            "gib": rounded(moved / GIB),
        }


def profiled(place: Place) -> Iterator[Line]:
    """The operations that take most of the time of ten decode steps, and of a training step; tables beside the log."""
    shape, path = place.model("qwen3-0.6b")
    rows, length = (4, 64) if place.is_small else (64, 320)
    run = step_of(load(place, path, slots=rows, positions=length), rows, length)

    @torch.inference_mode()
    def steps() -> None:
        for _ in range(10):
            run()

    yield from most_of(place, "decode", steps)
    learner, config = make_learner(shape, path, place.device)
    trajectories = random_trajectories(config)
    yield from most_of(place, "train", lambda: learner.train(trajectories))


def most_of(place: Place, what: str, run: Callable[[], object]) -> Iterator[Line]:
    from torch.profiler import ProfilerActivity, profile

    run()
    is_gpu = place.device != "cpu"
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_gpu]
    synchronize = torch.get_device_module(place.device).synchronize
    synchronize()
    started_s = time.perf_counter()
    with profile(activities=kinds) as found:
        run()
        synchronize()
    wall_s = time.perf_counter() - started_s
    key = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    averages = found.key_averages()
    table = averages.table(sort_by=key, row_limit=60, max_name_column_width=90)
    (Path(place.out) / f"profile-{what}.txt").write_text(table)
    events = sorted(averages, key=lambda event: -getattr(event, key))
    busy = sum(getattr(event, key) for event in events) / 1e6 / wall_s
    yield figure(f"profile, {what}", 1e3 * wall_s, "ms", better="lower") | {"busy": rounded(busy)}
    for event in events[:12]:
        ms = rounded(getattr(event, key) / 1e3)
        yield {"case": f"profile, {what}", "operation": event.key[:70], "ms": ms, "calls": event.count}


# ── the whole loop ──────────────────────────────────────────────────────────────────────────


def quickstart(place: Place, *, colocated: bool = False) -> Iterator[Line]:
    """The quickstart with trainer and rollouts on the only device, at once or in turns."""
    steps = 2 if place.is_small else 8 if colocated else 40
    settings = quickstart_settings(place, base_of(place), steps, colocated=colocated)
    yield run(place, f"quickstart{', colocated' * colocated}, {steps} steps", QUICKSTART, settings, limit_s=145.0)


def quickstart_settings(place: Place, base: str, steps: int, *, colocated: bool) -> dict[str, object]:
    settings: dict[str, object] = {
        "steps": steps,
        "model.path": f"{base}/model",
        "data.train": f"{base}/train.parquet",
        "data.held_out": f"{base}/held_out.parquet",
        "evaluation.every_versions": steps,
        "rollout.colocated": str(colocated).lower(),
    }
    if place.is_small:
        settings |= {"schedule.groups_per_step": 2, "schedule.group_size": 2, "rollout.slots": 4}
        settings |= {"sampling.max_tokens": 16, "evaluation.max_prompts": 4}
    return settings


def base_of(place: Place) -> str:
    """The quickstart's model and data; an untaught model if sizes are small."""
    base = Path(place.base or place.folder, "" if place.base else "step-sums").absolute()
    if place.base or (base / "model").exists():
        return str(base)
    if place.is_small:
        tokenizer = tokenizer_from_words(step_sums.WORDS)
        # A head size that vLLM has kernels for on a CPU.
        sizes = TextModelSizes(layers=1, hidden_size=32, intermediate_size=64, heads=2, kv_heads=1, head_dim=32)
        save_toy(base / "model", random_model(sizes, tokenizer, 0), tokenizer, print)
        for split in ("train", "held_out"):
            step_sums.write(base / f"{split}.parquet", split, seed=0)
    else:
        subprocess.run([sys.executable, "-m", "asyncrl", "toy", "step-sums", str(base), "--threads", "4"], check=True)
    return str(base)


def publish(place: Place) -> Iterator[Line]:
    """The whole loop with a model that cannot learn here: what 1.2 GB of weights cost it."""
    shape, path = place.model("qwen3-0.6b")
    yield run(place, f"whole loop, {shape}", QUICKSTART, publish_settings(path, base_of(place)), limit_s=115.0)


def publish_settings(path: Path, base: str) -> dict[str, object]:
    return {
        "steps": 4,
        "model.path": path,
        "data.train": f"{base}/train.parquet",
        "data.held_out": '""',
        "checkpoint.every_steps": 100,
        "trainer.gradient_checkpointing": "true",
        "sampling.max_tokens": 128,
        "schedule.groups_per_step": 8,
    }


def tiny(place: Place) -> Iterator[Line]:
    """Recipes with models of two layers, on this device."""
    for kind, recipe in RECIPES.items():
        raw = read_raw(QUICKSTART.parent / "recipes" / f"{recipe}.toml", [])
        path = Path(place.out) / f"{recipe}.toml"
        path.write_text(to_toml(scaled(raw, Path(place.folder) / "tiny", print)))
        ranks = {"trainer.ranks": 1, "trainer.shard_size": 0, "trainer.sequence_parallel": 1}
        yield run(
            place, f"{kind}, two layers", path, ranks | {"steps": 2, "trainer.expert_parallel": "false"}, limit_s=75.0
        )


def run(place: Place, case: str, config: Path, settings: Mapping[str, object], *, limit_s: float) -> Line:
    """`asyncrl run` on the device: steps per second, and what its records say. Its log is named by the case."""
    name = case.replace(", ", "-").replace(" ", "-")
    where = Path(place.folder) / "runs"
    always = {
        "run.dir": where,
        "run.name": name,
        "model.dtype": dtype_on(place.device),
        "trainer.device": place.device,
        "trainer.warmup_steps": 1,
        "rollout.device": place.device,
        "rollout.replicas": 1,
        "checkpoint.keep_best": "false",
    }
    options = [part for key, value in {**settings, **always}.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "asyncrl", "run", str(config), *options]
    started_s = time.perf_counter()
    log = Path(place.out) / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait(15)
    taken_s = time.perf_counter() - started_s
    line: Line = {"case": case, "seconds": rounded(taken_s)}
    if process.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        line |= {"failed": f"exit code {process.returncode}: " + " | ".join(last)[-240:]}
    records = where / name / "metrics.jsonl"
    steps = [json.loads(text) for text in records.read_text().splitlines()] if records.exists() else []
    if len(steps) > 1:
        rate = (len(steps) - 1) / (steps[-1]["time_s"] - steps[0]["time_s"])
        line |= {"ours": rounded(rate), "unit": "steps/s", "better": "higher"}
        wanted = ("publish_s", "pause_s", "train_s", "logprob_gap_mean")
        line |= {
            key: rounded(value)
            for key, value in steps[-1].items()
            if value is not None and (key in wanted or key.startswith("turn_"))
        }
    summary = where / name / "summary.json"
    if summary.exists():
        found = json.loads(summary.read_text())
        accuracies = ("base_accuracy", "held_out_accuracy")
        line |= {key: rounded(found[key]) for key in accuracies if found.get(key) is not None}
    return line


# ── kernels ─────────────────────────────────────────────────────────────────────────────────


def attention(place: Place) -> Iterator[Line]:
    """Error of packed attention in bfloat16, relative to the largest value in float32."""
    lengths = [7, 64, 100] if place.is_small else [33, 512, 1000, 4096]
    starts = np.cumsum([0, *lengths])
    row = Row([np.arange(*ends) for ends in pairwise(starts)], torch.device(place.device))
    generator = torch.Generator(place.device).manual_seed(0)
    shapes = [(1, heads, int(starts[-1]), 128) for heads in (16, 8, 8)]
    heads = [torch.randn(shape, device=place.device, generator=generator) for shape in shapes]

    def computed(dtype: torch.dtype) -> list[torch.Tensor]:
        own = [part.to(dtype).requires_grad_() for part in heads]
        out, _ = packed_attention(torch.nn.Module(), own[0], own[1], own[2], None, row=row)
        gradients = torch.autograd.grad(out.float().square().sum(), own)
        return [out.detach().float(), *(gradient.float() for gradient in gradients)]

    errors = [
        float((got - want).abs().max() / want.abs().max())
        for got, want in zip(computed(torch.bfloat16), computed(torch.float32), strict=True)
    ]
    for name, error, limit in (("forward", errors[0], ROUNDING), ("backward", max(errors[1:]), 2 * ROUNDING)):
        yield figure(f"packed attention, error, {name}", error, "of the largest", better="lower") | {"limit": limit}


def experts(place: Place) -> Iterator[Line]:
    """Grouped products of a mixture of experts, with the sizes of Qwen3-30B-A3B."""
    tokens, hidden, inner, number = (64, 32, 16, 4) if place.is_small else (131072, 2048, 768, 128)
    ends = torch.arange(1, number + 1, dtype=torch.int32, device=place.device) * (tokens // number)
    tflops = {}
    for dtype in (torch.bfloat16, torch.float32):
        rows = torch.randn(tokens, hidden, device=place.device, dtype=dtype)
        weights = torch.randn(number, hidden, inner, device=place.device, dtype=dtype)
        grouped: Any = F.grouped_mm
        taken_s = place.seconds_of(lambda: grouped(rows, weights, offs=ends))  # noqa: B023  called at once
        tflops[dtype] = 2 * tokens * hidden * inner / taken_s / 1e12
    yield compared("grouped_mm of experts", tflops[torch.bfloat16], "TFLOP/s", "in float32", tflops[torch.float32])


# ── transfers ───────────────────────────────────────────────────────────────────────────────


def groups(place: Place) -> Iterator[Line]:
    """Copies, NCCL of one rank, memory read by another process, and two ranks on one device, which NCCL refuses."""
    place.gpu()
    for part in (copies, nccl, ipc):
        try:
            yield from part(place)
        except Exception as error:  # noqa: BLE001  the others still tell something
            yield {"case": part.__name__, "failed": f"{type(error).__name__}: {error}"[:200]}
    for number, backend in enumerate(("nccl", "gloo")):
        yield two_on_one(backend, 23107 + number)


def copies(place: Place) -> Iterator[Line]:
    """Copies of staging buffers, page-locked and not."""
    size = 16 * MIB if place.is_small else GIB
    there = torch.zeros(size, dtype=torch.uint8, device=place.device)
    found: dict[str, list[float]] = {}
    for kind, is_locked in (("pinned", True), ("pageable", False)):
        here = torch.zeros(size, dtype=torch.uint8, pin_memory=is_locked)
        ways = (lambda: here.copy_(there), lambda: there.copy_(here))  # noqa: B023  called at once
        found[kind] = [size / place.seconds_of(way) / 1e9 for way in ways]
    for i, way in enumerate(("to the host", "to the device")):
        yield compared(f"copy {way}", found["pinned"][i], "GB/s", "pageable", found["pageable"][i])


def nccl(place: Place) -> Iterator[Line]:
    """A group of one rank: what NCCL costs before any network does."""
    from torch._C._distributed_c10d import HashStore

    from asyncrl.weights.groups.group import form
    from asyncrl.weights.groups.network_interface import Deadline

    own, deadline = torch_device(place.index), Deadline(60.0)
    times_s = [time.perf_counter()]
    group = form("nccl", HashStore(), 0, 1, interface=LOOPBACK, deadline=deadline, device=own)
    times_s.append(time.perf_counter())
    bucket = torch.zeros(MIB if place.is_small else 64 * MIB, dtype=torch.uint8, device=own)
    broadcast_s = place.seconds_of(lambda: group.broadcast(bucket, 0, deadline))
    times_s.append(time.perf_counter())
    group.close()
    ended_s = time.perf_counter() - times_s[2]
    for what, taken_s in (("form", times_s[1] - times_s[0]), ("broadcast 64 MiB", broadcast_s), ("abort", ended_s)):
        yield figure(f"nccl alone, {what}", taken_s, "s", better="lower")


def ipc(place: Place) -> Iterator[Line]:
    """Another process reads device memory by its handle."""
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    reader = context.Process(target=read_shared, args=(place, tensors, answers))
    reader.start()
    memory = torch.arange((16 * MIB if place.is_small else GIB) // 8, device=place.device)
    tensors.put(memory)
    total, taken_s = answers.get(timeout=60.0)
    reader.join()
    if total != int(memory.sum()):
        raise Skipped("the other process read other values")
    yield figure("CUDA IPC, copy", memory.nbytes / taken_s / 1e9, "GB/s")


def read_shared(place: Place, tensors: Any, answers: Any) -> None:
    memory = tensors.get()
    own = torch.empty_like(memory)
    taken_s = place.seconds_of(lambda: own.copy_(memory))
    answers.put((int(own.sum()), taken_s))


def two_on_one(backend: str, port: int) -> Line:
    """How two ranks on one device end: NCCL must refuse them, and not hang."""
    command = [sys.executable, "-c", TWO_RANKS, backend]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started_s, ends = time.perf_counter(), []
    both = [subprocess.Popen([*command, str(rank), str(port)], **pipes) for rank in (0, 1)]
    for process in both:
        try:
            text = process.communicate(timeout=25)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            text = "hangs: " + process.communicate()[0]
        ends.append((text.strip().splitlines() or [""])[-1][-140:])
    seconds = rounded(time.perf_counter() - started_s)
    return {"case": f"two ranks on one device, {backend}", "seconds": seconds, "ends": ends}


# ── lines ───────────────────────────────────────────────────────────────────────────────────


def figure(case: str, ours: float, unit: str, *, better: str = "higher") -> Line:
    return {"case": case, "ours": rounded(ours), "unit": unit, "better": better}


def compared(case: str, ours: float, unit: str, peer: str, value: float) -> Line:
    """A rate beside that of a peer."""
    return figure(case, ours, unit) | {"peer": peer, "peer_value": rounded(value), "ratio": rounded(ours / value)}


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


CASES: dict[str, Callable[[Place], Iterator[Line]]] = {
    "machine": machine,
    "engine": engine,
    "step-0.6b": lambda place: step(place, "qwen3-0.6b"),
    "quickstart": quickstart,
    "profile": profiled,
    "colocated": lambda place: quickstart(place, colocated=True),
    "publish": publish,
    "vllm": vllm,
    "vllm-loop": vllm_loop,
    "groups": groups,
    "tiny": tiny,
    "step-4b": lambda place: step(place, "qwen3-4b"),
    "attention": attention,
    "experts": experts,
}
