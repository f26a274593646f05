"""
Learning at an exact staleness, for several losses and learning rates: one process, one thread, no broker.

    python bench/lagged.py [CONFIG] [--set a.b=value] [--methods default,cispo4] [--staleness 0,4,16,64]
                           [--lr 2e-4,5e-4] [--steps 96] [--seeds 1] [--out runs/lagged.jsonl] [--table]
                           [--picture lagged.svg]

The trajectories of step k are sampled by the weights of version max(0, k - S), whole trajectories by one version, so a
run of S = 64 takes no longer than one of S = 0 and does not depend on the speed of the machine. Engine, verifier and
trainer are those of `asyncrl run`. Every run is a JSON line of ``--out`` with its curves; runs that are in the file are
not repeated, so the sweep can be stopped and restarted. ``--table`` prints the runs of the file and runs nothing, also
of a file of what was printed (``--table --out bench/lagged.jsonl``); ``--picture`` draws them too: accuracy at the end
by staleness for each learning rate, and rewards of the first method, if there are curves.

    accuracy     of the last weights on held-out problems, greedy
    best         the best of the evaluations on the way, the last included
    ess_min      least effective sample size of the ratios, of tokens and of trajectories
    alarms       steps at which the broker would have made the event `ess.low`
    collapse     first step whose reward has fallen below half of the best mean of ten steps before it, and stays there
"""

import argparse
import asyncio
import json
import math
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import smoke
import torch
from picture import picture
from run_files import QUICKSTART, add_run_file, take
from torch import Tensor

from asyncrl.broker.metrics.incidents import DriftAlarms
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.data.prompts import Draw, held_out_stream, train_stream
from asyncrl.engine import Request
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import verdict_of, verifier_input
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.tools.report.charts import COLOURS, Series, line_chart
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.packing.step import TrainingTrajectory

CISPO = ["algorithm.loss=cispo", "algorithm.clip_high=4"]
DR_GRPO = ["algorithm.advantage=dr_grpo"]
FILTER = ["schedule.filter=zero_variance"]
MASK = ["algorithm.correction.mask_divergent=0.1"]
NARROW, WIDE1, WIDE2 = ([f"algorithm.clip_high={bound}"] for bound in ("0.28", "1", "2"))
DUAL = ["algorithm.dual_clip=1.2"]
METHODS = {
    "default": [],
    "decoupled": ["algorithm.correction.mode=decoupled"],
    "cispo": ["algorithm.loss=cispo"],
    "cispo4": CISPO,
    "narrow": NARROW,
    "dr_grpo": [*DR_GRPO, *NARROW],
    "filter": [*FILTER, *NARROW],
    "mask": [*MASK, *NARROW],
    "wide1": WIDE1,
    "wide1+mask": [*WIDE1, *MASK],
    "wide2": WIDE2,
    "wide2+mask": [*WIDE2, *MASK],
    "default+mask": MASK,
    "default+dr_grpo": DR_GRPO,
    **{f"low{bound}": [f"algorithm.clip_low=0{bound}"] for bound in (".05", ".1", ".15", ".5", ".8")},
    "low.5+wide1": ["algorithm.clip_low=0.5", *WIDE1],
    "dual1.2": DUAL,
    "low.1+dual1.2": ["algorithm.clip_low=0.1", *DUAL],
    **{f"sampler_kl{coef}": [f"algorithm.sampler_kl_coef=0{coef}"] for coef in (".02", ".05", ".1", ".3")},
    "dppo_tv": ["algorithm.loss=dppo_tv"],
    "dppo_tv.2": ["algorithm.loss=dppo_tv", "algorithm.clip_low=0.2", "algorithm.clip_high=0.2"],
    "dppo_kl": ["algorithm.loss=dppo_kl"],
    "cispo4+mask": [*CISPO, *MASK],
    "cispo4+dr_grpo+filter+mask": [*CISPO, *DR_GRPO, *FILTER, *MASK],
    "plain": ["algorithm.loss=reinforce", "algorithm.correction={importance='token', importance_threshold=1e6}"],
}
"""
``default`` has a ``clip_high`` of 4 from a staleness of 4 on, as have ``low...``, ``dual...`` and ``sampler_kl...``;
``narrow``, ``dr_grpo``, ``filter`` and ``mask`` have .28, ``wide1`` 1. ``plain`` is importance sampling without a bound
that matters.
"""
CURVES = ("reward", "ess", "ess_sequence", "kl", "log_ratio_abs_mean", "grad_norm", "clip_fraction", "length_mean")
SMOOTH = 10
"""Steps over which the reward is averaged before a collapse is looked for."""
MAX_REFILLS = 4
"""With the filter: groups sampled for a step, in units of ``groups_per_step``, before it goes on with fewer."""


