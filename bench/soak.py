"""
A long run whose rollouts come and go: does any process, or the run directory, grow?

    python bench/soak.py [CONFIG] [--set a.b=value] [--minutes 60] [--every-s 25] [--seed 0] [--out FILE]
    python bench/soak.py --read FILE       # the figures of an earlier --out

Broker, trainer, reward and ``--rollouts`` are `asyncrl-node` processes of their own. At random times, from a seed, one
of the rollouts but the first is drained (`asyncrl drain`), terminated (SIGTERM) or killed (SIGKILL), and a new one
starts seconds later: every other one under a name that the run has not seen. At the end `asyncrl
stop` ends the run, and the run directory is audited. A problem is an error, and so is a process that does not leave.

Every ``--sample-s`` seconds the bench samples each process, with the processes below it:

    memory MB       what it has allocated, with its share of shared memory
    pss MB          the same with its share of libraries and files; changes when other processes map them, too
    descriptors     open files and sockets
    threads

and each part of the run directory: MB allocated on disk, and files. Logs are those of all nodes together.

Each line of the table is one quantity after a warm-up of ten minutes: its values at the start and at the end (median of
a minute), its slope per hour by least squares, and that of the last half alone. A leak has both slopes. What grows with
the steps by design (ledger, samples, metrics, logs) has its bytes per step, too. Rollouts that are replaced are
compared at equal age: each process has one value, 45 to 65 seconds after its start; the slope is over their starts.
"""

import argparse
import asyncio
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec
import smoke
from growth import Sample, disk_values, process_values, rows
from processes import Processes
from run_files import ENDLESS, add_run_file, take, written

from asyncrl.cli.inspect import read_audit
from asyncrl.errors import ToldToLeave
from asyncrl.records.run_directory import RunDirectory
from asyncrl.workers.child import Child

SETTINGS = (
    *ENDLESS,
    "schedule.groups_per_step=4",
    "rollout.slots=16",
    "rollout.progress_every_s=1",
    "checkpoint.every_steps=20",
    "checkpoint.keep=2",
    f"broker.segment_bytes={1 << 20}",  # small, so that old segments can be removed within minutes
)
EVALUATIONS = {"every_versions": 200, "at_start": False, "at_end": False}
AWAY_S = (2.0, 8.0)
"""Shortest and longest time from the end of a rollout to the start of the next one."""
START_S, LEAVE_S, STOP_S = 180.0, 90.0, 300.0
"""Deadlines."""
KINDS = ("drain", "terminate", "kill")
STAYS, REPLACED = "rollout that stays", "rollouts, replaced"
BY_STEPS = ("disk: ledger", "disk: samples", "disk: metrics", "disk: logs")
"""Parts of the run directory that grow with the steps."""


