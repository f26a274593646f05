"""
Weights for rollouts that fetch them from the spool: bytes, seconds, and the pause behind a slow line.

    python bench/far_weights.py [--sources step-sums,30M,300M] [--parts bytes,pause]

bytes    a version after a real optimizer step, beside encodings of the same change as others document them: ``indices``
         (verl and slime: int32 positions, values) and ``deltas_zstd`` (slime: 16-bit gaps through zstd, values);
         seconds to encode, and to apply with the digest compared
pause    time generation is paused for a version that was fetched while requests ran, over a line of 50 Mbit/s and over
         loopback, with the seconds that fetching took

Sources: ``step-sums`` is a Qwen3 of 3 million parameters in training on its task; 30M and 300M have random weights and
train on random tokens (300M needs 8 GB of memory). Versions are published in bfloat16; the optimizer keeps float32.
"""

import argparse
import asyncio
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import smoke
import torch
import zstandard
from ours import shapes
from ours.pause import REQUESTS, measure, tokenizer

from asyncrl.messages.weights import PutWeights, StoredWeights, Transfer
from asyncrl.messages.wire import CODEC
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.spool.weights import WeightStore
from asyncrl.tools.toy import step_sums
from asyncrl.tools.toy.lessons import step_sums_lesson
from asyncrl.tools.toy.models import tokenizer_from_words
from asyncrl.tools.toy.text_model import TextModelSizes, random_model
from asyncrl.tools.toy.warm_up import WarmUp, WarmUpSchedule, supervised_step
from asyncrl.weights.contents.header import Checksum
from asyncrl.weights.contents.layout import Layout
from asyncrl.weights.contents.names import checkpoint_specs, checkpoint_tensors
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored.download import Downloader
from asyncrl.weights.stored.staged import StagedVersion, digest
from asyncrl.weights.stored.stream import FORMAT, write
from asyncrl.wire.curve import hub_keys_of, link_keys_of
from asyncrl.wire.zmq_hub import ZmqHub
from asyncrl.wire.zmq_link import ZmqLink
from tests.integration.forwarder import slow_line

SOURCES = ("step-sums", "30M", "300M")
LEARNING_RATES = {"tiny": (1e-5,), "step-sums": (1e-6, 8.2e-6, 3e-5), "30M": (1e-6, 2.05e-6, 1e-5), "300M": (1e-6,)}
"""The second one changes about 2.9 % of the elements."""
BEFORE, VERSIONS = 4, 3
"""Steps before the first version, because those of a fresh optimizer are not typical; versions after the first."""
STEP_SUMS = TextModelSizes(layers=4, hidden_size=256, intermediate_size=768, heads=8, kv_heads=4, head_dim=32)
STEP_SUMS_STEPS = 60
BUCKET_BYTES = 64 << 20
BITS_PER_S = 50e6
SECRET = bytes(32)
CHECKSUM = Checksum(torch.device("cpu"))
MB = 1e6


def report(case: str, ours: float, unit: str, peer: str, peer_value: float | None, **more: object) -> None:
    """Print one line; less is better."""
    ratio = round(ours / peer_value, 3) if peer_value else None
    line = {"bench": "far_weights", "case": case, "ours": _rounded(ours), "unit": unit, "peer": peer}
    line |= {"peer_value": peer_value and _rounded(peer_value), "ratio": ratio, "better": "lower"}
    print(json.dumps(line | more), flush=True)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# ── versions ────────────────────────────────────────────────────────────────────────────────


