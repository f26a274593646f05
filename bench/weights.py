"""
Cost of weight updates for models with Qwen3 shapes: one trainer and two rollouts, each a process.

    python bench/weights.py [--sizes 1M,30M,300M] [--dtypes bfloat16,float32] [--parts transfer,pause,vllm,delta]

transfer    bytes per second, compared with a bare Gloo broadcast between the same processes; time a version blocks the
            trainer, compared with a copy into existing tensors; extra time of the first transfer in a transfer
            group, compared with creating a bare Gloo group; time a joining rollout waits for the live version
pause       time generation is paused for a version while requests run, compared with an empty pause and a bare load of
            the same tensors; uses asyncrl's own engine
vllm        the same with vLLM, if it is installed
delta       bytes and seconds of ``weights.delta`` after a real optimizer step, compared with sending the whole version

Figures are medians over several publishes, with ``p99`` where the tail matters. 300M in float32 needs 10 GB of memory.
"""

import argparse
import asyncio
import gc
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from itertools import product
from statistics import median
from typing import Any

import smoke
import torch
from ours import shapes
from ours.pause import REQUESTS, Kv, measure_transformers
from ours.transfers import BARE, FORM_BARE, TrainerSide, run_rollout, trainer_with_rollouts
from ours.vllm_pause import measure_vllm

from asyncrl.weights.contents.names import checkpoint_tensors

ROUNDS = {"tiny": 2, "1M": 25, "30M": 11, "300M": 5}
"""Number of measured publishes by model size."""
SIZES = ("1M", "30M", "300M")
KV: tuple[Kv, ...] = ("recompute", "keep")
BARE_LOADS = {"transformers": "copy", "vllm": "reload_weights of vLLM"}
UPDATES = 3
"""Optimizer steps per learning rate; the first step of an optimizer is not typical."""
LEARNING_RATES = (1e-6, 2e-4)
MB = 1e6


def report(case: str, ours: float, unit: str, peer: str, peer_value: float, **more: object) -> None:
    """Print one line. Higher is better for rates, lower for seconds and bytes."""
    line = {
        "bench": "weights",
        "case": case,
        "ours": _rounded(ours),
        "unit": unit,
        "peer": peer,
        "peer_value": _rounded(peer_value),
        "ratio": round(ours / peer_value, 2) if peer_value else None,
        "better": "higher" if unit.endswith("/s") else "lower",
    }
    print(json.dumps(line | more), flush=True)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def p99(seconds: Sequence[float]) -> float:
    """99th percentile; the maximum if there are fewer than 100 values."""
    return _rounded(sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1])


async def paired(ours: Callable[[], Awaitable[float]], peer: Callable[[], Awaitable[float]], rounds: int) -> Any:
    """Call both alternately. Returns the median seconds of each."""
    pairs = [(await ours(), await peer()) for _ in range(rounds)]
    return [median(seconds) for seconds in zip(*pairs, strict=True)]


# ── transfer ────────────────────────────────────────────────────────────────────────────────


def transfer(size: str, dtype: str) -> None:
    asyncio.run(_transfer(size, dtype))


async def _transfer(size: str, dtype: str) -> None:
    model = shapes.model(size)
    async with trainer_with_rollouts(model, size, dtype) as trainer:
        await _measure_transfers(trainer, f"{size} {dtype}", ROUNDS[size])
        await _measure_blocking(trainer, model, size, dtype)


async def _measure_transfers(trainer: TrainerSide, case: str, rounds: int) -> None:
    gigabytes = trainer.layout.num_bytes / 1e9
    later_s, bare_s = await paired(trainer.broadcast, lambda: trainer.bare(BARE), rounds)
    report(
        *(f"transfer to 2 rollouts, {case}", gigabytes / later_s, "GB/s", "bare gloo broadcast", gigabytes / bare_s),
        megabytes=_rounded(trainer.layout.num_bytes / MB),
    )
    first_s, form_s = await paired(trainer.form_and_broadcast, lambda: trainer.bare(FORM_BARE), rounds)
    report(f"form the group, {case}", first_s - later_s, "s", "bare gloo group by a file", form_s)
    catch_up_s, bare_s = await paired(trainer.catch_up, lambda: trainer.bare(BARE), rounds)
    report(f"catch up a joiner, {case}", catch_up_s, "s", "bare gloo broadcast to 2", bare_s)