class Slot:
    """Place of one rollout: a process at a time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"rollout-{number}"
        self.starts = 0
        self.child: Child | None = None


class Soak:
    """
    The processes of one run.

    Args:
        processes: Own them, and their logs.
        options: Command line.
    """

    def __init__(self, processes: Processes, options: argparse.Namespace) -> None:
        self._processes = processes
        self._random = random.Random(options.seed)
        self._every_s: float = options.every_s
        self._config = written(take(options, SETTINGS, EVALUATIONS), processes.path, "live")
        self.directory = RunDirectory(processes.path / "live")
        self.slots = [Slot(number) for number in range(options.rollouts)]
        self.done: Counter[str] = Counter()
        """Departures of rollouts by kind."""
        self._roles: dict[str, Child] = {}
        self._began_s: dict[str, float] = {}
        """Start of each process, by the name in its samples."""

    async def start(self) -> None:
        """Start all nodes, and wait for the first step."""
        await self._start_role("broker", "--config", str(self._config), "--broker", "tcp://127.0.0.1:0")
        await self._until(self.directory.address.exists, START_S, "the broker to serve")
        await self._start_role("trainer")
        await self._start_role("reward")
        for slot in self.slots:
            await self._start_rollout(slot)
        await self._until(lambda: self.steps() > 0, START_S, "the first step")

    async def churn(self) -> None:
        """Replace rollouts until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.8, 1.2) * self._every_s)
            slot = self._random.choice(self.slots[1:])
            kind = self._random.choice(KINDS)
            await self._remove(slot, kind)
            await asyncio.sleep(self._random.uniform(*AWAY_S))
            if self._random.random() < 1 / 2:
                slot.name = f"rollout-{slot.number}-{slot.starts}"
            await self._start_rollout(slot)

    def look(self, at_s: float) -> list[Sample]:
        """Sample every process and the run directory."""
        steps, now_s, found = self.steps(), time.monotonic(), []
        for of, name, child in self._nodes():
            if child.pid and (values := process_values(child.pid)):
                found.append(Sample(at_s, of, name, round(now_s - self._began_s[name], 1), steps, values))
        for part, paths in self._parts().items():
            found.append(Sample(at_s, f"disk: {part}", "", at_s, steps, disk_values(paths)))
        return found

    async def stop(self) -> dict[str, int]:
        """End the run with `asyncrl stop`. Returns the exit code of each node, which must leave by itself."""
        stop = await self._processes.command("stop", ["-m", "asyncrl", "stop", str(self.directory.path)])
        codes = {"stop": await asyncio.wait_for(stop.wait(), STOP_S)}
        for _, name, child in self._nodes():
            codes[name] = await asyncio.wait_for(child.wait(), LEAVE_S)
        return codes

    def steps(self) -> int:
        """Number of steps in the metrics."""
        with suppress(FileNotFoundError):
            return self.directory.metrics.read_bytes().count(b"\n")
        return 0

    def check(self) -> None:
        """Raise `SystemExit` if a node that is never replaced has ended."""
        for name, child in self._roles.items():
            if child.pid is None:
                raise SystemExit(f"{name} ended: {child.last_line()}")

    def _nodes(self) -> Iterator[tuple[str, str, Child]]:
        """Kind in samples, name in samples, and process of every node."""
        for role, child in self._roles.items():
            yield role, role, child
        for slot in self.slots:
            if slot.child is not None:
                kind = REPLACED if slot.number else STAYS
                yield kind, f"{slot.name}#{slot.starts}", slot.child

    async def _start_role(self, role: str, *options: str) -> None:
        self._began_s[role] = time.monotonic()
        self._roles[role] = await self._start_node(role, f"{role}-0", *options)

    async def _start_rollout(self, slot: Slot) -> None:
        slot.starts += 1
        self._began_s[f"{slot.name}#{slot.starts}"] = time.monotonic()
        slot.child = await self._start_node("rollout", slot.name)

    async def _start_node(self, role: str, name: str, *options: str) -> Child:
        command = ["-m", "asyncrl.cli.node", "--role", role, "--run-dir", str(self.directory.path), "--metrics", "0"]
        named = () if role == "broker" else ("--name", name)
        return await self._processes.command(name, [*command, *named, *options])

    async def _remove(self, slot: Slot, kind: str) -> None:
        """Make the rollout leave, and wait until it has."""
        child = slot.child
        if child is None or child.pid is None:
            raise SystemExit(f"{slot.name} ended: {child.last_line() if child else 'never started'}")
        slot.child = None
        if kind == "drain" and await self._drain(slot.name) != 0:
            kind = "drain, refused: still starting"
        if kind == "kill":
            os.kill(child.pid, signal.SIGKILL)
        elif kind != "drain":
            await child.end(LEAVE_S)
        code = await asyncio.wait_for(child.wait(), LEAVE_S)
        if code != {"kill": -signal.SIGKILL, "terminate": ToldToLeave.exit_code}.get(kind, 0):
            kind += f", exit code {code}"
        self.done[kind] += 1

    async def _drain(self, name: str) -> int:
        drain = await self._processes.command("drain", ["-m", "asyncrl", "drain", str(self.directory.path), name])
        return await asyncio.wait_for(drain.wait(), LEAVE_S)

    def _parts(self) -> dict[str, list[Path]]:
        path = self.directory.path
        parts = {
            "ledger": list(path.glob("ledger.sqlite*")),
            "spool": [self.directory.spool],
            "samples": [self.directory.samples],
            "checkpoints": [self.directory.checkpoints],
            "metrics": [self.directory.metrics, self.directory.times, self.directory.events],
            "logs": list(self._processes.path.glob("*.log")),
        }
        known = {known for paths in parts.values() for known in paths}
        return parts | {"everything else": [other for other in path.iterdir() if other not in known]}

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline_s = time.monotonic() + seconds
        while not condition():
            self.check()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(0.2)


