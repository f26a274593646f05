"""
Effect of staleness on held-out accuracy for several losses and off-policy corrections.

    python bench/staleness.py [CONFIG] [--set a.b=value] [--staleness 0,1,4,8] [--methods clipped,gspo] [--seeds 3]

Each combination of staleness, method and seed is one `asyncrl run`; the runs execute one after another and differ in
nothing else. ``--runs`` keeps the runs, and completed ones are not repeated, so the bench can be stopped and restarted.

    clipped          clipped ratio to the behavior policy
    decoupled        ratio to the policy at the start of the step, clipped
    gspo, cispo      the ratios of these losses to the behavior policy
    tis + geo-rs     decoupled; sequences are weighted by their truncated ratio to the behavior policy, and rejected by
                     their geometric mean ratio (preset decoupled_geo_rs_seq_tis)
    wide ...         gspo and tis + geo-rs with bounds a hundred times as wide; not run by default

`lagged.py` takes one process and an exact staleness instead, for sweeps to high staleness.

The bench prints one line for each staleness and method, over its seeds: ``accuracy`` at the end, and ``mean_accuracy``
over the evaluations after the start, which reflects the learning speed. Trajectories reach the allowed staleness S only
if rollouts are ahead of the trainer: ``staleness_mean`` is the measured staleness, and ``staleness_full`` its value if
rollouts were always ahead (the first S steps cannot reach S). Finally the bench draws a picture of all completed runs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import smoke
from picture import picture
from run_files import add_run_file, take, written

from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.records.run_directory import RunDirectory
from asyncrl.records.run_record import RunRecord, read_run
from asyncrl.tools.report.charts import Series, line_chart

HERE = Path(__file__).parent

METHODS = {
    "clipped": ["algorithm.loss=clipped"],
    "decoupled": ["algorithm.loss=clipped", "algorithm.correction.mode=decoupled"],
    "gspo": ["algorithm.loss=gspo"],
    "cispo": ["algorithm.loss=cispo"],
    "tis + geo-rs": ["algorithm.loss=clipped", "algorithm.correction.preset=decoupled_geo_rs_seq_tis"],
    "wide gspo": ["algorithm.loss=gspo", "algorithm.clip_low=0.03", "algorithm.clip_high=0.04"],
    "wide tis + geo-rs": [
        "algorithm.loss=clipped",
        'algorithm.correction={mode="decoupled", importance="sequence", rejection="seq_mean_k1", '
        'rejection_threshold="0.9_1.1"}',
    ],
}
AS_PUBLISHED = ["clipped", "decoupled", "gspo", "cispo", "tis + geo-rs"]
OFTEN = {"every_versions": 5}
"""Evaluations for a curve of nine points instead of five; ``--set`` overrides it."""

MEANS = ("log_ratio_abs_mean", "clip_fraction", "rollout_rs_masked_fraction", "rollout_is_eff_sample_size", "skipped")
"""Suffixes of step metrics that are reported as means over the run."""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Cell(NamedTuple):
    """Settings of one run."""

    method: str
    staleness: float
    seed: int

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return f"{self.method.replace(' + ', '-').replace(' ', '-')}-s{self.staleness:g}-seed{self.seed}"

    @property
    def settings(self) -> list[str]:
        """Config overrides specific to this run."""
        return [*METHODS[self.method], f"schedule.staleness={self.staleness:g}", f"run.seed={self.seed}"]


def main(options: argparse.Namespace) -> None:
    cells = [Cell(*of) for of in product(options.methods, options.staleness, range(options.seeds))]
    options.runs.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, cell in enumerate(cells, 1):
        path = written(take(options, cell.settings, OFTEN), options.runs, cell.name)
        if not is_done(options.runs / cell.name, load_config(path)):
            print(f"run {number} of {len(cells)}: {cell.name}", file=sys.stderr, flush=True)
            if code := run(path, options.runs / f"{cell.name}.log"):
                failed.append(f"{cell.name} ended with exit code {code}: see {options.runs / cell.name}.log")
    records = finished_runs(cells, options.runs)
    for (method, staleness), seeds in grouped(records).items():
        print_line({"method": method, "staleness": staleness, **summarize(seeds, staleness)})
    options.picture.write_text(draw(records), encoding="utf-8")
    if failed:
        raise SystemExit("\n".join(failed))


# ── runs ────────────────────────────────────────────────────────────────────────────────────


def is_done(path: Path, config: Config) -> bool:
    """
    True if a finished run with these settings exists. Removes an unfinished run.

    Raises:
        SystemExit: A run with other settings exists at ``path``.
    """
    directory = RunDirectory(path)
    if not directory.config.exists():
        return False
    if load_config(directory.config) != config:
        raise SystemExit(f"{path} is a run with other settings: remove it, or choose another directory with --runs")
    summary = directory.read_summary()
    if summary is not None and summary.status == "finished":
        return True
    shutil.rmtree(path)
    return False


def run(config: Path, log: Path) -> int:
    """Run ``asyncrl run`` to its end. Returns its exit code."""
    command = [sys.executable, "-m", "asyncrl", "run", str(config)]
    with log.open("w") as output:
        return subprocess.run(command, check=False, stdout=output, stderr=output, env=ENVIRONMENT).returncode


Records = dict[Cell, RunRecord]
Groups = dict[tuple[str, float], list[RunRecord]]
"""Runs by (method, staleness); runs of one group differ only in their seed."""


def finished_runs(cells: Iterable[Cell], runs: Path) -> Records:
    """Records of the finished runs."""
    records = {cell: read_run(runs / cell.name) for cell in cells if (runs / cell.name).is_dir()}
    return {cell: record for cell, record in records.items() if record.status == "finished"}


def grouped(records: Records) -> Groups:
    """Records by method and staleness, in the order of the cells."""
    groups: Groups = {}
    for cell, record in records.items():
        groups.setdefault((cell.method, cell.staleness), []).append(record)
    return groups


# ── results ───────────────────────────────────────────────────────────────────────────


def summarize(seeds: Sequence[RunRecord], staleness: float) -> dict[str, Any]:
    """Fields of the output line for the runs of one method and staleness."""
    last = [last_accuracy(record) for record in seeds]
    steps = len(seeds[0].curve("staleness_mean"))
    return {
        "seeds": len(seeds),
        "accuracy": round(fmean(last), 4),
        "accuracy_min": round(min(last), 4),
        "accuracy_max": round(max(last), 4),
        "mean_accuracy": round(fmean(map(mean_accuracy, seeds)), 4),
        "staleness_mean": round(fmean(record.mean("staleness_mean") or 0.0 for record in seeds), 2),
        "staleness_full": round(fmean(min(step, staleness) for step in range(steps)), 2),
        "wall_s": round(fmean(record.wall_s or 0.0 for record in seeds), 1),
        **means(seeds),
    }


def last_accuracy(record: RunRecord) -> float:
    return record.evaluations()[-1].accuracy


def mean_accuracy(record: RunRecord) -> float:
    """Mean over the evaluations after the initial one, which is the same for all runs."""
    return fmean(evaluation.accuracy for evaluation in record.evaluations() if evaluation.policy_version)


def means(seeds: Sequence[RunRecord]) -> dict[str, float]:
    """Means of the metrics that end with one of `MEANS`, if they were recorded."""
    keys = [key for key in seeds[0].metrics[-1] if key.endswith(MEANS)]
    values = {key: [value for record in seeds if (value := record.mean(key)) is not None] for key in keys}
    return {key: float(f"{fmean(of_seeds):.4g}") for key, of_seeds in values.items() if of_seeds}


def draw(records: Records) -> str:
    """SVG with a chart of accuracy over versions for each staleness, and charts of accuracy over staleness."""
    groups = grouped(records)
    charts = []
    for staleness in dict.fromkeys(cell.staleness for cell in records):
        series = [curve(method, seeds) for (method, s), seeds in groups.items() if s == staleness]
        title = f"Held-out accuracy, staleness {staleness:g}"
        charts.append(line_chart(title, series, x_label="policy version", zero=True, percent=True))
    for title, of in (("at the end", last_accuracy), ("on the way, mean of the evaluations", mean_accuracy)):
        series = [against_staleness(method, groups, of) for method in dict.fromkeys(cell.method for cell in records)]
        charts.append(line_chart(f"Held-out accuracy {title}", series, x_label="staleness", percent=True))
    num_seeds = max(map(len, groups.values()), default=0)
    return picture(f"Staleness: mean of {num_seeds} seeds, and the range they span", charts)


def curve(method: str, seeds: Sequence[RunRecord]) -> Series:
    """Accuracy over policy versions."""
    by_version: dict[float, list[float]] = {}
    for record in seeds:
        for evaluation in record.evaluations():
            by_version.setdefault(float(evaluation.policy_version), []).append(evaluation.accuracy)
    return series_of(method, by_version)


def against_staleness(method: str, groups: Groups, of: Callable[[RunRecord], float]) -> Series:
    """The value of ``of`` for each run over staleness."""
    return series_of(method, {s: [of(run) for run in seeds] for (name, s), seeds in groups.items() if name == method})


def series_of(method: str, values: dict[float, list[float]]) -> Series:
    """Mean and range of the values at each x."""
    places = sorted(values)
    return Series(
        points=[(x, fmean(values[x])) for x in places],
        label=method,
        colour=list(METHODS).index(method),
        dots=True,
        band=[(x, min(values[x]), max(values[x])) for x in places],
    )


def print_line(fields: dict[str, Any]) -> None:
    print(json.dumps({"bench": "staleness", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    add_run_file(parser)
    parser.add_argument("--staleness", type=lambda text: [float(s) for s in text.split(",")], default=[0, 1, 4, 8])
    parser.add_argument("--methods", type=methods, default=AS_PUBLISHED, help=f"methods to run, of {','.join(METHODS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "staleness", help="directory for the runs")
    parser.add_argument("--picture", type=Path, default=HERE / "staleness.svg", help="SVG file to write")
    return smoke.parsed(parser)


def methods(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in METHODS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(METHODS)}")
    return names


if __name__ == "__main__":
    main(parsed())