class Cell(NamedTuple):
    """Settings of one run."""

    method: str
    staleness: int
    lr: float
    steps: int
    seed: int

    def settings(self) -> list[str]:
        run = [f"run.steps={self.steps}", f"run.seed={self.seed}"]
        return [*METHODS[self.method], f"schedule.staleness={self.staleness}", f"trainer.lr={self.lr}", *run]


class Problem(NamedTuple):
    draw: Draw
    prompt_ids: list[int]


class Loop:
    """Sampling, grading and training of one run."""

    def __init__(self, config: Config, staleness: int) -> None:
        self._config = config
        path = Path(config.model.path)
        self._learner = Learner(config, path)
        slots, length = config.rollout.slots, config.longest_request
        self._engine = TransformersEngine.load(config.model.path, slots=slots, max_tokens_per_slot=length)
        self._verifier = resolve(config.reward.function, config.reward.options)
        self._prompts = train_stream(config.data, config.run.seed).since(0)
        held_out = held_out_stream(config.data, config.evaluation.max_prompts).since(0)
        self._held_out = [self._problem(draw) for draw in held_out]
        self._versions: deque[dict[str, Tensor]] = deque([self._weights()], maxlen=staleness + 1)
        """Weights of the last S + 1 versions, the oldest of which samples."""
        self._num_versions = 1

    async def step(self, number: int) -> dict[str, float]:
        """Sample, grade and train one step. Returns its metrics."""
        version = self._num_versions - len(self._versions)
        await self._swap(version, self._versions[0])
        trajectories = [one async for group in self._groups(number, version) for one in group]
        reward = fmean(one.reward for one in trajectories)
        metrics = self._learner.train(trajectories, version if version == number else None)
        self._versions.append(self._weights())
        self._num_versions += 1
        length = fmean(len(one.completion_ids) for one in trajectories)
        return {**metrics, "reward": reward, "length_mean": length}

    async def accuracy(self) -> float:
        """Share of held-out problems that the newest weights solve, greedy."""
        await self._swap(self._num_versions - 1, self._versions[-1])
        sampling = Sampling(max_tokens=self._config.sampling.max_tokens, temperature=0.0)
        found = await asyncio.gather(*(self._trajectory(one, 0, sampling, 0, 0) for one in self._held_out))
        return fmean(one.metrics["correct"] for one in found)

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def _groups(self, step: int, version: int) -> AsyncIterator[list[TrainingTrajectory]]:
        """Groups of a step; with the filter those of unequal rewards, refilled as the broker does."""
        wanted, is_filtered = self._config.schedule.groups_per_step, self._config.schedule.filter != "none"
        missing, left = wanted, MAX_REFILLS * wanted if is_filtered else wanted
        last: list[TrainingTrajectory] = []
        while missing and left > 0:
            draws = list(islice(self._prompts, missing))
            left -= len(draws)
            for group in await asyncio.gather(*(self._group(draw, step, version) for draw in draws)):
                last = group
                if not is_filtered or len({one.reward for one in group}) > 1:
                    missing -= 1
                    yield group
        if missing == wanted:
            yield last

    async def _group(self, draw: Draw, step: int, version: int) -> list[TrainingTrajectory]:
        sampling = self._config.sampling.sampling()
        problem, indices = self._problem(draw), range(self._config.schedule.group_size)
        return await asyncio.gather(*(self._trajectory(problem, index, sampling, step, version) for index in indices))

    def _problem(self, draw: Draw) -> Problem:
        return Problem(draw, self._engine.encode(draw.prompt))

    async def _trajectory(
        self, problem: Problem, index: int, sampling: Sampling, step: int, version: int
    ) -> TrainingTrajectory:
        draw, prompt_ids = problem
        seed = hash((self._config.run.seed, step, draw.group_id, index)) % 2**31
        done = await self._engine.generate(Request(prompt_ids=prompt_ids, sampling=sampling, seed=seed))
        text = self._engine.decode(done.completion_ids)
        judged = verifier_input(
            draw.prompt, text, finish_reason=done.finish_reason, num_tokens=len(done.completion_ids)
        )
        verdict = verdict_of(self._verifier(judged))
        return TrainingTrajectory(
            draw.group_id,
            np.array(prompt_ids, np.int32),
            np.array(done.completion_ids, np.int32),
            np.array(done.behavior_logprobs, np.float32),
            verdict.reward,
            [Span(version, 0, len(done.completion_ids))],
            index,
            verdict.metrics,
        )

    async def _swap(self, version: int, weights: dict[str, Tensor]) -> None:
        await self._engine.pause()
        await self._engine.swap(version, weights)
        await self._engine.resume()

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._learner.named_weights()}


