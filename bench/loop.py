"""
The whole loop beside two peers, in the same run: TRL's GRPOTrainer, and a bare pair of processes with a queue.

    python bench/loop.py [CONFIG] [--set a.b=value] [--rounds 3] [--peers bare,trl] [--trl-python PYTHON]
    python bench/loop.py --sync-async [CONFIG] [--set a.b=value] [--rounds 3] [--peers bare]

All start from the same base (made if it is missing), ask the same prompts in the same order, and have the same group
size, lengths, loss, optimizer and judge. Contenders take turns; each figure is the median of the rounds.

    to held-out accuracy   seconds from the first step until a policy that good exists. asyncrl's evaluations are on
                           its clock, because a rollout answers them; those of the peers are not
    step, trained tokens   median step, and completion tokens a second, over the second half of the steps, when
                           completions have their final length. Nothing is evaluated meanwhile, by anybody

    CPU of a step          of all processes, over the same steps; other load on the machine hardly changes it

Loading is on nobody's clock; ``ours_load_s`` and ``peer_load_s`` tell it. ``ratio`` is ours over the peer's. The bare
loop has no broker, ledger, spool or leases, and loses all if a process dies: its ratio is what the runtime costs.

``--sync-async`` compares asyncrl with itself, staleness 0 against 1, one rollout: wall time of the steps, and how near
it comes to the ideal, the busier process's busy time in the synchronous run. The bare loop does the same: what it gains
by overlapping, and how near it comes to its own ideal, is what two processes with nothing between them can do here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from base_model import make_base
from course import Course
from cpu import CpuWatch
from ours import whole_loop
from overlap import Overlap, summary

from asyncrl.config.run_file import load_config, to_toml
from asyncrl.config.sections import Config

HERE = Path(__file__).parent
QUICKSTART = HERE.parent / "conf" / "quickstart.toml"
NO_EVALUATION = ("evaluation.every_versions=0", "evaluation.at_start=false", "evaluation.at_end=false")
ONLY_AT_END = ("evaluation.every_versions=0", "evaluation.at_start=false")

STALENESS = {"synchronous": 0, "asynchronous": 1}

Contender = Callable[[Path], Course]
Courses = list[Course]


class Figure(NamedTuple):
    """What is compared."""

    case: str
    unit: str
    better: str
    of: Callable[[Course], float]


FIGURES = [
    Figure("step", "s", "lower", Course.step_s),
    Figure("trained tokens", "tokens/s", "higher", Course.tokens_per_s),
    Figure("CPU of a step", "CPU-s", "lower", Course.cpu_s_per_step),
]


def main(options: argparse.Namespace) -> None:
    make_base(options.config, options.overrides)
    if options.sync_async:
        compare_sync_async(options)
    else:
        compare_peers(options)


# ── against others ──────────────────────────────────────────────────────────────────────────


def compare_peers(options: argparse.Namespace) -> None:
    """Print a line for each figure and peer."""
    ours: dict[str, Contender] = {
        "asyncrl": partial(whole_loop.run, load_config(options.config, options.overrides)),
        "asyncrl, not evaluated": partial(
            whole_loop.run, load_config(options.config, [*options.overrides, *NO_EVALUATION])
        ),
    }
    peers = peers_of(options)
    courses = take_turns(ours | peers, options.rounds)
    learning, running = courses["asyncrl"], courses["asyncrl, not evaluated"]
    for peer in peers:
        show_accuracy(options.accuracy, learning, peer, courses[peer])
        for figure in FIGURES:
            show(figure, running, peer, courses[peer])


def peers_of(options: argparse.Namespace) -> dict[str, Contender]:
    """Those that can be run here; a line for each that cannot."""
    config = load_config(options.config, options.overrides)
    found: dict[str, Contender] = {}
    if "bare" in options.peers:
        found["bare loop"] = partial(bare_loop, config)
    if "trl" not in options.peers:
        return found
    if not (version := trl_version(options.trl_python)):
        reason = f"trl is not installed for {options.trl_python}: pip install -e .[bench]"
        print_line({"case": "all", "peer": "trl", "skipped": reason})
        return found
    for threads in (1, 2):
        settings = [threads, options.trl_rows]
        name = f"trl {version}, torch threads: {threads}"
        found[name] = partial(run_peer, config, options.trl_python, "trl_grpo", threads, settings)
    return found


def bare_loop(config: Config, directory: Path) -> Course:
    """Two processes and a queue."""
    return run_peer(config, sys.executable, "bare_loop", 1, [], directory)


def run_peer(  # noqa: PLR0917  all but the last are bound at once
    config: Config, python: str, module: str, threads: int, settings: list[int], directory: Path
) -> Course:
    """A peer in a process of its own; it prints its course."""
    path = directory / "peer.toml"
    path.write_text(to_toml(config))
    command = [python, "-m", f"peers.{module}", str(path), *map(str, settings)]
    environment = {
        "PYTHONPATH": f"{HERE}:{HERE.parent}",
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    started_s = time.monotonic()
    said = directory / "peer.out"
    with said.open("w") as out, (directory / "peer.log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=log)
        with CpuWatch(process.pid) as watch:
            code = process.wait()
    if code:
        raise SystemExit(f"{module} failed with {code}: {(directory / 'peer.log').read_text()[-2000:]}")
    return msgspec.json.decode(said.read_bytes().splitlines()[-1], type=Course).seen(started_s, watch)


def trl_version(python: str) -> str:
    """Empty if it has none."""
    script = "import importlib.metadata as m; print(m.version('trl'))"
    done = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True)
    return done.stdout.strip()


def show_accuracy(accuracy: float, ours: Courses, peer: str, theirs: Courses) -> None:
    """Who never gets there has no time."""
    case = f"to held-out accuracy {accuracy:g}"
    for name, courses in (("asyncrl", ours), (peer, theirs)):
        if any(course.seconds_to(accuracy) is None for course in courses):
            best = max(reached for course in courses for _, _, reached in course.accuracies)
            print_line({"case": case, "peer": peer, "skipped": f"{name} did not always get there; at best {best:.3f}"})
            return
    show(Figure(case, "s", "lower", lambda course: course.seconds_to(accuracy) or 0.0), ours, peer, theirs)


def show(figure: Figure, ours: Courses, peer: str, theirs: Courses) -> None:
    """One line: the medians of the rounds."""
    own, other = (median(map(figure.of, courses)) for courses in (ours, theirs))
    print_line(
        {
            "case": figure.case,
            "ours": round(own, 3),
            "unit": figure.unit,
            "peer": peer,
            "peer_value": round(other, 3),
            "ratio": round(own / other, 3),
            "better": figure.better,
            "ours_load_s": round(median(course.load_s for course in ours), 1),
            "peer_load_s": round(median(course.load_s for course in theirs), 1),
        }
    )


# ── against itself ──────────────────────────────────────────────────────────────────────────


def compare_sync_async(options: argparse.Namespace) -> None:
    """Print a line of asyncrl against itself, and lines that put the bare loop's overlap beside its own."""
    found = overlaps(options)
    show_overlap(found["asyncrl"])
    if "bare loop" in found:
        show_beside("overlap: staleness 0 over 1", "times", Overlap.gain, found)
        show_beside("overlap: ideal over staleness 1", "share", Overlap.ideal_share, found)