def trained(source: str) -> tuple[Any, Callable[[float], Callable[[], object]]]:
    """A model, and a function that gives an optimizer's step for a learning rate."""
    if source != "step-sums":
        model = shapes.model(source)
        return model, lambda lr: shapes.Updates(model, lr).step
    words = tokenizer_from_words(step_sums.WORDS)
    model = random_model(STEP_SUMS, words, seed=0)
    lesson = step_sums_lesson(words, 0)
    warm_up = WarmUp(model, lesson, WarmUpSchedule(), seed=0, report=lambda _: None)
    batches = warm_up._batches({lesson.clean: 1.0})
    for _ in range(STEP_SUMS_STEPS):
        supervised_step(model, warm_up._optimizer, next(batches), 1e-3)
    return model, lambda lr: lambda: supervised_step(model, warm_up._optimizer, next(batches), lr)


def versions(model: Any, step: Callable[[], object]) -> Iterator[Staging]:
    """Published weights after each of `VERSIONS` + 1 steps."""
    for _ in range(BEFORE):
        step()
    layout = Layout(checkpoint_specs(model, "bfloat16"), BUCKET_BYTES)
    for _ in range(VERSIONS + 1):
        step()
        staging = Staging(layout)
        for name, tensor in checkpoint_tensors(model):
            staging.tensors[name].copy_(tensor)
        yield staging


# ── bytes ───────────────────────────────────────────────────────────────────────────────────


def measure_bytes(source: str) -> None:
    model, steps = trained(source)
    for lr in LEARNING_RATES[source]:
        pairs = [_measure(base, new) for base, new in pairwise(versions(model, steps(lr)))]
        found = {name: median(pair[name] for pair in pairs) for name in pairs[0]}
        whole = found["whole"]
        case, changed = f"{source}, lr {lr:g}", f"{found['changed']:.2%}"
        for peer in ("indices", "deltas_zstd", "whole"):
            share = f"{found['delta'] / whole:.3%}"
            report(
                f"bytes of a delta, {case}",
                found["delta"] / MB,
                "MB",
                peer,
                found[peer] / MB,
                changed=changed,
                share=share,
            )
        report(f"bytes of an anchor, {case}", found["anchor"] / MB, "MB", "whole", whole / MB)
        for what in ("delta", "anchor"):
            report(f"seconds to encode, {what}, {case}", found[f"encode {what}"], "s", "copy", found["copy"])
            report(f"seconds to apply, {what}, {case}", found[f"apply {what}"], "s", "copy", found["copy"])


def _measure(base: Staging, new: Staging) -> dict[str, float]:
    held, found = Staging(new.layout), {}
    found["copy"], _ = _timed(partial(_copy, base, held))
    for what, start in (("anchor", None), ("delta", base)):
        found[f"encode {what}"], parts = _timed(partial(list, write(new, start)))
        found[what] = sum(map(len, parts))
        staged = StagedVersion(new.layout)
        if start:
            _read(staged, _described(base), list(write(base, None)))
        found[f"apply {what}"], _ = _timed(partial(_read, staged, _described(new, start), parts))
    pairs = [(_bits(one), _bits(other)) for one, other in zip(new.buckets, base.buckets, strict=True)]
    positions = [np.flatnonzero(one != other) for one, other in pairs]
    num_changed = sum(map(len, positions))
    gaps = b"".join((np.diff(where, prepend=-1) - 1).astype(np.uint16).tobytes() for where in positions)
    found["whole"] = new.layout.num_bytes
    found["changed"] = num_changed / (new.layout.num_bytes / 2)
    found["indices"] = num_changed * (4 + 2)
    found["deltas_zstd"] = len(zstandard.ZstdCompressor(level=1).compress(gaps)) + num_changed * 2
    return found


def _described(new: Staging, base: Staging | None = None) -> StoredWeights:
    if base is None:
        return StoredWeights(1, new.layout.hash, digest(new, CHECKSUM), FORMAT)
    return StoredWeights(1, new.layout.hash, digest(new, CHECKSUM), FORMAT, 0, digest(base, CHECKSUM))


def _read(staged: StagedVersion, weights: StoredWeights, parts: list[bytes]) -> None:
    staged.begin(weights)
    for part in parts:
        staged.read(memoryview(part))
    staged.finish()


