"""
Publish of a real model: gathered layer by layer from two ranks of a trainer, sent to two rollouts over Gloo.

    python bench/publish.py [--dtypes float32,bfloat16] [--rounds 5] [--shape 0.6B]

Qwen3 0.6B with random weights, each role a process on this machine. Prints, for 2.4 GB (float32) and 1.2 GB (bfloat16):

bandwidth   of transfers, compared with bare broadcasts of as many bytes between the same processes, in turns
memory      most that any process holds beyond its own copies, compared with two buckets; by the kernel's count of
            resident pages, and by the tensors alive at each broadcast (in a round that is not timed)
steps       of a loop in each rollout that stands for decoding, a second, compared with those during bare broadcasts
pause       of that loop for a swap; bfloat16 only, because two more copies of 2.4 GB need too much memory

Needs 12 GB: the ranks of float32 end when a version is staged, before there are rollouts.
"""

import argparse
import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import smoke
import torch
from ours import publishing
from ours.publishing import Peaks, Shards, child, look_at_each_broadcast, many
from ours.transfers import BARE, DEADLINE_S, FORM_BARE, MEMBERS, Bare, serve

from asyncrl.config.sections.weights import Weights
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye, Stop, StoreValue
from asyncrl.messages.weights import Transfer
from asyncrl.messages.wire import CODEC
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.publish import Publisher
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink

SWAPS = {"float32": False, "bfloat16": True}
"""Dtypes, and whether the rollouts have weights to swap."""


def report(case: str, ours: float, unit: str, peer: str, peer_value: float, **more: object) -> None:
    rounded = [float(f"{value:.4g}") for value in (ours, peer_value)]
    line = {"bench": "publish", "case": case, "ours": rounded[0], "unit": unit, "peer": peer, "peer_value": rounded[1]}
    better = "higher" if unit.endswith("/s") else "lower"
    print(json.dumps({**line, "ratio": round(ours / peer_value, 3), "better": better, **more}), flush=True)


class Trainer:
    """Rank 0 of the trainer, and the broker."""

    def __init__(self, shape: str, dtype: str, folder: str) -> None:
        config = Weights()
        self.layout = Layout(publishing.specs(shape, dtype), config.bucket_bytes)
        self.hub = ZmqHub(f"ipc://{mkdtemp()}/hub", CODEC)
        self.link = ZmqLink(self.hub.address, "trainer", CODEC)
        self.publisher = Publisher(self.layout, MEMBERS[0], self.link.send, config)
        self.received: asyncio.Queue[Message] = asyncio.Queue()
        self.bare = Bare(folder, 0, publishing.BARE_BYTES)
        self.peaks = Peaks()
        self._version, self._transfer_group = 0, 1

    async def forward(self) -> None:
        async for message in self.link:
            if isinstance(message, StoreValue):
                self.publisher.deliver(message)

    async def replies(self) -> list[Any]:
        answers = [await self.received.get() for _ in MEMBERS[1:]]
        return [json.loads(answer.reason) for answer in answers if isinstance(answer, Bye) and answer.reason != "ready"]

    async def stage(self, shards: Shards, rank: Any) -> tuple[float, list[dict[str, int]]]:
        """Gather a new version with the other rank; returns the seconds, and both ranks' extra memory."""
        self._version += 1
        rank.stdin.write(b"\n")
        self.peaks.begin()
        start_s = time.perf_counter()
        await asyncio.to_thread(self.publisher.stage, self._version, self._looked(shards))
        seconds = time.perf_counter() - start_s
        return seconds, [self.peaks.extra(), json.loads(await rank.stdout.readline())]

    def _looked(self, shards: Shards) -> Any:
        for number, named in enumerate(shards.named()):
            if number % publishing.LOOK_EVERY == 0:
                self.peaks.look()
            yield named

    async def transfer(self, *, looks: bool = False) -> tuple[float, list[Any]]:
        """Send the staged version; returns the seconds, and what the rollouts measured."""
        if looks:
            self._transfer_group += 1
        self.peaks.begin()
        stop = look_at_each_broadcast(self.peaks) if looks else lambda: None
        start_s = time.perf_counter()
        order = Transfer(1 if not looks else self._transfer_group, self._version, MEMBERS, not looks, DEADLINE_S)
        self._send(order)
        await self.publisher.transfer(order)
        seconds = time.perf_counter() - start_s
        stop()
        return seconds, [{"extra": self.peaks.extra()}, *await self.replies()]

    async def broadcast(self, transfer_group: int) -> tuple[float, list[Any]]:
        start_s = time.perf_counter()
        self._send(Transfer(transfer_group, 0, MEMBERS, True, DEADLINE_S))
        await asyncio.to_thread(
            self.bare.form if transfer_group == FORM_BARE else many(self.bare, self.layout.num_bytes)
        )
        return time.perf_counter() - start_s, await self.replies()

    def _send(self, order: Transfer) -> None:
        for member in MEMBERS[1:]:
            self.hub.send(member.node, order)

    async def aclose(self) -> None:
        for member in MEMBERS[1:]:
            self.hub.send(member.node, Stop("done"))
        await self.publisher.aclose()
        await self.link.aclose()
        await self.hub.aclose()


