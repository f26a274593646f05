"""
Pictures of every page of the dashboard, and of the report, in five states, for people who judge how they look.

    python -m tests.tools.dashboard.pictures RUN [RUN ...] --out FOLDER [--also NAME=RUN] [--pages overview,report]

The first run must have finished. It is copied up to three moments, which are three states: before its first step, in
the middle, and in the middle with nothing recorded since and its rollouts lost. It is the fourth itself, and all runs
together are the fifth. Each page is taken at 1280 x 800 and 390 x 844 pixels, light and dark:

    FOLDER/healthy-cluster-phone-dark.png

Needs playwright and Chromium on the path. The console of a page, and what is wider than a screen, are printed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright import sync_api

from asyncrl.records.run_directory import RunDirectory
from asyncrl.terminal import echo
from asyncrl.tools.report.report import write_report

SIZES = {"desk": (1280, 800), "phone": (390, 844)}
SCHEMES: tuple[Any, ...] = ("light", "dark")
PAGES = ("overview", "cluster", "samples", "timeline", "events", "config", "report")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
FRESH = ("starting", "healthy")
STUCK_S = 400.0
"""Seconds since the last record of a run that is stuck."""


def until(run: Path, out: Path, time_s: float, *, added: list[dict[str, Any]], ago_s: float = 0.0) -> Path:
    """The run as its files were ``time_s`` after its start, with events ``added`` after that; changed ``ago_s`` ago."""
    made, source = RunDirectory(out), RunDirectory(run)
    made.samples.mkdir(parents=True)
    shutil.copy(source.config, made.config)
    for file in (source.metrics, source.times, source.events):
        lines = [line for line in file.read_text().splitlines() if json.loads(line).get("time_s", 0.0) <= time_s]
        lines += [json.dumps(event | {"time_s": time_s + event["time_s"]}) for event in added if file == source.events]
        (out / file.name).write_text("".join(f"{line}\n" for line in lines))
    steps = len((out / source.metrics.name).read_text().splitlines())
    for file in sorted(source.samples.glob("*.parquet")):
        if int("".join(filter(str.isdigit, file.stem)) or 0) < steps:
            shutil.copy(file, made.samples)
    touched(out, ago_s)
    return out


def touched(run: Path, ago_s: float) -> None:
    """Let the files of a run have changed ``ago_s`` ago: a run that is silent for a minute counts as stopped."""
    changed_s = time.time() - ago_s
    for path in run.iterdir():
        os.utime(path, (changed_s, changed_s))


def states(runs: list[Path], folder: Path) -> dict[str, list[Path]]:
    """Runs to show by the name of the state."""
    lines = RunDirectory(runs[0]).read_metrics()
    first_s, middle_s = lines[0]["time_s"], lines[len(lines) // 2]["time_s"]
    rollouts: list[dict[str, Any]] = [{"at": "", "node": f"rollout-{n}", "role": "rollout"} for n in range(2)]
    quiet = [{"event": "node.quiet", "seconds": 2.0, "time_s": 2.0} | rollout for rollout in rollouts]
    lost = [{"event": "node.lost", "cause": "silent for 10 s", "time_s": 10.0} | rollout for rollout in rollouts]
    waiting = {"event": "run.waiting", "at": "", "cause": "no rollout is connected", "time_s": 70.0}
    return {
        "starting": [until(runs[0], folder / "starting", first_s / 2, added=[])],
        "healthy": [until(runs[0], folder / "healthy", middle_s, added=[])],
        "stuck": [until(runs[0], folder / "stuck", middle_s, added=[*quiet, *lost, waiting], ago_s=STUCK_S)],
        "finished": runs[:1],
        **({"compared": runs} if len(runs) > 1 else {}),
    }


@contextmanager
def served(runs: list[Path]) -> Iterator[str]:
    """Address of a dashboard of the runs."""
    command = [sys.executable, "-m", "asyncrl", "dashboard", *map(str, runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.terminate()


def take(browser: sync_api.Browser, address: str, path: Path, size: str, scheme: Any, *, is_whole: bool) -> None:
    """Take one picture, and print what a reader would trip over."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.on("console", lambda message: echo(f"{path.name}: {message.text}"))
    page.on("pageerror", lambda error: echo(f"{path.name}: {error}"))
    page.goto(address)
    page.wait_for_timeout(1200)  # charts are drawn after their numbers have come
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
        echo(f"{path.name}: {wide} pixels wide on a screen of {width}")
    page.screenshot(path=path, full_page=is_whole)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--also", action="append", default=[], metavar="NAME=RUN", help="a further state")
    parser.add_argument("--pages", default=",".join(PAGES))
    parser.add_argument("--states", default="")
    parser.add_argument("--whole", action="store_true", help="whole pages, not first screens")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shown = states(options.runs, Path(folder))
        shown |= {name: [Path(run)] for name, _, run in (each.partition("=") for each in options.also)}
        for state, runs in shown.items():
            if options.states and state not in options.states.split(","):
                continue
            report = Path(folder) / f"{state}.html"
            if state in FRESH:
                touched(runs[0], 0.0)
            write_report(runs, report)
            with served(runs) as url:
                for page in options.pages.split(","):
                    address = report.as_uri() if page == "report" else f"{url}#/{page}"
                    for size in SIZES:
                        for scheme in SCHEMES:
                            if state in FRESH:
                                touched(runs[0], 0.0)
                            path = options.out / f"{state}-{page}-{size}-{scheme}.png"
                            take(browser, address, path, size, scheme, is_whole=options.whole)
        browser.close()


if __name__ == "__main__":
    main()
