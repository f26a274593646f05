"""
Acceptance of one GPU: everything worth knowing about it, in one call.

    python bench/gpu.py [--cases machine,engine,...] [--device cuda] [--minutes 9] [--base DIR] [--out DIR] [--smoke]

machine     versions, what a copy, a product and a launch reach, and what each kind of attention costs at a new shape
engine      decode rate of the built-in engine at 1, 64 and 256 completions; gap of its log-probs to the trainer's
step-0.6b   training steps with the shape of Qwen3-0.6B: MFU, peak of memory beside the planner's, sleep and wake
quickstart  the quickstart on this GPU: accuracy, steps per second, pause of a publish, gap of log-probs
profile     operations that take most of a decode step and of a training step
colocated   the same in turns, and the seconds of a turn
publish     the whole loop with 1.2 GB of weights
vllm        decode rate of vLLM, step by step and compiled; gap of its log-probs to the trainer's
vllm-loop   the quickstart with vLLM on the trainer's GPU, beside it and in turns with it; 1.2 GB of weights
groups      NCCL alone, copies, device memory read by another process, two ranks on one device
tiny        a mixture of experts and a model of pictures through the whole loop
step-4b     the same as step-0.6b with the shape of Qwen3-4B
attention   error of the variable-length kernel, forward and backward, compared with float32
experts     grouped products of a mixture of experts in bfloat16, compared with float32

Each case is a process of its own with a limit, forked from one that has imported what they need; what it printed before
it failed counts. Lines of JSON go to standard output and to gpu.jsonl in DIR ($OUT if it is set), logs of the cases
beside it, and a table comes last. Packages are found where this process finds them. All of it takes about nine minutes
on an H100 by estimate. ``--base`` is the folder of `asyncrl toy step-sums`; without it the quickstart makes one, which
takes minutes.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).absolute().parent
CASES = {
    "machine": 60.0,
    "engine": 100.0,
    "step-0.6b": 90.0,
    "quickstart": 160.0,
    "profile": 60.0,
    "colocated": 160.0,
    "publish": 130.0,
    "vllm": 180.0,
    "vllm-loop": 260.0,
    "groups": 90.0,
    "tiny": 160.0,
    "step-4b": 150.0,
    "attention": 40.0,
    "experts": 40.0,
}
"""Most seconds of each case, in the order in which they run: what is worth most first."""
SMOKE = ["machine", "engine", "step-0.6b", "quickstart", "profile", "attention", "experts"]
"""Cases of ``--smoke``: one that runs the whole loop, and all that run on their own."""
LEAST_S = 5.0
"""Time that is not worth a start."""
PRELOADED = ["ours.gpu_cases", "asyncrl.trainer.learner", "asyncrl.rollout.engines.transformers.engine"]
"""Modules that are imported once. None of them touches a GPU, which would be lost to the processes of the cases."""
GIB = 1 << 30
ROOM = 16 * GIB
"""Bytes of models that cases share."""
BAD = ("exited", "stopped")
"""Ends of a case that failed."""


def main(options: argparse.Namespace) -> int:
    out = Path(options.out or os.environ.get("OUT") or tempfile.mkdtemp(prefix="asyncrl-gpu-")).absolute()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "gpu.jsonl"
    results.write_text("")
    sys.path[:] = [str(Path(part).absolute()) for part in (str(HERE), str(HERE.parent), *sys.path)]
    os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"}
    if options.device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    end_s = time.monotonic() + 60 * options.minutes
    ends: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="asyncrl-gpu-", dir=roomy()) as folder:
        for case in options.cases:
            left_s = min(CASES[case] * options.patience, end_s - time.monotonic())
            if left_s < LEAST_S:
                ends[case] = "no time was left for it"
                continue
            started_s = time.monotonic()
            place = {"device": options.device, "is_small": options.smoke, "folder": folder, "base": options.base}
            process = context.Process(target=child, args=(case, str(out), place))
            process.start()
            ends[case] = f"{ended(process, left_s)}, {time.monotonic() - started_s:.0f} s"
            print(f"## {case}: {ends[case]}", file=sys.stderr, flush=True)
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    show(lines, ends)
    print(f"\nlines and logs are in {out}", flush=True)
    return int(any("failed" in line for line in lines) or any(end.startswith(BAD) for end in ends.values()))


def child(case: str, out: str, place: dict[str, Any]) -> None:
    """Run a case; its lines go to the results, all else that it prints to its log."""
    os.setsid()  # it may have processes of its own, which end with it
    log = os.open(Path(out) / f"{case}.log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    real = os.dup(1)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from ours import gpu_cases

    with (Path(out) / "gpu.jsonl").open("a") as results, os.fdopen(real, "w") as shown:

        def emit(line: dict[str, object]) -> None:
            for file in (results, shown):
                print(json.dumps({"bench": "gpu"} | line), file=file, flush=True)

        try:
            for line in gpu_cases.CASES[case](gpu_cases.Place(**place, out=out)):
                emit(line)
        except gpu_cases.Skipped as reason:
            emit({"case": case, "skipped": str(reason)})
        except Exception as error:  # noqa: BLE001  a case may fail in any way, and the next one runs
            traceback.print_exc()
            emit({"case": case, "failed": f"{type(error).__name__}: {error}"[:300]})
            sys.exit(1)


def ended(process: "multiprocessing.process.BaseProcess", limit_s: float) -> str:
    """Wait for a process and those it started; how it ended."""
    process.join(limit_s)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return f"stopped after {limit_s:.0f} s"
    return "ok" if process.exitcode == 0 else f"exited with code {process.exitcode}"


def roomy() -> str | None:
    """Folder for the models: memory if there is room, else that of temporary files."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return "/dev/shm" if found.f_bavail * found.f_frsize > ROOM else None


def show(lines: list[dict[str, Any]], ends: dict[str, str]) -> None:
    """Print the table."""
    width = max((len(line["case"]) for line in lines), default=0)
    print("\nresults")
    for line in lines:
        more = " ".join(f"{key}={value}" for key, value in line.items() if key not in {"bench", "case", "better"})
        print(f"{line['case']:{width}}  {more}")
    print("\ncases")
    for case, end in ends.items():
        print(f"{case:{width}}  {end}")


def _cases(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in CASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(CASES)}")
    return chosen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=_cases, default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all limits, for a slow machine")
    parser.add_argument("--base", default="", help="folder with model, train.parquet and held_out.parquet")
    parser.add_argument("--out", default="")
    parser.add_argument("--smoke", action="store_true", help="small sizes, to see that the cases run")
    chosen = parser.parse_args()
    chosen.cases = chosen.cases or (SMOKE if chosen.smoke else list(CASES))
    sys.exit(main(chosen))
