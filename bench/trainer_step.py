"""
Time of a training step on sequences of unequal length compared with two peers, and peak memory of scoring tokens.

    python bench/trainer_step.py [--spreads 1,10] [--rounds 3] [--peers padded,trl] [--trl-python PYTHON]
    python bench/trainer_step.py --memory [--tokens 1024,4096,16384] [--vocabularies 32768,151936]
    python bench/trainer_step.py --device cuda [--shapes qwen3-0.6b,qwen3-4b]

Each round runs every contender once in a new process with one thread; each figure is the median over rounds of a
process's fastest step. Generation and loading are excluded. A spread is the length of the longest completion divided by
the shortest; the total number of tokens does not depend on it. ``ratio`` is ours divided by the peer's.

    padded   plain transformers: rectangular batches in order of arrival, padded on the right
    trl      TRL's GRPOTrainer with the same completions in place of generation
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import ragged
import smoke
from processes import version_of

HERE = Path(__file__).parent
MODULES = {"asyncrl": "ours.packed_step", "padded": "peers.padded_step", "trl": "peers.trl_step"}
WHOLE_AT_MOST = 1 << 28
"""Largest number of logits for which the peer, which holds all logits in memory, is measured: about 5 GB."""


def main(options: argparse.Namespace) -> None:
    if options.memory:
        show_memory(options)
    elif options.device:
        for shape in options.shapes:
            sys.stdout.write(output(sys.executable, "ours.device_step", shape, options.device) + "\n")
    else:
        with TemporaryDirectory(prefix="asyncrl-bench-") as directory:
            ragged.save_model(Path(directory) / "model")
            options.peers = available_peers(options)
            for spread in options.spreads:
                show_steps(options, Path(directory), spread)


# ── time ────────────────────────────────────────────────────────────────────────────────────


def available_peers(options: argparse.Namespace) -> list[str]:
    """Peers that can run here. Prints a line for each that cannot."""
    if "trl" not in options.peers or version_of("trl", options.trl_python):
        return list(options.peers)
    reason = f"trl is not installed for {options.trl_python}: pip install -e .[bench]"
    print_line({"case": "all", "peer": "trl", "skipped": reason})
    return [name for name in options.peers if name != "trl"]


def show_steps(options: argparse.Namespace, directory: Path, spread: float) -> None:
    """Time every contender, and print two lines for each peer."""
    work = ragged.work(
        directory / "model", spread, groups=options.groups, mean=options.mean, steps=options.steps, rows=8
    )
    (directory / "work.json").write_bytes(msgspec.json.encode(work))
    contenders = {name: MODULES[name] for name in ["asyncrl", *options.peers]}
    found: dict[str, list[ragged.Timed]] = {name: [] for name in contenders}
    for number in range(options.rounds):
        for name, module in contenders.items():
            python = options.trl_python if name == "trl" else sys.executable
            line = output(python, module, str(directory / "work.json"))
            found[name].append(msgspec.json.decode(line, type=ragged.Timed))
            print(f"round {number + 1}, spread {spread:g}, {name}: {found[name][-1]}", file=sys.stderr)
    for peer in options.peers:
        for unit, fastest in (("s", fastest_step), ("CPU-s", least_cpu)):
            ours, theirs = (median(map(fastest, found[name])) for name in ("asyncrl", peer))
            print_line(
                {
                    "case": f"step, spread {spread:g}",
                    "ours": round(ours, 3),
                    "unit": unit,
                    "peer": peer,
                    "peer_value": round(theirs, 3),
                    "ratio": round(ours / theirs, 3),
                    "better": "lower",
                    "tokens": work.num_tokens,
                }
            )


def fastest_step(timed: ragged.Timed) -> float:
    """Wall seconds of the fastest step."""
    return min(timed.steps_s)


def least_cpu(timed: ragged.Timed) -> float:
    """CPU seconds of the step that used the least."""
    return min(timed.cpu_s)


# ── memory ──────────────────────────────────────────────────────────────────────────────────


def show_memory(options: argparse.Namespace) -> None:
    """Print a line for each number of tokens and vocabulary size."""
    for vocabulary in options.vocabularies:
        for tokens in options.tokens:
            peak_mb, seconds = measured(tokens, vocabulary, "ours")
            is_small = tokens * vocabulary <= WHOLE_AT_MOST
            print_line(
                {
                    "case": f"scoring {tokens} tokens of a vocabulary of {vocabulary}",
                    "ours": peak_mb,
                    "unit": "MB",
                    "peer": "log_softmax of all logits",
                    "peer_value": measured(tokens, vocabulary, "whole")[0] if is_small else None,
                    "better": "lower",
                    "one_float32_of_all_logits_mb": round(tokens * vocabulary * 4 / 2**20),
                    "seconds": seconds,
                }
            )


def measured(tokens: int, vocabulary: int, way: str) -> tuple[float, float]:
    """Peak megabytes and seconds of one scoring process."""
    peak_mb, seconds = output(sys.executable, "ours.score_memory", str(tokens), str(vocabulary), way).split()
    return float(peak_mb), float(seconds)


# ── shared ────────────────────────────────────────────────────────────────────────────────────


def output(python: str, module: str, *arguments: str) -> str:
    """Run a contender, and return the last line it prints."""
    environment = {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", module, *arguments]
    done = subprocess.run(command, env=os.environ | environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{module} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def print_line(fields: dict[str, Any]) -> None:
    print(json.dumps({"bench": "trainer_step", **fields}), flush=True)


def names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def numbers(text: str) -> list[int]:
    return [int(part) for part in names(text)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--spreads", type=numbers, default=[1, 10])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps per process, after one warm-up step")
    parser.add_argument("--groups", type=int, default=4, help=f"prompts with {ragged.GROUP_SIZE} completions each")
    parser.add_argument("--mean", type=int, default=200, help="mean completion length in tokens")
    parser.add_argument("--peers", type=names, default=["padded", "trl"], help="peers to run, of padded,trl")
    parser.add_argument("--trl-python", default=sys.executable, help="Python interpreter with trl installed")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--tokens", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--vocabularies", type=numbers, default=[32768, 151936])
    parser.add_argument(
        "--device", default="", help="measure tokens/s and MFU of real model shapes on this device, such as cuda"
    )
    parser.add_argument("--shapes", type=names, default=["qwen3-0.6b", "qwen3-4b"])
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