async def _measure_blocking(trainer: TrainerSide, model: Any, size: str, dtype: str) -> None:
    """Blocking time of the trainer. The peer reuses its target tensors, as the publisher reuses its buffers."""
    target = shapes.weights(model, dtype)
    weights = dict(checkpoint_tensors(model))

    async def copy() -> float:
        start_s = time.perf_counter()
        for name, tensor in target.items():
            tensor.copy_(weights[name])
        return time.perf_counter() - start_s

    ours_s, peer_s = await paired(trainer.stage, copy, ROUNDS[size])
    report(f"trainer stands still, {size} {dtype}", ours_s, "s", "bare copy of float32 weights", peer_s)


# ── pause ───────────────────────────────────────────────────────────────────────────────────


def pause(size: str, dtype: str) -> None:
    for kv in KV:
        _report_pauses(size, dtype, kv, "transformers")


def vllm(size: str, dtype: str) -> None:
    for kv in KV:
        _report_pauses(size, dtype, kv, "vllm")


def _report_pauses(size: str, dtype: str, kv: Kv, engine: str) -> None:
    case = f"pause of {REQUESTS} requests, {engine}, kv={kv}, {size} {dtype}"
    if engine == "vllm" and find_spec("vllm") is None:
        print(json.dumps({"bench": "weights", "case": case, "skipped": "vLLM is not installed"}), flush=True)
        return
    measure_engine = measure_vllm if engine == "vllm" else measure_transformers
    measured = measure_engine(size, dtype, kv, ROUNDS[size])
    ours_s, peer_s = median(measured.swap_s), median(measured.bare_s)
    tails = {"p99": p99(measured.swap_s), "peer_p99": p99(measured.bare_s)}
    report(case, ours_s, "s", f"empty pause and bare {BARE_LOADS[engine]}", peer_s, **tails)


# ── delta ───────────────────────────────────────────────────────────────────────────────────


def delta(size: str, dtype: str) -> None:
    asyncio.run(_delta(size, dtype))


async def _delta(size: str, dtype: str) -> None:
    model = shapes.model(size)
    async with trainer_with_rollouts(model, size, dtype) as trainer:
        whole_s = median([await trainer.broadcast() for _ in range(ROUNDS[size])])
    async with trainer_with_rollouts(model, size, dtype, is_delta=True) as trainer:
        for lr in LEARNING_RATES:
            sent = [await _update(trainer, updates) for updates in [shapes.Updates(model, lr)] for _ in range(UPDATES)]
            delta_s, num_bytes, changed = (median(values) for values in zip(*sent, strict=True))
            case, whole, share = f"delta, lr {lr:g}, {size} {dtype}", trainer.layout.num_bytes, _rounded(changed)
            report(f"bytes of a {case}", num_bytes / MB, "MB", "whole version", whole / MB, changed=share)
            report(f"seconds of a {case}", delta_s, "s", "whole version", whole_s, changed=share)


async def _update(trainer: TrainerSide, updates: shapes.Updates) -> tuple[float, int, float]:
    """Take and send one optimizer step. Returns seconds to send, bytes sent, and share of changed elements."""
    await asyncio.to_thread(updates.step)
    await trainer.stage()
    seconds, done = await trainer.send_to_both()
    return seconds, done.num_bytes, trainer.publisher.changed_fraction or 0.0


PARTS = {"transfer": transfer, "pause": pause, "vllm": vllm, "delta": delta}


def measure(sizes: list[str], dtypes: list[str], parts: list[str]) -> None:
    for size, dtype, part in product(sizes, dtypes, parts):
        PARTS[part](size, dtype)
        gc.collect()


def _several(choices: Any) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [name for name in chosen if name not in choices]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(choices)}")
        return chosen

    return parse


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["--rollout", address, rank, size, dtype, is_delta, folder]:
            asyncio.run(run_rollout(address, int(rank), size, dtype, is_delta=bool(is_delta), folder=folder))
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            for option, known in (("--sizes", SIZES), ("--dtypes", shapes.DTYPES), ("--parts", PARTS)):
                parser.add_argument(option, type=_several(known), default=list(known))
            chosen = smoke.parsed(parser)
            measure(chosen.sizes, chosen.dtypes, chosen.parts)
