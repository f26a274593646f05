"""
Resident memory of a real `asyncrl dashboard` whose overview is open while a run records many steps: does it grow?

    python bench/dashboard_memory.py [--steps 10000] [--samples 16]

A run directory is fed as a broker does it: a line of metrics, a line of times, a ``version.live`` event and a file of
``--samples`` samples a step. Every ``--every`` steps the requests of an open overview are sent, and once at the end
those of a second dashboard that begins then. Printed are both processes' resident memory, and the slope from the
first of `MARKS` on.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import smoke
from broker_memory import MB, resident_bytes
from dashboard import a_row, a_span

from asyncrl.messages.words import Role
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.samples import SamplesWriter
from asyncrl.records.times import NodeTimes, TimesLine

MARKS = (0.2, 0.5, 1.0)
"""Parts of the steps after which the memory is told."""
NODES: dict[str, Role] = {"trainer-0": "trainer", "reward-0": "reward", "rollout-0": "rollout", "rollout-1": "rollout"}
NUM_METRICS = 45
"""Numbers of a step, as many as the quickstart records."""
PAGE = ("state", "overview", "histograms", "newest", "cluster", "events", "timeline")
"""Requests of pages; that of the curves goes on where the page has them."""


class Page:
    """Open pages of one dashboard's run."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}api/runs"
        self._start = self._rewrites = 0

    def update(self, names: tuple[str, ...] = PAGE[:4]) -> None:
        """Ask for what has changed; the overview alone, or what ``names`` says."""
        self._get("")
        for name in names:
            self._get(f"/0/{name}")
        curves = self._get(f"/0/curves?start={self._start}&rewrites={self._rewrites}")
        self._start = curves["start"] + len(curves["columns"].get("step", ()))
        self._rewrites = curves["rewrites"]

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def a_dashboard(folder: Path) -> Iterator[tuple[int, Page]]:
    """A process, and the pages that it serves."""
    command = [sys.executable, "-m", "asyncrl", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.pid, Page(process.stdout.readline().decode().strip())
        finally:
            process.terminate()


def feed(directory: RunDirectory, step: int, num_samples: int, rng: random.Random) -> None:
    """Record one step."""
    numbers = {f"metric_{i}": rng.random() for i in range(NUM_METRICS)}
    now_s, known = 0.3 * (step + 1), {"reward": rng.random(), "step_s": 0.3, "tokens": 3000.0, "time_s": 0.0}
    directory.append_metrics({"step": step, "version": step, **known, **numbers, "time_s": now_s})
    directory.append_event("version.live", policy_version=step + 1, num_bytes=602240, via="collective", time_s=now_s)
    times = {name: NodeTimes(role, a_span(rng, role)["seconds"]) for name, role in NODES.items()}
    directory.append_times(TimesLine(step, now_s, 0.3, times))
    writer = SamplesWriter(directory.samples)
    rows = [a_row(rng, step, row, list(NODES), b"\0" * 128) for row in range(num_samples)]
    writer.write(writer.path(step), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=16, help="of each step")
    parser.add_argument("--every", type=int, default=25, help="steps between two updates of the open page")
    options = smoke.parsed(parser)
    rng, marks = random.Random(0), [round(part * options.steps) for part in MARKS]
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as parent:
        directory = RunDirectory.create(Path(parent), "fed")
        directory.config.write_text('[run]\nsteps = 1000000\n[model]\npath = "models/none"\n')
        directory.append_event("run.started", time_s=0.0)
        for name, role in NODES.items():
            directory.append_event("node.joined", node=name, role=role, time_s=0.1)
        with a_dashboard(directory.path) as (pid, page):
            for step in range(options.steps):
                feed(directory, step, options.samples, rng)
                if step % options.every == 0:
                    page.update()
                if step + 1 in marks:
                    page.update()
                    found[f"{step + 1}"] = round(resident_bytes(pid) / MB, 1)
            page.update(PAGE)
            found["all pages"] = round(resident_bytes(pid) / MB, 1)
        with a_dashboard(directory.path) as (pid, page):
            page.update()
            found["begun anew"] = round(resident_bytes(pid) / MB, 1)
    first, last = str(marks[0]), str(marks[-1])
    slope = (found[last] - found[first]) * MB / max(marks[-1] - marks[0], 1)
    line = {"bench": "dashboard_memory", "case": f"samples={options.samples}", "ours": round(slope)}
    print(json.dumps(line | {"unit": "bytes/step", "better": "lower", "mb": found}), flush=True)


if __name__ == "__main__":
    main()