async def run(config: Config, cell: Cell) -> dict[str, Any]:
    """One run. Returns its record."""
    started_s, loop = time.monotonic(), Loop(config, cell.staleness)
    curves: dict[str, list[float]] = {name: [] for name in CURVES}
    accuracy = {0: await loop.accuracy()}
    for step in range(cell.steps):
        metrics = await loop.step(step)
        for name, curve in curves.items():
            curve.append(float(f"{metrics.get(name, float('nan')):.5g}"))
        if (step + 1) % max(cell.steps // 6, 1) == 0 or step + 1 == cell.steps:
            accuracy[step + 1] = await loop.accuracy()
    await loop.aclose()
    return {**cell._asdict(), "wall_s": round(time.monotonic() - started_s, 1), "accuracy": accuracy, **curves}


# ── results ───────────────────────────────────────────────────────────────────────────────


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """The output line of a run, from its record or from such a line."""
    if is_line(record):
        return record
    accuracy = list(record["accuracy"].values())
    return {
        "bench": "lagged",
        **{name: record[name] for name in Cell._fields},
        "accuracy": round(accuracy[-1], 4),
        "best": round(max(accuracy), 4),
        "reward_last": round(fmean(record["reward"][-SMOOTH:]), 4),
        "ess_min": lowest(record["ess"]),
        "ess_sequence_min": lowest(record["ess_sequence"]),
        "alarms": alarms(record["ess"]),
        "collapse": collapse(record["reward"]),
        "wall_s": record["wall_s"],
    }


def is_line(record: dict[str, Any]) -> bool:
    """True for an output line, which has no curves; the runs beside this file are kept as such."""
    return "bench" in record


def lowest(curve: Sequence[float]) -> float | None:
    """Least value that is a number; None if there is none."""
    return min((value for value in curve if not math.isnan(value)), default=None)


def alarms(ess: Sequence[float]) -> list[int]:
    config = load_config(QUICKSTART)
    drift = DriftAlarms(config)
    return [step for step, size in enumerate(ess) if list(drift.check({"step": step, "ess": size}, config))]


def collapse(reward: Sequence[float]) -> int | None:
    """First step from which the mean of `SMOOTH` steps stays below half of the best such mean before; None without."""
    means = smooth(reward)
    fallen = None
    for step in range(SMOOTH, len(means)):
        if means[step] >= max(means[SMOOTH - 1 : step]) / 2:
            fallen = None
        elif fallen is None:
            fallen = step
    return fallen


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    """Records, or output lines, of the finished runs by cell."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = map(json.loads, lines)
    return {Cell(*(record[name] for name in Cell._fields)): record for record in records}


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for of in product(range(options.seeds), options.staleness, options.lr, options.methods):
        seed, staleness, lr, method = of
        yield Cell(method, staleness, lr, options.steps, seed)


def show(records: Iterable[dict[str, Any]]) -> None:
    for record in records:
        print(json.dumps(summary(record)), flush=True)


def draw(records: dict[Cell, dict[str, Any]]) -> str:
    """SVG of accuracies at the end by staleness, a chart for each learning rate, and of rewards of the first method."""
    charts = []
    for lr in sorted({cell.lr for cell in records}):
        of_lr = {cell: record for cell, record in records.items() if cell.lr == lr}
        lines = [ended(method, of_lr) for method in METHODS if any(cell.method == method for cell in of_lr)]
        title = f"Held-out accuracy at the end, learning rate {lr:g}"
        charts.append(line_chart(title, lines, x_label="log2(1 + staleness)", percent=True, whole=False))
    method = next(cell.method for cell in records)
    for lr in sorted({cell.lr for cell in records})[1:3]:
        of_method = {c.staleness: r for c, r in records.items() if (c.method, c.lr, c.seed) == (method, lr, 0)}
        runs = {staleness: record for staleness, record in of_method.items() if not is_line(record)}
        curves = [
            Series(
                points=list(enumerate(smooth(runs[staleness]["reward"])))[::4],
                label=f"S = {staleness}",
                colour=place,
                dashed=place >= len(COLOURS),
            )
            for place, staleness in enumerate(sorted(runs))
        ]
        charts.append(
            line_chart(
                f"Reward of {method}, mean of {SMOOTH} steps, learning rate {lr:g}", curves, zero=True, percent=True
            )
        )
    return picture("Learning at an exact staleness: means, and the range of seeds", charts)


def ended(method: str, records: dict[Cell, dict[str, Any]]) -> Series:
    """Accuracy at the end by staleness."""
    found: dict[int, list[float]] = {}
    for cell, record in sorted(records.items()):
        if cell.method == method:
            found.setdefault(cell.staleness, []).append(summary(record)["accuracy"])
    at = {staleness: math.log2(1 + staleness) for staleness in found}
    return Series(
        points=[(at[staleness], fmean(values)) for staleness, values in found.items()],
        label=method,
        colour=list(METHODS).index(method),
        dashed=list(METHODS).index(method) >= len(COLOURS),
        dots=True,
        band=[(at[staleness], min(values), max(values)) for staleness, values in found.items()],
    )


def smooth(curve: Sequence[float]) -> list[float]:
    """Mean of the last `SMOOTH` values at each step."""
    return [fmean(curve[max(0, end - SMOOTH) : end]) for end in range(1, len(curve) + 1)]


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    if options.table:
        records = read(options.out)
        show(records.values())
        if options.picture:
            options.picture.write_text(draw(records), encoding="utf-8")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells(options):
        if cell in read(options.out):
            continue
        print(f"{cell}", file=sys.stderr, flush=True)
        record = asyncio.run(run(take(options, cell.settings()), cell))
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        show([record])


def listed(kind: type) -> Any:
    return lambda text: [kind(part) for part in text.split(",")]


def methods(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in METHODS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(METHODS)}")
    return names


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    add_run_file(parser)
    parser.add_argument("--methods", type=methods, default=list(METHODS), help=f"of {','.join(METHODS)}")
    parser.add_argument("--staleness", type=listed(int), default=[0, 1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--lr", type=listed(float), default=[1e-4, 2e-4, 5e-4, 1e-3])
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs") / "lagged.jsonl", help="JSON lines of all runs")
    parser.add_argument("--table", action="store_true", help="print the runs in --out, and run nothing")
    parser.add_argument("--picture", type=Path, help="with --table: SVG file to write")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
