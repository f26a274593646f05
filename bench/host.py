"""
Latency of users' requests in a serving process that also rolls out: without rollouts, users first, and naive.

    python bench/host.py [--engine transformers] [--rounds 5] [--requests 60] [--utilisation 0.3] [--seed 0]
    python bench/host.py --away 600       also: the broker is stopped for this long while users are served

    without        no rollout is attached
    users_first    `attach` with a `Host` that marks each request of a user
    naive          `attach`; users' requests are not marked, and are decoded together with rollouts

Requests arrive at random times (Poisson, a fixed seed) whether or not earlier ones have ended. A latency counts from
the planned arrival, so that a blocked event loop is part of it. It is given twice: in wall time, and in CPU time of
what serves users, which is the wall time on a core that nobody else uses; on a shared machine only the latter compares.

The cases take turns in each round, in rotating order, on one engine. Broker, trainer and reward node are processes of a
real run; on two cores or more they have the last core to themselves and the host the first one, because in earnest they
are on another machine.
"""

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import smoke
import torch
from msgspec import Struct
from processes import free_address

from asyncrl import Engine, Host, Request, attach
from asyncrl.config.run_file import load_config
from asyncrl.messages.trajectory import Prompt, Sampling
from asyncrl.records.run_directory import RunDirectory
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.runtime.rollout import load_engine
from asyncrl.tools.toy.models import make_random
from asyncrl.tools.toy.step_sums import write
from asyncrl.tools.toy.text_model import TextModelSizes

SIZES = TextModelSizes(layers=4, hidden_size=256, intermediate_size=768, heads=4, kv_heads=2, head_dim=64)
SLOTS = 8
PREFILL_TOKENS = 256
USER_TOKENS = 64
"""Completion tokens of a user's request."""
CASES = ("without", "users_first", "naive")
PATIENCE_S = 180.0
CORES = sorted(os.sched_getaffinity(0))

CONFIG = """
[run]
steps = 1000000
[model]
path = "{folder}/model"
[data]
train = "{folder}/train.parquet"
held_out = "{folder}/held_out.parquet"
max_prompt_tokens = 64
[schedule]
groups_per_step = 16
group_size = 4
staleness = 1
[sampling]
max_tokens = 128
[rollout]
engine = "{engine}"
slots = {slots}
{vllm}
[reward]
function = "gsm8k"
[trainer]
lr = 1e-7
[evaluation]
every_versions = 0
at_start = false
at_end = false
"""
VLLM = """
[rollout.vllm]
kv_cache_bytes = 268435456
enforce_eager = true
[rollout.vllm.engine_args]
block_size = 32
scheduling_policy = "{policy}"
"""


