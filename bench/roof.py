"""
What a decode step and a training step ask of a device, counted without one: kernels, bytes, products, and a ceiling.

    python bench/roof.py [--shapes qwen3-0.6b,qwen3-4b] [--rows 1,64,256] [--context 576] [--tokens 16384] [--smoke]
                         [--bandwidth 2.6e12] [--flops 6.5e14] [--launch 4e-6]

The code itself runs on tensors without memory (torch's ``meta``), as it would on a GPU in bfloat16. Every operation
that is not a view is a kernel, which reads its inputs and writes its outputs once. Its time is the largest of its bytes
by the bandwidth, its products by the FLOP/s, and a launch from Python. The sum is a floor of the step's time, and what
follows from it a ceiling, of this code on this device: nothing here is measured. The defaults are what one H100 reaches
(a copy at 2.6 TB/s, 650 TFLOP/s in bfloat16, 4 us a kernel).

decode    a step of the slot table: forward, sampler, bookkeeping; ``reads`` are reads from the device, which stop it
head      log-probs of the completion tokens and their gradient, forward and backward
layers    the rest of the model, forward and backward, recomputing its layers

The limit of ``decode`` reads weights and cache once. That of the others is their products at full speed.
"""

import argparse
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the usual name
from ours.device_step import SHAPES
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.algo.logprobs import MEASURED_EVERY, chunk_logits, score_states
from asyncrl.engine import Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3Forward, TritonKernels
from asyncrl.rollout.engines.transformers.slots import SlotJob, SlotTable
from asyncrl.trainer.activations import pass_bytes
from asyncrl.trainer.model.loading import fuse_norms
from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory

META = torch.device("meta")
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view", "detach", "lift_fresh", "promote_types"}
"""Operations that launch nothing, besides views."""
PRODUCTS = {"mm": 0, "matmul": 0, "linear": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Place of the left factor of matrix products; the right one follows it."""
GATHERS = {"embedding", "index", "index_select", "gather"}
"""Operations that read as much of their source as they return."""
SCATTERS = {"index_put_", "_index_put_impl_", "index_copy_", "scatter_", "scatter_add_", "index_add_"}
"""Operations that write as much of their target as they are given."""
PASSES = {"logsumexp": 6}
"""Times that torch reads or writes the input of an operation which is several kernels: here amax, sub, exp, sum."""
NORMS = (F.rms_norm, torch.rms_norm)
PROMPT, LONGEST, GROUP = 256, 768, 4
"""Tokens of a prompt and of a completion of the training step, and completions of a prompt."""


@dataclass
class Kernel:
    """What one kernel moves and computes."""

    name: str
    num_bytes: int
    flops: int = 0


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the kernels that operations in this block launch, and counts reads from the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Kernel] = []
        self.reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        is_on_card = any(is_tensor(one) and one.is_meta for one in tree_leaves((args, kwargs, out)))
        if is_on_card and not is_view and name not in FREE:
            self.found.append(Kernel(name, moved(name, args, kwargs or {}, out), multiplied(name, args)))
        return out

    def launched(self, name: str, _: object, arguments: dict[str, Any]) -> None:
        """One kernel, which reads and writes its arguments; of the cache, the cells of its tokens."""
        parts = [value for name, value in arguments.items() if is_tensor(value) and name != "cache"]
        written = parts[0] if name == "place" else arguments["out"]
        self.found.append(Kernel(name, sum(map(size, parts)) + size(written)))

    def of(self, run: Callable[[], object]) -> list[Kernel]:
        """Kernels of a call."""
        self.found, self.reads = [], 0
        with self, OnCard(self):
            run()
        return self.found


class OnCard(TorchFunctionMode):
    """
    Makes tensors on ``meta`` pass for those of a GPU: attention and norms are one kernel each, and what is read from
    the device is zeros, counted as a read. Masks are taken to be true everywhere, and what is compared to be equal.
    """

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._one("attention", args[0].new_empty(args[0].shape), *args, *kwargs.values())
        if func in NORMS:
            return self._one("rms_norm", torch.empty_like(args[0]), *args, *kwargs.values())
        if func == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if func is torch.allclose:
            return True
        if func is torch.Tensor.tolist:
            self._kernels.reads += 1
            return np.zeros(args[0].shape, np.int64).tolist()
        if func is torch.Tensor.nonzero:
            self._kernels.reads += 1
            if not kwargs.get("as_tuple"):
                return args[0].new_empty((0, args[0].dim()), dtype=torch.int64)
            return tuple(args[0].new_empty(args[0].numel(), dtype=torch.int64) for _ in args[0].shape)
        return func(*args, **kwargs)

    def _one(self, name: str, out: Tensor, *inputs: object) -> Tensor:
        self._kernels.found.append(Kernel(name, sum(map(size, filter(is_tensor, [*inputs, out])))))
        return out


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def size(tensor: Any) -> int:
    """Bytes of the elements of a tensor; those that are repeated count once."""
    lengths = [length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    num_bytes: int = prod(lengths) * tensor.element_size()
    return num_bytes


def moved(name: str, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    """Bytes that an operation reads and writes."""
    inputs = [one for one in tree_leaves((args, kwargs)) if is_tensor(one)]
    outputs = [one for one in tree_leaves(out) if is_tensor(one)]
    if name in PASSES:
        return PASSES[name] * size(inputs[0])
    if name in GATHERS:
        return 2 * sum(map(size, outputs)) + sum(map(size, inputs[1:]))
    if name in SCATTERS:
        return 2 * size(inputs[-1]) + sum(map(size, inputs[1:]))
    if name in {"zero_", "fill_", "copy_"}:
        return sum(map(size, inputs[1:])) + size(inputs[0])
    return sum(map(size, inputs)) + sum(map(size, outputs))


def multiplied(name: str, args: Sequence[Any]) -> int:
    """FLOPs of a matrix product; 0 for other operations."""
    if name not in PRODUCTS:
        return 0
    left, right = args[PRODUCTS[name] :][:2]
    columns: int = right.shape[0 if name == "linear" else -1]
    return 2 * int(left.numel()) * columns


# ── steps ───────────────────────────────────────────────────────────────────────────────────


def model_of(shape: str, **more: object) -> Qwen3ForCausalLM:
    with torch.device("meta"):
        return Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape] | more, attn_implementation="sdpa")).bfloat16()


def decode(shape: str, rows: int, context: int) -> tuple[list[Kernel], int, int]:
    """Kernels of a decode step of ``rows`` completions at ``context`` tokens, its reads, and the bytes of its limit."""
    model, kernels = model_of(shape).requires_grad_(False), Kernels()
    positions = context + 16
    cache = KVCache(model.config, slots=rows, positions=positions, dtype=torch.bfloat16, device=META)
    never: Any = lambda token_ids, stop: False  # noqa: E731
    config = model.config
    fused = TritonKernels(config.num_key_value_heads, config.rms_norm_eps, kernels.launched)
    table = SlotTable(
        Qwen3Forward(model, cache, fused),
        slots=rows,
        eos_ids=[1],
        vocab_size=model.config.vocab_size,
        stops_here=never,
        policy_version=0,
        device=META,
        prefill_tokens=rows * context,
    )
    sampling = Sampling(max_tokens=positions - context)
    waiting = deque(SlotJob(Request(prompt_ids=[5] * context, sampling=sampling, seed=i)) for i in range(rows))
    kernels.of(lambda: table.admit(waiting))
    found = kernels.of(table.step)
    pairs = rows * context * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim
    return found, kernels.reads, 2 * (sum(one.numel() for one in model.parameters()) + pairs)


def head(shape: str, num_tokens: int) -> list[Kernel]:
    """Kernels of scoring tokens and of the gradient, with weights in float32 as the trainer has them."""
    sizes = SHAPES[shape]
    weight = torch.empty(sizes["vocab_size"], sizes["hidden_size"], device=META, requires_grad=True)
    states = torch.empty(num_tokens, sizes["hidden_size"], device=META, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.empty(num_tokens, device=META, dtype=torch.int64)

    def both() -> None:
        sizes: Any = {"dtype": torch.bfloat16, "chunk": chunk_logits("cuda"), "entropy": MEASURED_EVERY}
        scores = score_states(states, weight, None, ids, temperature=1.0, **sizes)
        node: Any = scores.logprobs.grad_fn  # called itself, because `backward` leaves modes of torch functions
        node.apply(torch.empty_like(scores.logprobs), None, None)

    return Kernels().of(both)


def layers(shape: str, num_tokens: int) -> list[Kernel]:
    """Kernels of a pass over a packed row without head: the vocabulary is one of few tokens."""
    model = model_of(shape, vocab_size=64)
    trajectories = []
    for place in range(max(1, num_tokens // (PROMPT // GROUP + LONGEST))):
        ids = np.full(PROMPT + LONGEST, place, np.int32)
        logprobs = np.zeros(LONGEST, np.float32)
        prompt = np.full(PROMPT, place // GROUP, np.int32)
        trajectories.append(
            TrainingTrajectory(place // GROUP, prompt, ids[PROMPT:], logprobs, 0.0, index=place % GROUP)
        )
    batch = collate(trajectories, device=META)
    kernels = Kernels()
    fuse_norms(model)  # as the trainer does on a GPU
    norm = partial(_Norm.apply, kernels)
    with kernels, patch.object(F, "rms_norm", lambda hidden, _, weight, eps: norm(hidden, weight)):
        pass_bytes(model, batch, dtype=torch.bfloat16, checkpointing=True)
    backward = [Kernel("attention_backward", 2 * one.num_bytes) for one in kernels.found if "attention" in one.name]
    # Each layer's attention runs twice before its backward pass, which reads the same and writes as much as it reads.
    return kernels.found + backward[::2]


class _Norm(torch.autograd.Function):
    """One kernel each for a norm and for its gradient, which reads the input again."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.kernels, out = kernels, torch.empty_like(hidden)
        ctx.save_for_backward(hidden, weight)
        kernels.found.append(Kernel("rms_norm", sum(map(size, (hidden, weight, out)))))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        parts = gradient, hidden, weight, torch.empty_like(hidden), torch.empty_like(weight)
        ctx.kernels.found.append(Kernel("rms_norm_backward", sum(map(size, parts))))
        return None, parts[3], parts[4]


# ── lines ───────────────────────────────────────────────────────────────────────────────────


def line(case: str, found: list[Kernel], options: argparse.Namespace, **more: object) -> dict[str, Any]:
    """Totals of kernels, and the floor of their time in seconds."""
    times_s = [max(one.num_bytes / options.bandwidth, one.flops / options.flops, options.launch) for one in found]
    flops = sum(one.flops for one in found)
    products_s = sum(t for t, one in zip(times_s, found, strict=True) if one.flops)
    return {
        "bench": "roof",
        "case": case,
        "kernels": len(found),
        "gb": rounded(sum(one.num_bytes for one in found) / 1e9),
        "tflop": rounded(flops / 1e12),
        "floor_ms": rounded(1e3 * sum(times_s)),
        "products_ms": rounded(1e3 * products_s),
        **more,
    }


def main(options: argparse.Namespace) -> None:
    ceilings = {name: getattr(options, name) for name in ("bandwidth", "flops", "launch")}
    print(json.dumps({"bench": "roof", "case": "ceilings", **ceilings}), flush=True)
    for shape in options.shapes:
        for rows in options.rows:
            found, reads, least = decode(shape, rows, options.context)
            own = line(f"decode, {shape}, {rows} at {options.context}", found, options, reads=reads)
            own |= {"tokens_per_s": rounded(1e3 * rows / own["floor_ms"])}
            own |= {"limit": rounded(rows * options.bandwidth / least)}
            print(json.dumps(own), flush=True)
        parts = {"head": head(shape, scored(options.tokens))}
        parts |= {"layers": layers(shape, options.tokens)}
        for name, found in parts.items():
            own = line(f"{name}, {shape}, {options.tokens} tokens", found, options)
            own["limit_ms"] = rounded(1e3 * sum(one.flops for one in found) / options.flops)
            print(json.dumps(own), flush=True)


def scored(num_tokens: int) -> int:
    """Completion tokens of a row of this many."""
    return max(1, num_tokens // (PROMPT // GROUP + LONGEST)) * LONGEST


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=["qwen3-0.6b", "qwen3-4b"])
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=576, help="tokens of each completion of a decode step")
    parser.add_argument("--tokens", type=int, default=16384, help="packed tokens of a training step")
    parser.add_argument("--bandwidth", type=float, default=2.6e12, help="bytes a second")
    parser.add_argument("--flops", type=float, default=6.5e14, help="operations a second of bfloat16 products")
    parser.add_argument("--launch", type=float, default=4e-6, help="seconds to launch a kernel from Python")
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that it runs")
    chosen = parser.parse_args()
    if chosen.smoke:
        chosen.shapes, chosen.rows, chosen.tokens, chosen.context = ["tiny"], [2], 2048, 32
    main(chosen)
