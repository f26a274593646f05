"""
One publish in five roles: a broker, two ranks of a trainer that share a model, and two rollouts with a stand-in engine.

    rank 1 ─ gather ─▶ rank 0 ── stage, layer by layer ─▶ copy ── transfer ─▶ staging of both rollouts ── swap ─▶ engine
                                                                              a loop counts steps meanwhile

Rank 0 is this process, with the broker; the others are children, told what to do by lines of stdin or by the broker.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.config.sections.weights import Weights
from asyncrl.messages.session import Bye, Stop, StoreValue
from asyncrl.messages.weights import Transfer
from asyncrl.messages.wire import CODEC
from asyncrl.trainer.ranks.ranks import RankGroup
from asyncrl.trainer.ranks.sharding import Computation, full_tensor, shard_model
from asyncrl.weights.contents.layout import Layout, TensorSpec
from asyncrl.weights.contents.names import checkpoint_specs
from asyncrl.weights.exchange import Channel
from asyncrl.weights.publish import Receiver
from asyncrl.wire.zmq_link import ZmqLink

from .transfers import BARE, FORM_BARE, MEMBERS, Bare

RANKS = 2
BARE_BYTES = 128 << 20
"""Size of the tensor that a bare broadcast sends again and again: another copy of the model would not fit."""
LOOK_EVERY = 40
"""Tensors gathered between two counts of those alive, which take .1 s; the first one is the largest."""
STEP_S, STEP_SIZE = 0.005, 256
"""Pause between two steps of the stand-in for an engine, and rows and columns of the matrices it multiplies."""


SHAPES = {
    "0.6B": {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    "tiny": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
}
"""Qwen3 0.6B, and what ``--smoke`` takes in its place."""


def model(shape: str) -> Qwen3ForCausalLM:
    """A model without weights."""
    heads = {"head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 8}
    with torch.device("meta"):
        return Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], **heads, tie_word_embeddings=True))


def specs(shape: str, dtype: str) -> list[TensorSpec]:
    return checkpoint_specs(model(shape), dtype)


def num_bare(num_bytes: int) -> int:
    """Number of bare broadcasts with about as many bytes."""
    return max(1, round(num_bytes / BARE_BYTES))


# ── memory ──────────────────────────────────────────────────────────────────────────────────


def resident(key: str = "VmRSS") -> int:
    """Bytes of this process by the kernel's count."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


class Peaks:
    """Highest memory since `begin`, above what it was then."""

    def begin(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self._resident, self._tensors, self._most_tensors = resident(), tensor_bytes(), 0

    def look(self) -> None:
        self._most_tensors = max(self._most_tensors, tensor_bytes())

    def extra(self) -> dict[str, int]:
        return {"resident": resident("VmHWM") - self._resident, "tensors": self._most_tensors - self._tensors}


def tensor_bytes() -> int:
    """Bytes of all tensors that the garbage collector knows."""
    found = [each for each in gc.get_objects() if type(each) is Tensor]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}
    return sum(storages.values())


def look_at_each_broadcast(peaks: Peaks) -> Any:
    """Returns a function that stops it."""
    broadcast = Channel.broadcast

    def looked(self: Channel, tensor: Tensor) -> None:
        peaks.look()
        broadcast(self, tensor)

    Channel.broadcast = looked  # type: ignore[method-assign]
    return lambda: setattr(Channel, "broadcast", broadcast)


# ── trainer ─────────────────────────────────────────────────────────────────────────────────


