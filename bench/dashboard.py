"""
The dashboard with many samples and nodes, in headless Chromium.

    python bench/dashboard.py [--samples 1000000] [--nodes 1000] [--rounds 5] [--folder FOLDER]

Writes a run directory with that many samples, in files of 1,000, and a times.jsonl with that many nodes (kept in
FOLDER, and used again if it is there), serves it with `asyncrl dashboard` and opens its pages. It needs playwright
(pip) and Chromium on the path. JSON lines; seconds are medians over the rounds, as the page itself measures them:

    first paint    of a page opened with an empty cache: the browser's first contentful paint
    rows           of the same page, until the first rows are there
    filter         from a value typed into a field to the rows that match, with the pause that waits for more typing
    index          from the start of the server until every sample is indexed
    idle           CPU of the server while a page is open and the run records a step a second, in percent of one core
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import smoke
from meter import cpu_s

from asyncrl.messages.trajectory import Span
from asyncrl.messages.words import FinishReason
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.samples import SampleRow, SamplesWriter

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROWS, GROUP, TOKENS, STEPS_OF_TIMES = 1000, 10, 32, 400
SHARE_OF_STEPS = 0.4
"""Kept by the filter of steps."""
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PAINT = """() => new Promise(done => new PerformanceObserver(entries => {
    const [first] = entries.getEntriesByName('first-contentful-paint');
    if (first) done(first.startTime);
}).observe({type: 'paint', buffered: true}))"""
"""Told by the browser when the frame was presented, which can be after its rows are in the document."""
ROWS_SHOWN = """() => new Promise(done => {
    const look = () => document.querySelector('tbody tr td') ? done(performance.now()) : requestAnimationFrame(look);
    look();
})"""
FILTER = """([name, value]) => new Promise((done, failed) => {
    const input = document.querySelector(`input[aria-label="${name}"]`), begun = performance.now();
    const status = document.querySelector('.status'), before = status.textContent;
    input.value = value;
    input.dispatchEvent(new Event('input', {bubbles: true}));
    const look = () => {
        if (status.textContent !== before) done(performance.now() - begun);
        else if (performance.now() - begun > 30000) failed(`${name} ${value} changes nothing: ${before}`);
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""


def make_run(folder: Path, num_samples: int, num_nodes: int) -> None:
    """A run directory as a long run on many nodes leaves it; nothing if it is there already."""
    if (folder / "summary.json").exists() or (folder / "made").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    directory = RunDirectory.create(folder.parent, folder.name)
    num_steps = num_samples // ROWS
    directory.config.write_text(f'[run]\nsteps = {num_steps}\n[model]\npath = "models/none"\n')
    directory.append_event("run.started", time_s=0.0)
    roles = ["trainer", "reward", *["rollout"] * (num_nodes - 2)]
    nodes = [f"{role}-{i}" for i, role in enumerate(roles)]
    for node, role in zip(nodes, roles, strict=True):
        directory.append_event("node.joined", node=node, role=role, time_s=1.0)
        directory.append_event("node.ready", node=node, role=role, time_s=2.0)
    rng = random.Random(0)
    writer = SamplesWriter(directory.samples)
    ids = np.arange(TOKENS, dtype=np.int32).tobytes()
    for step in range(num_steps):
        rows = [a_row(rng, step, row, nodes, ids) for row in range(ROWS)]
        writer.write(writer.path(step), rows)
        rewards = [row.reward for row in rows]
        line = {"step": step, "version": step, "time_s": 2.0 * step, "reward": sum(rewards) / ROWS, "step_s": 2.0}
        directory.append_metrics(line | {"tokens_per_s": 16_000.0, "loss": rng.gauss(0, 1), "kl": rng.random() / 100})
    with (folder / "times.jsonl").open("w") as file:
        for step in range(STEPS_OF_TIMES):
            times = {node: a_span(rng, role) for node, role in zip(nodes, roles, strict=True)}
            file.write(json.dumps({"step": step, "time_s": 2.0 * (step + 1), "span_s": 2.0, "nodes": times}) + "\n")
    (folder / "made").touch()


def a_row(rng: random.Random, step: int, row: int, nodes: list[str], ids: bytes) -> SampleRow:
    num_tokens = rng.randint(1, TOKENS)
    reason: FinishReason = "length" if num_tokens == TOKENS else "stop"
    staleness = min(step, rng.choice([0, 1, 1, 1, 2, 3]))
    return SampleRow(
        step=step,
        group_id=(step * ROWS + row) // GROUP,
        index=row % GROUP,
        prompt=f"What is {row} plus {step}? Think step by step, then answer with one number.",
        completion=f"{row} plus {step} is {row + step}. The answer is {row + step}.",
        answer=str(row + step),
        reward=float(rng.random() < 0.2 + 0.6 * step / 1000),
        finish_reason=reason,
        spans=[Span(step - staleness, 0, num_tokens)],
        oldest_version=step - staleness,
        staleness=staleness,
        node=rng.choice(nodes[2:]),
        completion_ids=ids[: 4 * num_tokens],
        behavior_logprobs=np.full(num_tokens, -0.3, np.float32).tobytes(),
        data_source=rng.choice(["math", "code"]),
    )


def a_span(rng: random.Random, role: str) -> dict[str, Any]:
    waits = {"trainer": "sampling", "reward": "sampling"}.get(role, "the trainer")
    work = {"trainer": "training", "reward": "grading"}.get(role, "sampling")
    part = rng.uniform(0.5, 0.95)
    return {"role": role, "seconds": {work: 2 * part, f"waiting for {waits}": 2 * (1 - part)}}


def wait_for_index(url: str) -> dict[str, Any]:
    while True:
        with urllib.request.urlopen(f"{url}api/runs/0/samples?limit=1", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        if not found["files_waiting"]:
            return found


def opened(page: "Page", url: str) -> tuple[float, float]:
    """Seconds to the first paint and to the first rows."""
    page.goto("about:blank")
    page.goto(url)
    rows_ms: float = page.evaluate(ROWS_SHOWN)
    paint_ms: float = page.evaluate(PAINT)
    return paint_ms / 1000, rows_ms / 1000


def say(case: str, **figures: Any) -> None:
    print(json.dumps({"bench": "dashboard", "case": case, **figures}), flush=True)


def measure(url: str, rounds: int, num_samples: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name in ("overview", "samples", "cluster"):
            found = []
            for _ in range(rounds):
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                page = context.new_page()
                if name == "overview":
                    page.goto(f"{url}#/{name}")
                    page.locator(".tile b").first.wait_for()
                    paint, rows = page.evaluate(PAINT) / 1000, page.evaluate("performance.now()") / 1000
                    found.append((paint, rows))
                else:
                    found.append(opened(page, f"{url}#/{name}"))
                context.close()
            paints, rows = zip(*found, strict=True)
            say(f"first paint, {name}", ours=round(median(paints), 3), unit="s", goal=1.0, worst=round(max(paints), 3))
            say(f"rows, {name}", ours=round(median(rows), 3), unit="s", worst=round(max(rows), 3))
        page = browser.new_page()
        page.goto(f"{url}#/samples")
        page.evaluate(ROWS_SHOWN)
        bounds = {"reward, minimum": "0.5", "length, minimum": "30", "staleness, minimum": "2"}
        bounds["step, maximum"] = str(int(SHARE_OF_STEPS * num_samples / ROWS))
        for name, value in bounds.items():
            times = []
            for _ in range(rounds):
                times.append(page.evaluate(FILTER, [name, value]) / 1000)
                page.evaluate(FILTER, [name, ""])
            say(f"filter, {name} {value}", ours=round(median(times), 3), unit="s", goal=0.3, worst=round(max(times), 3))
        middle = num_samples // 2
        for order in ("reward", "length", "staleness"):
            begun = time.monotonic()
            with urllib.request.urlopen(f"{url}api/runs/0/samples?sort={order}&offset={middle}", timeout=60) as answer:
                answer.read()
            say(f"sort by {order}, row {middle:,}, server alone", ours=round(time.monotonic() - begun, 3), unit="s")
        begun = time.monotonic()
        page.goto(f"{url}#/timeline")
        page.locator(".timeline .tools", has_text="nodes").wait_for()
        say("timeline, all nodes", ours=round(time.monotonic() - begun, 3), unit="s")
        browser.close()


def measure_idle(url: str, folder: Path, pid: int, seconds: int) -> None:
    """CPU of the server with an open page and a step a second."""
    from playwright.sync_api import sync_playwright

    directory = RunDirectory(folder)
    size = directory.metrics.stat().st_size
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        page.goto(f"{url}#/overview")
        page.locator(".tile b").first.wait_for()
        before, begun = cpu_s(pid), time.monotonic()
        for i in range(seconds):
            directory.append_metrics({"step": 10_000 + i, "time_s": 9000.0 + i, "reward": 0.5, "step_s": 1.0})
            time.sleep(1)
        share = (cpu_s(pid) - before) / (time.monotonic() - begun)
        browser.close()
    os.truncate(directory.metrics, size)
    say("idle, one page, a step a second", ours=round(100 * share, 2), unit="% of one core", goal=1.0)


def what_is_missing() -> str:
    """Why no page can be opened here; empty if one can."""
    if not find_spec("playwright"):
        return "playwright is not installed: pip install -e .[dev]"
    return "" if shutil.which("chromium") else "Chromium is not on the path"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "asyncrl-bench-dashboard" / "run")
    parser.add_argument("--idle", type=int, default=30, help="seconds of the idle case")
    options = smoke.parsed(parser)
    if missing := what_is_missing():
        say("all", skipped=missing)
        return
    make_run(options.folder, options.samples, options.nodes)
    command = [sys.executable, "-m", "asyncrl", "dashboard", str(options.folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        begun = time.monotonic()
        found = wait_for_index(url)
        say("index", ours=round(time.monotonic() - begun, 2), unit="s", samples=found["indexed"], files=found["files"])
        measure(url, options.rounds, options.samples)
        measure_idle(url, options.folder, process.pid, options.idle)
    finally:
        process.terminate()
        process.wait(10)


if __name__ == "__main__":
    main()