async def measure(shape: str, dtype: str, rounds: int) -> None:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="asyncrl-bench-"))
        trainer = Trainer(shape, dtype, folder)
        for task in (serve(trainer.hub, trainer.received), trainer.forward()):
            stack.callback(asyncio.create_task(task).cancel)

        async def start(*arguments: str) -> Any:
            process = await child(*arguments, pipe=PIPE)
            stack.callback(lambda: process.kill() if process.returncode is None else None)
            return process

        rank = await start("--rank", folder, shape, dtype)
        shards = await asyncio.to_thread(Shards, folder, 0, shape, dtype)
        stages = [await trainer.stage(shards, rank) for _ in range(3)]
        if not SWAPS[dtype]:
            await _end(shards, rank)
        options = (shape, dtype, "swaps" if SWAPS[dtype] else "", folder)
        rollouts = [await start("--rollout", trainer.hub.address, str(i), *options) for i in range(1, len(MEMBERS))]
        await trainer.replies()
        await _rounds(trainer, stages, f"{shape} {dtype}", rounds, swaps=SWAPS[dtype])
        await trainer.aclose()
        for process in rollouts:
            await process.wait()
        if SWAPS[dtype]:
            await _end(shards, rank)


async def _end(shards: Shards, rank: Any) -> None:
    rank.stdin.close()
    shards.close()
    await rank.wait()


async def _rounds(trainer: Trainer, stages: list[Any], case: str, rounds: int, *, swaps: bool) -> None:
    num_bytes, sent, bare = trainer.layout.num_bytes, [], []
    await trainer.transfer()  # forms the group, and makes all copies resident
    await trainer.broadcast(FORM_BARE)
    await trainer.broadcast(BARE)
    for _ in range(rounds):
        sent.append(await trainer.transfer())
        bare.append(await trainer.broadcast(BARE))
    _, looked = await trainer.transfer(looks=True)
    seconds, bare_s = (median(each[0] for each in results) for results in (sent, bare))
    rounds_s = [[round(each[0], 2) for each in pair] for pair in zip(sent, bare, strict=True)]
    bare_bytes = publishing.num_bare(num_bytes) * publishing.BARE_BYTES
    case = f"{case}, {num_bytes / 1e9:.1f} GB"
    report(
        f"bandwidth, {case}",
        num_bytes / 1e9 / seconds,
        "GB/s",
        "bare broadcast",
        bare_bytes / 1e9 / bare_s,
        seconds=rounds_s,
    )
    buckets = 2 * max(bucket.num_bytes for bucket in trainer.layout.buckets) / 1e6
    for number, held in enumerate(stages[-1][1]):
        extra, tensors = held["resident"], held["tensors"] / 1e6
        report(
            f"memory of trainer rank {number}, gathering, {case}",
            extra / 1e6,
            "MB",
            "two buckets",
            buckets,
            tensors=tensors,
        )
    print(json.dumps({"bench": "publish", "case": f"gather and stage, {case}", "seconds": round(stages[-1][0], 2)}))
    for number, name in enumerate(("trainer", "rollout 1", "rollout 2")):
        extra = max(results[number]["extra"]["resident"] for _, results in sent) / 1e6
        tensors = looked[number]["extra"]["tensors"] / 1e6
        report(f"memory of {name}, transfer, {case}", extra, "MB", "two buckets", buckets, tensors=tensors)
    steps, bare_steps = (
        median(each["steps"] for _, results in both for each in results if "steps" in each) for both in (sent, bare)
    )
    longest_s = max(each["longest_s"] for _, results in sent for each in results[1:])
    report(
        f"steps during a transfer, {case}", steps, "steps/s", "during bare broadcasts", bare_steps, longest_s=longest_s
    )
    if swaps:
        pause_s = median(each["pause_s"] for _, results in sent for each in results[1:])
        report(f"pause for a swap, {case}", pause_s, "s", "transfer", seconds, GB_per_s=num_bytes / 1e9 / pause_s)


if __name__ == "__main__":
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["--rank", folder, shape, dtype]:
            publishing.run_rank(folder, shape, dtype)
        case ["--rollout", address, number, shape, dtype, swaps, folder]:
            asyncio.run(publishing.run_rollout(address, int(number), shape, dtype, swaps=bool(swaps), folder=folder))
        case _:
            parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            parser.add_argument("--dtypes", default="float32,bfloat16")
            parser.add_argument("--rounds", type=int, default=5)
            parser.add_argument("--shape", default="0.6B", choices=publishing.SHAPES)
            chosen = smoke.parsed(parser)
            for dtype in chosen.dtypes.split(","):
                asyncio.run(measure(chosen.shape, dtype, chosen.rounds))