class Shards:
    """A rank's half of random float32 weights, which both ranks gather one by one."""

    def __init__(self, folder: str, rank: int, shape: str, dtype: str) -> None:
        store = dist.FileStore(f"{folder}/ranks", RANKS)  # type: ignore[attr-defined]
        self._group = RankGroup(store, rank=rank, size=RANKS, timeout_s=300.0)
        self._model, self._dtype = model(shape), getattr(torch, dtype)
        shard_model(self._model, Computation(self._model), self._group.mesh, torch.bfloat16)
        self._model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.to_local().uniform_(-1, 1)

    def named(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, full_tensor(parameter.detach(), self._dtype)

    def close(self) -> None:
        """Free the memory."""
        self._group.close()
        del self._model
        gc.collect()


def run_rank(folder: str, shape: str, dtype: str) -> None:
    """Rank 1: gathers once for each line of stdin, and answers with its extra memory."""
    shards, peaks = Shards(folder, 1, shape, dtype), Peaks()
    for _ in sys.stdin:
        peaks.begin()
        for number, _ in enumerate(shards.named()):
            if number % LOOK_EVERY == 0:
                peaks.look()
        print(json.dumps(peaks.extra()), flush=True)
    shards.close()


# ── rollouts ────────────────────────────────────────────────────────────────────────────────


class StandIn:
    """In place of an engine: steps of a matrix product, and weights to swap."""

    def __init__(self, layout: Layout | None) -> None:
        tensors = layout.specs if layout else ()
        self._weights = {spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in tensors}
        self.num_steps, self.longest_s = 0, 0.0

    async def decode(self) -> None:
        left, right = torch.rand(2, STEP_SIZE, STEP_SIZE)
        before_s = time.perf_counter()
        while True:
            left @ right
            self.num_steps += 1
            await asyncio.sleep(STEP_S)
            now_s = time.perf_counter()
            self.longest_s, before_s = max(self.longest_s, now_s - before_s), now_s

    def swap(self, weights: dict[str, Tensor]) -> float:
        """Copy the weights while no step runs; returns the seconds."""
        start_s = time.perf_counter()
        for name, tensor in self._weights.items():
            tensor.copy_(weights[name])
        return time.perf_counter() - start_s


async def run_rollout(address: str, rank: int, shape: str, dtype: str, *, swaps: bool, folder: str) -> None:
    """Answer every `Transfer` with what was measured, until `Stop`."""
    link = ZmqLink(address, MEMBERS[rank].node, CODEC)
    layout = Layout(specs(shape, dtype), Weights().bucket_bytes)
    receiver, bare = Receiver(layout, MEMBERS[rank], link.send, Weights()), Bare(folder, rank, BARE_BYTES)
    engine, peaks = StandIn(layout if swaps else None), Peaks()
    decoding = asyncio.create_task(engine.decode())

    async def transfer(order: Transfer) -> None:
        num_steps, start_s, engine.longest_s = engine.num_steps, time.perf_counter(), 0.0
        stop = look_at_each_broadcast(peaks) if not order.keep else lambda: None
        await receiver.transfer(order)
        stop()
        seconds = time.perf_counter() - start_s
        steps, longest_s = (engine.num_steps - num_steps) / seconds, engine.longest_s
        pause_s = engine.swap(receiver.weights())
        measured = {"steps": steps, "longest_s": longest_s, "pause_s": pause_s, "extra": peaks.extra()}
        peaks.begin()
        await link.send(Bye(json.dumps(measured)))

    async def broadcast(order: Transfer) -> None:
        num_steps, start_s = engine.num_steps, time.perf_counter()
        await asyncio.to_thread(bare.form if order.transfer_group == FORM_BARE else many(bare, layout.num_bytes))
        steps = (engine.num_steps - num_steps) / (time.perf_counter() - start_s)
        peaks.begin()
        await link.send(Bye(json.dumps({"steps": steps})))

    peaks.begin()
    await link.send(Bye("ready"))
    async with asyncio.TaskGroup() as tasks:
        async for message in link:
            match message:
                case StoreValue():
                    receiver.deliver(message)
                case Transfer() if message.transfer_group <= BARE:
                    tasks.create_task(broadcast(message))
                case Transfer():
                    tasks.create_task(transfer(message))
                case Stop():
                    break
    decoding.cancel()
    await receiver.aclose()
    await link.aclose()


def many(bare: Bare, num_bytes: int) -> Any:
    """A function that sends about as many bytes by bare broadcasts."""

    def send() -> None:
        for _ in range(num_bare(num_bytes)):
            bare.broadcast()

    return send


def child(*arguments: str, pipe: int) -> Any:
    """Start a child in one of the roles."""
    main = str(Path(__file__).parents[1] / "publish.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return asyncio.create_subprocess_exec(sys.executable, main, *arguments, env=environment, stdin=pipe, stdout=pipe)
