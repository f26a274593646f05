"""
What one GPU tells in ten minutes: trainer, kernels, copies, collectives, the built-in engine, and the quickstart.

    python bench/gpu.py [--cases step-0.6b,attention,...] [--device cuda] [--minutes 10] [--tiny]

step-0.6b   tokens per second, MFU and peak memory of a training step with the shape of Qwen3-0.6B in bfloat16
step-4b     the same with the shape of Qwen3-4B
attention   error of the variable-length kernel, forward and backward, compared with float32
experts     grouped products of a mixture of experts in bfloat16, compared with float32
copies      page-locked staging buffers, compared with pageable ones
nccl        seconds to form a group of one rank, to broadcast and to abort
ipc         bandwidth at which another process reads device memory
engine      tokens per second of the built-in engine with the shape of Qwen3-0.6B
quickstart  steps per second with trainer and rollouts on this GPU, and the pause of a publish
colocated   the same in turns, and the seconds and bytes of a turn

Each case is a process of its own. One that cannot run is a line with ``skipped`` and the reason.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

from ours.gpu_cases import CASES
from processes import ENVIRONMENT, HERE

from asyncrl.errors import ConfigError
from asyncrl.weights.groups.device import require

LEAST_S = 5.0
"""Time that is not worth a start."""


def main(options: argparse.Namespace) -> None:
    end_s = time.monotonic() + 60 * options.minutes
    for case in options.cases:
        left_s = end_s - time.monotonic()
        if reason := missing(options.device) or ("" if left_s > LEAST_S else "no time was left for it"):
            skip(case, reason)
        else:
            measure(case, options.device, "tiny" if options.tiny else "whole", left_s)


def missing(device: str) -> str:
    """Reason why nothing can be measured on a kind of device; empty if there is one."""
    try:
        require(device)
    except ConfigError as error:
        return str(error)
    return ""


def measure(case: str, device: str, size: str, limit_s: float) -> None:
    """Run a case; its lines go to standard output."""
    command = [sys.executable, "-m", "ours.gpu_cases", case, device, size]
    environment = os.environ | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}
    process = subprocess.Popen(
        command, cwd=HERE.parent, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # a case may have processes of its own
        process.communicate()
        skip(case, f"it had not ended after {limit_s:.0f} s, when the time was up")
        return
    if process.returncode:
        last = next(reversed(errors.strip().splitlines()), "no message")
        skip(case, f"its process exited with code {process.returncode}: {last}")


def skip(case: str, reason: str) -> None:
    print(json.dumps({"bench": "gpu", "case": case, "skipped": reason}), flush=True)


def _cases(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in CASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(CASES)}")
    return chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=_cases, default=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that the cases run")
    main(parser.parse_args())