def overlaps(options: argparse.Namespace) -> dict[str, Overlap]:
    """By name; all take turns."""
    runs = {"asyncrl": whole_loop.run} | ({"bare loop": bare_loop} if "bare" in options.peers else {})
    overrides = [*options.overrides, *ONLY_AT_END, "rollout.replicas=1"]
    contenders: dict[str, Contender] = {
        f"{name}, {way}": partial(run, load_config(options.config, [*overrides, f"schedule.staleness={staleness}"]))
        for name, run in runs.items()
        for way, staleness in STALENESS.items()
    }
    courses = take_turns(contenders, options.rounds)
    return {name: Overlap(**{way: summary(courses[f"{name}, {way}"]) for way in STALENESS}) for name in runs}


def show_overlap(ours: Overlap) -> None:
    """One line: wall time with overlap and without."""
    wall_s, one_by_one_s = ours.asynchronous["wall_s"], ours.synchronous["wall_s"]
    print_line(
        {
            "case": "overlap: staleness 1, one rollout",
            "ours": wall_s,
            "unit": "s",
            "peer": "asyncrl, staleness 0",
            "peer_value": one_by_one_s,
            "ratio": round(wall_s / one_by_one_s, 3),
            "better": "lower",
            "ideal_s": ours.ideal_s(),
            "ideal_share": round(ours.ideal_share(), 3),
            **ours._asdict(),
        }
    )


def show_beside(case: str, unit: str, of: Callable[[Overlap], float], found: dict[str, Overlap]) -> None:
    """One line: what overlap brings asyncrl, and what it brings two processes with nothing between them."""
    own, other = of(found["asyncrl"]), of(found["bare loop"])
    print_line(
        {
            "case": case,
            "ours": round(own, 3),
            "unit": unit,
            "peer": "bare loop",
            "peer_value": round(other, 3),
            "ratio": round(own / other, 3),
            "better": "higher",
            **{f"peer_{way}": figures for way, figures in found["bare loop"]._asdict().items()},
        }
    )


# ── both ────────────────────────────────────────────────────────────────────────────────────


def take_turns(contenders: dict[str, Contender], rounds: int) -> dict[str, Courses]:
    """Every contender once a round, so that what else the machine does touches all alike."""
    courses: dict[str, Courses] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as directory:
                course = contender(Path(directory))
            courses[name].append(course)
            print(
                f"round {number + 1}, {name}: loaded in {course.load_s:.1f} s, {course.step_s():.3f} s a step, "
                f"{course.tokens_per_s():.0f} tokens/s, accuracy "
                + " ".join(f"{reached:.3f}@{seconds:.1f}s" for _, seconds, reached in course.accuracies)
                + "".join(f", {key} {value:.3g}" for key, value in course.notes.items())
                + f", CPU a step {course.cpu_s_per_step():.3f}: "
                + " ".join(f"{name} {seconds:.3f}" for name, seconds in course.cpu_s.items()),
                file=sys.stderr,
            )
    return courses


def print_line(fields: dict[str, Any]) -> None:
    print(json.dumps({"bench": "loop", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=value")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accuracy", type=float, default=0.9, help="to be reached on held-out prompts")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["bare", "trl"], help="bare,trl")
    parser.add_argument("--trl-python", default=sys.executable, help="an interpreter that has trl")
    parser.add_argument("--trl-rows", type=int, default=32, help="per_device_train_batch_size, the fastest of 8 to 128")
    parser.add_argument("--sync-async", action="store_true", help="compare each with itself, without overlap")
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())