def _copy(source: Staging, target: Staging) -> None:
    for one, other in zip(source.buckets, target.buckets, strict=True):
        other.copy_(one)


def _bits(bucket: torch.Tensor) -> Any:
    return bucket.numpy().view(np.uint16)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that ``work`` took, and what it returned."""
    start_s = time.perf_counter()
    result = work()
    return time.perf_counter() - start_s, result


# ── pause ───────────────────────────────────────────────────────────────────────────────────


def measure_pause(source: str) -> None:
    model, steps = trained(source)
    made = list(versions(model, steps(LEARNING_RATES[source][0])))
    model.to(torch.bfloat16).requires_grad_(False)
    for line, bits_per_s in (("50 Mbit/s", BITS_PER_S), ("loopback", 0.0)):
        pauses, fetches = asyncio.run(_fetch_under_load(model, made, bits_per_s))
        case = f"pause of {REQUESTS} requests, {source}, {line}"
        report(
            case,
            median(pauses.swap_s),
            "s",
            "empty pause and bare copy",
            median(pauses.bare_s),
            longest=max(pauses.swap_s),
        )
        report(f"fetch of a delta, {source}, {line}", median(fetches[1:]), "s", "fetch of the anchor", fetches[0])


async def _fetch_under_load(model: Any, made: list[Staging], bits_per_s: float) -> Any:
    with (
        TemporaryDirectory() as folder,
        closing(WeightStore(Path(folder))) as store,
        slow_line(bits_per_s or 1e12) as line,
    ):
        hub = ZmqHub("tcp://127.0.0.1:0", CODEC, keys=hub_keys_of(SECRET))
        serving = asyncio.create_task(_serve(hub, store))
        port, names = int(hub.address.rpartition(":")[2]), count()
        address = f"tcp://127.0.0.1:{line.forward(port)}" if bits_per_s else hub.address
        staged = StagedVersion(made[0].layout)
        downloader = Downloader(
            staged, lambda: ZmqLink(address, f"far-{next(names)}", CODEC, keys=link_keys_of(SECRET))
        )
        fetches: list[float] = []

        async def ready(version: int) -> Any:
            new, base = made[len(fetches)], made[len(fetches) - 1] if fetches else None
            _put(store, len(fetches), new, base)
            fetches.append(await downloader.transfer(Transfer(0, len(fetches), [], keep=False, deadline_s=0.0)))
            return downloader.weights()

        async def bare() -> float:
            weights = downloader.weights()
            return (await asyncio.to_thread(_timed, partial(_cloned, weights)))[0]

        engine = TransformersEngine(model, tokenizer(model), slots=REQUESTS, max_tokens_per_slot=400)
        try:
            return await measure(engine, ready, bare, len(made)), fetches
        finally:
            await engine.aclose()
            await downloader.aclose()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await hub.aclose()


def _cloned(weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in weights.values()]


def _put(store: WeightStore, version: int, new: Staging, base: Staging | None) -> None:
    weights = StoredWeights(version, new.layout.hash, digest(new, CHECKSUM), FORMAT)
    if base:
        base_digest = digest(base, CHECKSUM)
        weights = StoredWeights(version, new.layout.hash, weights.digest, FORMAT, version - 1, base_digest)
    parts = list(write(new, base))
    for number, part in enumerate(parts):
        store.put(PutWeights(weights, number, zlib.crc32(part), memoryview(part), number == len(parts) - 1))


async def _serve(hub: ZmqHub, store: WeightStore) -> None:
    while True:
        peer, message = await hub.receive()
        hub.send(peer, store.answer(message))  # type: ignore[arg-type]


PARTS = {"bytes": measure_bytes, "pause": measure_pause}

if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=lambda text: text.split(","), default=SOURCES)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    chosen = smoke.parsed(parser)
    for source in chosen.sources:
        for part in chosen.parts:
            PARTS[part](source)