class TrainingSide:
    """Broker, trainer and reward node of one run, each a process."""

    def __init__(self, folder: Path) -> None:
        self.address = free_address()
        self.directory = RunDirectory(folder / "run")
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for role in ("broker", "trainer", "reward"):
            self.start(role)

    def start(self, role: str) -> None:
        run_file = ["--config", "host.toml", "--set", f"run.dir={self._folder}", "--set", "run.name=run"]
        command = [
            "nice",
            "-n",
            "10",
            "taskset",
            "-c",
            str(CORES[-1]),
            sys.executable,
            "-m",
            "asyncrl.cli.node",
            "--role",
            role,
        ]
        command += ["--broker", self.address, *(run_file if role == "broker" else [])]
        with (self._folder / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(
                command,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def stop(self, role: str) -> None:
        self._processes[role].terminate()
        self._processes[role].wait(PATIENCE_S)

    def end(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()


class Measured(Struct):
    """One case of one round."""

    latencies: list["Latency"]
    rollout_tokens: int
    wall_s: float
    steps: int


class CpuClock:
    """CPU seconds of the threads that serve users: the one that decodes here, or all of this process and vLLM's."""

    def __init__(self, engine: Engine) -> None:
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
        self._clocks = [(~pid << 3) | 2 for pid in pids]  # clock_getcpuclockid(3)
        if isinstance(engine, TransformersEngine):
            self._clocks = [time.CLOCK_THREAD_CPUTIME_ID]
        self._readings: deque[tuple[float, float]] = deque(maxlen=10_000)
        """(`time.monotonic`, CPU seconds) at each look."""

    def look(self) -> float:
        now_s = sum(map(time.clock_gettime, self._clocks))
        self._readings.append((time.monotonic(), now_s))
        return now_s

    def at(self, then_s: float) -> float:
        """CPU seconds at an earlier `time.monotonic`, from the looks around it."""
        after = self._readings[-1]
        for before in reversed(self._readings):
            if before[0] <= then_s:
                share = (then_s - before[0]) / max(after[0] - before[0], 1e-9)
                return before[1] + share * (after[1] - before[1])
            after = before
        return after[1]

    def look_at_steps(self, engine: Engine) -> None:
        """Look before and after each step of an engine that decodes in this process."""
        if isinstance(engine, TransformersEngine):
            step = engine._table.step

            def looked_at() -> Any:
                self.look()
                ended = step()
                self.look()
                return ended

            engine._table.step = looked_at  # type: ignore[method-assign]


class Latency(NamedTuple):
    wall_s: float
    cpu_s: float


class Bench:
    def __init__(self, engine: Engine, side: TrainingSide, arguments: argparse.Namespace) -> None:
        self._engine = engine
        self._side = side
        self._arguments = arguments
        self._cpu = CpuClock(engine)
        self._cpu.look_at_steps(engine)
        self._prompt_ids = engine.encode(Prompt(text="Ann has 3 apples and buys 4 more. How many now?"))[:32]
        self.request_s = 0.0
        """Median latency of a single request."""

    async def calibrate(self) -> None:
        alone = [await self._serve(time.monotonic(), number, None) for number in range(10)]
        self.request_s = median(latency.wall_s for latency in alone[2:])

    async def case(self, case: str, seed: int) -> Measured:
        host = Host(grace_s=self._arguments.grace)
        attached = None
        if case != "without":
            attached = asyncio.create_task(attach(self._engine, self._side.address, "host", slots=SLOTS, host=host))
            await until(lambda: host.health.num_tokens > 0)
        tokens, steps, start_s = host.health.num_tokens, self._steps(), time.monotonic()
        latencies = await self._users(seed, host if case == "users_first" else None)
        measured = Measured(
            latencies, host.health.num_tokens - tokens, time.monotonic() - start_s, self._steps() - steps
        )
        if attached:
            attached.cancel()
            await asyncio.wait([attached])
        return measured

    async def away(self, seconds: float, seed: int) -> None:
        """Serve users while the broker is stopped for ``seconds``, and see the rollout continue afterwards."""
        await self.calibrate()
        host, states = Host(grace_s=self._arguments.grace), list[str]()
        attached = asyncio.create_task(attach(self._engine, self._side.address, "host", slots=SLOTS, host=host))
        await until(lambda: host.health.num_tokens > 0)
        self._side.stop("broker")
        latencies: list[Latency] = []
        start_s = time.monotonic()
        while time.monotonic() - start_s < seconds:
            latencies += await self._users(seed + len(latencies), host)
            if not states or states[-1] != host.health.state:
                states.append(host.health.state)
        tokens, before_s = host.health.num_tokens, time.monotonic()
        self._side.start("broker")
        await until(lambda: host.health.state == "rolling_out" and host.health.num_tokens > tokens + 1000)
        line = {"bench": "host", "case": f"broker away for {seconds:g} s", "requests": len(latencies), "states": states}
        line |= {
            "p50_ms": 1000 * median(latency.wall_s for latency in latencies),
            "rolling_out_again_s": time.monotonic() - before_s,
        }
        line |= {"last_error": host.health.last_error, "attached": not attached.done()}
        say(line)
        attached.cancel()
        await asyncio.wait([attached])

    def _steps(self) -> int:
        metrics = self._side.directory.metrics
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    async def _users(self, seed: int, host: Host | None) -> list[Latency]:
        arrivals = random.Random(seed)
        due_s, tasks = time.monotonic(), []
        for number in range(self._arguments.requests):
            due_s += arrivals.expovariate(self._arguments.utilisation / self.request_s)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            tasks.append(asyncio.create_task(self._serve(due_s, number, host)))
        return list(await asyncio.gather(*tasks))

    async def _serve(self, due_s: float, number: int, host: Host | None) -> Latency:
        self._cpu.look()
        cpu_s = self._cpu.at(due_s)
        sampling = Sampling(max_tokens=USER_TOKENS, temperature=1.0)
        with host.user_request() if host else nullcontext():
            await self._engine.generate(Request(prompt_ids=self._prompt_ids, sampling=sampling, seed=number))
        return Latency(time.monotonic() - due_s, self._cpu.look() - cpu_s)


def load(folder: Path, name: str) -> Engine:
    """The engine as a host loads it."""
    if name == "vllm":
        return load_engine(load_config(folder / "host.toml"))
    torch.set_num_threads(1)
    model = str(folder / "model")
    return TransformersEngine.load(model, slots=SLOTS, max_tokens_per_slot=256, prefill_tokens=PREFILL_TOKENS)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  a state has no event
            await asyncio.sleep(0.05)


def say(line: dict[str, object]) -> None:
    print(json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}))
    sys.stdout.flush()


@contextmanager
def training_side(arguments: argparse.Namespace) -> Iterator[TrainingSide]:
    with tempfile.TemporaryDirectory(prefix="asyncrl-host-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        write(folder / "train.parquet", "train", 0)
        write(folder / "held_out.parquet", "held_out", 0)
        make_random(folder / "model", folder / "train.parquet", SIZES, vocab_size=2048, report=lambda line: None)
        vllm = VLLM.format(policy=arguments.policy) if arguments.engine == "vllm" else ""
        config = CONFIG.format(folder=folder, engine=arguments.engine, slots=SLOTS, vllm=vllm)
        (folder / "host.toml").write_text(config)
        side = TrainingSide(folder)
        try:
            yield side
        finally:
            side.end()


async def main(arguments: argparse.Namespace) -> None:
    with training_side(arguments) as side:
        engine = load(side.directory.path.parent, arguments.engine)
        bench = Bench(engine, side, arguments)
        rounds: list[dict[str, Measured]] = []
        for number in range(arguments.rounds):
            await bench.calibrate()
            rounds.append({})
            for case in CASES[number % 3 :] + CASES[: number % 3]:
                rounds[-1][case] = measured = await bench.case(case, arguments.seed + number)
                say({"bench": "host", "engine": arguments.engine, "round": number, "case": case} | figures(measured))
        for case in CASES if rounds else ():
            say({"bench": "host", "engine": arguments.engine, "rounds": len(rounds)} | summary(rounds, case))
        if arguments.away:
            await bench.away(arguments.away, arguments.seed)
        await engine.aclose()


def figures(measured: Measured) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in zip(("wall", "cpu"), zip(*measured.latencies, strict=True), strict=True):
        found |= {f"{name}_p50_ms": 1000 * median(seconds), f"{name}_p95_ms": 1000 * quantiles(seconds, n=20)[-1]}
    speed = measured.rollout_tokens / measured.wall_s
    return found | {"rollout_tokens_per_s": speed, "steps": measured.steps}


def summary(rounds: list[dict[str, Measured]], case: str) -> dict[str, object]:
    """Medians over the rounds; ratios are to the case without rollouts of the same round."""
    pairs = [(figures(measured[case]), figures(measured["without"])) for measured in rounds]
    line = {key: median(ours[key] for ours, _ in pairs) for key in pairs[0][0]}
    ratios = {
        f"{key}_ratio": median(ours[key] / base[key] for ours, base in pairs) for key in line if key.endswith("_ms")
    }
    return {"case": case, **line, **ratios}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--policy", choices=("priority", "fcfs"), default="priority", help="vLLM's scheduling policy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=60, help="in each case of each round")
    parser.add_argument("--utilisation", type=float, default=0.3, help="share of the time that one request needs")
    parser.add_argument("--grace", type=float, default=0.05, help="Host's grace_s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--away", type=float, default=0.0, metavar="SECONDS")
    logging.basicConfig(filename=os.devnull)
    os.sched_setaffinity(0, CORES[:1])
    asyncio.run(main(smoke.parsed(parser)))