async def soak(options: argparse.Namespace, out: TextIO) -> list[str]:
    """Run for the time wanted. Returns the problems found."""
    async with Processes(options.folder) as processes:
        run = Soak(processes, options)
        try:
            await run.start()
            churn = asyncio.create_task(run.churn())
            try:
                samples = await _watch(run, churn, options, out)
            finally:
                churn.cancel()
                with suppress(asyncio.CancelledError):
                    await churn
            codes = await run.stop()
        except BaseException:
            _print_logs(processes.path)
            raise
        finally:
            if options.keep:
                shutil.copytree(processes.path, options.keep, dirs_exist_ok=True)
        report(samples, out)
        return _report_end(run, codes, out)


async def _watch(run: Soak, churn: "asyncio.Task[None]", options: argparse.Namespace, out: TextIO) -> list[Sample]:
    began_s, samples = time.monotonic(), list[Sample]()
    while (at_s := time.monotonic() - began_s) < options.minutes * 60:
        if churn.done():
            churn.result()
        run.check()
        found = run.look(round(at_s, 1))
        samples += found
        for sample in found:
            out.write(json.dumps({"sample": msgspec.to_builtins(sample)}) + "\n")
        out.flush()
        await asyncio.sleep(options.sample_s - (time.monotonic() - began_s) % options.sample_s)
    return samples


def _print_logs(folder: Path) -> None:
    for path in sorted(folder.glob("*.log")):
        print(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}", file=sys.stderr)


def _report_end(run: Soak, codes: dict[str, int], out: TextIO) -> list[str]:
    audit = read_audit(run.directory.path)
    problems = [
        *audit.problems,
        *(f"{name} ended with {code}" for name, code in codes.items() if code),
    ]
    fields: dict[str, object] = {
        "case": "the run",
        "ours": len(problems),
        "unit": "problems",
        "better": "lower",
        "peer": "none",
        "problems": problems,
        "audit": "clean" if not audit.problems else f"{len(audit.problems)} problems",
        "departures": dict(sorted(run.done.items())),
        "rollouts_started": sum(slot.starts for slot in run.slots),
        "steps": audit.steps,
        "trained": audit.trained,
        "skipped": audit.skipped,
        "double_trained": audit.double_trained,
        "reissued": audit.reissued,
        "duplicates": audit.duplicates,
    }
    emit(fields, out)
    return problems


def report(samples: list[Sample], out: TextIO) -> None:
    """Print a line for each quantity, and a table of all."""
    found = list(rows(samples, REPLACED, BY_STEPS))
    for row in found:
        fields = {"case": f"{row.of}, {row.quantity}", "ours": row.slope, "unit": "per hour", "better": "lower"}
        figures = {"start": row.start, "end": row.end, "late_slope": row.late_slope}
        emit({**fields, "peer": "none", **figures, "bytes_per_step": row.bytes_per_step}, out)
    print("\n| of | quantity | start | end | slope per hour | of the last half | bytes per step |")
    print("|---|---|---|---|---|---|---|")
    for row in found:
        cells = (row.of, row.quantity, f"{row.start:g}", f"{row.end:g}", f"{row.slope:+g}", f"{row.late_slope:+g}")
        print("|", " | ".join(cells), "|", row.bytes_per_step or "", "|")


def emit(fields: dict[str, object], out: TextIO) -> None:
    line = json.dumps({"bench": "soak", **fields})
    print(line, flush=True)
    out.write(line + "\n")
    out.flush()


def read_samples(path: Path) -> list[Sample]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [msgspec.convert(line["sample"], Sample) for line in lines if "sample" in line]


def main(options: argparse.Namespace) -> None:
    if options.read:
        report(read_samples(options.read), io.StringIO())
        return
    with options.out.open("w") if options.out else io.StringIO() as out:
        problems = asyncio.run(soak(options, out))
    if problems:
        raise SystemExit("\n".join(problems))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--sample-s", type=float, default=10.0, help="Seconds from one sample to the next.")
    parser.add_argument("--every-s", type=float, default=25.0, help="Mean seconds from a new rollout to the next end.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="Parent of the run directory.")
    parser.add_argument("--keep", type=Path, help="Copy run and logs here afterwards.")
    parser.add_argument("--out", type=Path, help="Write samples and figures here, as JSON lines.")
    parser.add_argument("--read", type=Path, metavar="FILE", help="Print the figures of an earlier --out.")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
