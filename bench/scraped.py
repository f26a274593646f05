"""
CPU time of whole runs with metrics, each process scraped every second, against the same runs without, in turns.

    python bench/scraped.py [CONFIG] [--set a.b=value] [--turns 4]

`run` is the CPU time of all processes of a run, whose sampling differs from run to run: its
spread is printed beside the ratio. `scrape` is the CPU time of one scrape of a broker, alone.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import smoke
from run_files import NEVER, add_run_file, take, written

from asyncrl.config.config import Config
from asyncrl.records.metrics import METRICS, Sample
from asyncrl.runtime.http_server import Exposition

ROOT = Path(__file__).parents[1]
EVERY_S = 1.0


def run(config: Config, folder: Path, *, with_metrics: bool) -> tuple[float, int]:
    """CPU seconds of a whole run, and how many times one of its processes was scraped."""
    targets = folder / "targets"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if with_metrics:
        environment |= {"ASYNCRL_METRICS": "0", "ASYNCRL_METRICS_TARGETS": str(targets)}
    command = [sys.executable, "-m", "asyncrl", "run", str(written(config, folder, "scraped"))]
    before = _children_s()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        over, scrapes = threading.Event(), [0]
        scraper = threading.Thread(target=_scrape_all, args=(targets, over, scrapes))
        scraper.start()
        code = process.wait()
        over.set()
        scraper.join()
    if code:
        raise SystemExit(f"the run ended with {code}")
    return _children_s() - before, scrapes[0]


def _scrape_all(targets: Path, over: threading.Event, scrapes: list[int]) -> None:
    while not over.wait(EVERY_S):
        for path in targets.glob("*.json"):
            try:
                (target,) = json.loads(path.read_text())[0]["targets"]
                with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as response:
                    response.read()
                scrapes[0] += 1
            except OSError:  # it starts, or has just ended
                continue


def _children_s() -> float:
    """CPU seconds of all processes that this one has waited for, with those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def scrape_ms(repeat: int = 200) -> float:
    """CPU milliseconds to make the text of a broker's samples."""
    samples = [
        Sample(metric.name, 1.0, {label: values[0] for label, values in metric.labels.items()})
        for metric in METRICS.values()
        if metric.owner in ("broker", "spool")
        for _ in range(math.prod(map(len, metric.labels.values())))
    ]
    exposition = Exposition({"role": "broker", "node": "broker-0"}, lambda: samples)
    began_s = time.process_time()
    for _ in range(repeat):
        exposition.text()
    return (time.process_time() - began_s) / repeat * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    arguments = smoke.parsed(parser)
    config = take(arguments, (f"run.steps={arguments.steps}",), NEVER)
    print(
        json.dumps({"bench": "scraped", "case": "scrape", "ours": round(scrape_ms(), 3), "unit": "CPU ms"}), flush=True
    )
    without: list[float] = []
    scraped: list[float] = []
    count = 0
    for turn in range(arguments.turns):
        # Each begins every other turn: the machine gets slower or faster while they run.
        for with_metrics in (turn % 2 == 0, turn % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                used_s, scrapes = run(config, Path(folder), with_metrics=with_metrics)
            (scraped if with_metrics else without).append(used_s)
            count += scrapes
            print(f"{'scraped' if with_metrics else 'without'}: {used_s:.2f} CPU s, {scrapes} scrapes", file=sys.stderr)
    ours, peer = statistics.median(scraped), statistics.median(without)
    line = {
        "bench": "scraped",
        "case": f"steps={arguments.steps} turns={arguments.turns} scrapes={count}",
        "ours": round(ours, 2),
        "unit": "CPU s",
        "peer": "without metrics",
        "peer_value": round(peer, 2),
        "ratio": round(ours / peer, 3),
        "better": "lower",
        "spread": {
            "ours": [round(min(scraped), 2), round(max(scraped), 2)],
            "peer": [round(min(without), 2), round(max(without), 2)],
        },
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
