"""
The complete RL loop compared with TRL's GRPOTrainer and with two bare processes connected by a queue.

    python bench/loop.py [CONFIG] [--set a.b=value] [--rounds 3] [--peers bare,trl] [--trl-python PYTHON]
    python bench/loop.py --sync-async [CONFIG] [--set a.b=value] [--rounds 3] [--peers bare]

All contenders start from the same base model (created if it is missing) and use the same prompts in the same order and
the same group size, lengths, loss, optimizer and reward function. Each round runs every contender once; each figure is
the median over the rounds.

    to held-out accuracy   seconds from the first step until a policy with this accuracy exists. The time of asyncrl's
                           evaluations counts, because its rollouts run them; the time of the peers' does not
    step, trained tokens   mean step time, and completion tokens per second, over the steps from halfway on, when
                           completions have reached their final length, while the pipeline is full (timeline.py). No
                           contender evaluates during these runs
    CPU of a step          CPU time of all processes over the same steps; other load on the machine hardly changes it
    peak memory            most that all processes have together in these steps, what they share counted once

Loading time is excluded and reported as ``ours_load_s`` and ``peer_load_s``. ``ratio`` is ours divided by the peer's.
The bare loop has no broker, ledger, spool or leases, and cannot recover from the death of a process; the ratio to the
bare loop is therefore the cost of the runtime.

``--sync-async`` compares asyncrl at staleness 1 with asyncrl at staleness 0, with one rollout: wall time of the steps,
and its ratio to the ideal, which is the busy time of the busier process in the synchronous run. The bare loop is
measured in the same way and shows the gain that two processes without a runtime reach on this machine.
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
import smoke
from cpu import CpuWatch
from ours import whole_loop
from overlap import Overlap, summary
from processes import version_of
from run_files import AT_END, NEVER, add_run_file, take
from timeline import Timeline

from asyncrl.config.config import Config
from asyncrl.config.run_file import to_toml

HERE = Path(__file__).parent
STALENESS = {"synchronous": 0, "asynchronous": 1}

Contender = Callable[[Path], Timeline]
Timelines = list[Timeline]


class Figure(NamedTuple):
    """One quantity that is compared between contenders."""

    case: str
    unit: str
    better: str
    of: Callable[[Timeline], float]


FIGURES = [
    Figure("step", "s", "lower", Timeline.step_s),
    Figure("trained tokens", "tokens/s", "higher", Timeline.tokens_per_s),
    Figure("CPU of a step", "CPU-s", "lower", Timeline.cpu_s_per_step),
    Figure("peak memory", "GB", "lower", lambda timeline: timeline.memory_gb),
]


def main(options: argparse.Namespace) -> None:
    if options.sync_async:
        compare_sync_async(options)
    else:
        compare_peers(options)


# ── asyncrl and peers ──────────────────────────────────────────────────────────────────────────


def compare_peers(options: argparse.Namespace) -> None:
    """Print a line for each figure and peer."""
    ours: dict[str, Contender] = {
        "asyncrl": partial(whole_loop.run, take(options)),
        "asyncrl, not evaluated": partial(whole_loop.run, take(options, evaluations=NEVER)),
    }
    peers = available_peers(options)
    timelines = take_turns(ours | peers, options.rounds)
    learning, running = timelines["asyncrl"], timelines["asyncrl, not evaluated"]
    for peer in peers:
        show_accuracy(options.accuracy, learning, peer, timelines[peer])
        for figure in FIGURES:
            show(figure, running, peer, timelines[peer])


def available_peers(options: argparse.Namespace) -> dict[str, Contender]:
    """Peers that can run here. Prints a line for each peer that cannot."""
    config = take(options)
    found: dict[str, Contender] = {}
    if "bare" in options.peers:
        found["bare loop"] = partial(bare_loop, config)
    if "trl" not in options.peers:
        return found
    if not (version := version_of("trl", options.trl_python)):
        reason = f"trl is not installed for {options.trl_python}: pip install -e .[bench]"
        print_line({"case": "all", "peer": "trl", "skipped": reason})
        return found
    for threads in (1, 2):
        settings = [threads, options.trl_rows]
        name = f"trl {version}, torch threads: {threads}"
        found[name] = partial(run_peer, config, options.trl_python, "trl_grpo", threads, settings)
    return found


def bare_loop(config: Config, directory: Path) -> Timeline:
    """Run the bare loop of two processes and a queue."""
    return run_peer(config, sys.executable, "bare_loop", 1, [], directory)


def run_peer(  # noqa: PLR0917  all arguments but the last are bound with partial
    config: Config, python: str, module: str, threads: int, settings: list[int], directory: Path
) -> Timeline:
    """Run a peer as a child process, which prints its `Timeline` as its last line."""
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
    output = directory / "peer.out"
    with output.open("w") as out, (directory / "peer.log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=log)
        with CpuWatch(process.pid) as watch:
            code = process.wait()
    if code:
        raise SystemExit(f"{module} failed with exit code {code}: {(directory / 'peer.log').read_text()[-2000:]}")
    return msgspec.json.decode(output.read_bytes().splitlines()[-1], type=Timeline).with_process_times(started_s, watch)


def show_accuracy(accuracy: float, ours: Timelines, peer: str, theirs: Timelines) -> None:
    """Print the times to an accuracy; print the best accuracy instead if a run did not reach it."""
    case = f"to held-out accuracy {accuracy:g}"
    for name, timelines in (("asyncrl", ours), (peer, theirs)):
        if any(timeline.seconds_to(accuracy) is None for timeline in timelines):
            best = max(reached for timeline in timelines for _, _, reached in timeline.accuracies)
            print_line(
                {
                    "case": case,
                    "peer": peer,
                    "skipped": f"{name} did not reach the accuracy in every round; best {best:.3f}",
                }
            )
            return
    show(Figure(case, "s", "lower", lambda timeline: timeline.seconds_to(accuracy) or 0.0), ours, peer, theirs)


def show(figure: Figure, ours: Timelines, peer: str, theirs: Timelines) -> None:
    """Print one line with the medians over the rounds."""
    own, other = (median(map(figure.of, timelines)) for timelines in (ours, theirs))
    print_line(
        {
            "case": figure.case,
            "ours": round(own, 3),
            "unit": figure.unit,
            "peer": peer,
            "peer_value": round(other, 3),
            "ratio": round(own / other, 3),
            "better": figure.better,
            "ours_load_s": round(median(timeline.load_s for timeline in ours), 1),
            "peer_load_s": round(median(timeline.load_s for timeline in theirs), 1),
        }
    )


# ── synchronous and asynchronous ──────────────────────────────────────────────────────────────────────────


def compare_sync_async(options: argparse.Namespace) -> None:
    """Print the overlap of asyncrl, and compare it with the overlap of the bare loop."""
    found = overlaps(options)
    show_overlap(found["asyncrl"])
    if "bare loop" in found:
        show_beside("overlap: staleness 0 over 1", "times", Overlap.gain, found)
        show_beside("overlap: ideal over staleness 1", "share", Overlap.ideal_share, found)


def overlaps(options: argparse.Namespace) -> dict[str, Overlap]:
    """Measured overlap of each contender, by name."""
    runs = {"asyncrl": whole_loop.run} | ({"bare loop": bare_loop} if "bare" in options.peers else {})
    contenders: dict[str, Contender] = {
        f"{name}, {way}": partial(run, take(options, ("rollout.replicas=1", f"schedule.staleness={staleness}"), AT_END))
        for name, run in runs.items()
        for way, staleness in STALENESS.items()
    }
    timelines = take_turns(contenders, options.rounds)
    return {name: Overlap(**{way: summary(timelines[f"{name}, {way}"]) for way in STALENESS}) for name in runs}


def show_overlap(ours: Overlap) -> None:
    """Print one line: wall time with overlap and without."""
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
    """Print one line: one figure of the overlap of asyncrl and of the bare loop."""
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


# ── shared ────────────────────────────────────────────────────────────────────────────────────


def take_turns(contenders: dict[str, Contender], rounds: int) -> dict[str, Timelines]:
    """Run every contender once per round, so that other load on the machine affects all of them equally."""
    timelines: dict[str, Timelines] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as directory:
                timeline = contender(Path(directory))
            timelines[name].append(timeline)
            print(
                f"round {number + 1}, {name}: loaded in {timeline.load_s:.1f} s, {timeline.step_s():.3f} s a step, "
                f"{timeline.tokens_per_s():.0f} tokens/s, accuracy "
                + " ".join(f"{reached:.3f}@{seconds:.1f}s" for _, seconds, reached in timeline.accuracies)
                + "".join(f", {key} {value:.3g}" for key, value in timeline.notes.items())
                + f", CPU a step {timeline.cpu_s_per_step():.3f}: "
                + " ".join(f"{name} {seconds:.3f}" for name, seconds in timeline.cpu_s.items()),
                file=sys.stderr,
            )
    return timelines


def print_line(fields: dict[str, Any]) -> None:
    print(json.dumps({"bench": "loop", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    add_run_file(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accuracy", type=float, default=0.9, help="target accuracy on held-out prompts")
    parser.add_argument(
        "--peers", type=lambda text: text.split(","), default=["bare", "trl"], help="peers to run, of bare,trl"
    )
    parser.add_argument("--trl-python", default=sys.executable, help="Python interpreter with trl installed")
    parser.add_argument("--trl-rows", type=int, default=32, help="TRL's batch size; 32 was the fastest of 8 to 128")
    parser.add_argument("--sync-async", action="store_true", help="compare each contender with itself without overlap")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
