"""
A run on machines of its own network, while each is killed, cut off and drained in turn; then the audit of its ledger.

    python -m tests.cluster [--layout cluster|single] [--faults all|some|none] [--steps 300]

The machines are network namespaces (`tests.cluster.network`), which needs root. Each has its own supervisord, with the
services that `asyncrl services install` writes, and its own key. Nobody helps the run: it must have all its steps at
the end, an audit without problems, and the held-out accuracy of the same run on one machine without faults.

Prints one JSON line for each fault, and one at the end.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.deployment import Deployment
from tests.cluster.faults import FaultKind, endure, every_fault, some_faults
from tests.cluster.network import Network, obstacle
from tests.cluster.placement import LAYOUTS, SINGLE, Layout
from tests.cluster.task import make_step_sums

FAULTS: dict[str, Callable[[Layout], Iterator[FaultKind]]] = {
    "all": every_fault,
    "some": some_faults,
    "none": lambda layout: iter(()),
}
START_S = 180.0
END_S = 3600.0
TOLERANCE = 0.05
"""Largest difference of held-out accuracy between two runs: that of two seeds."""


def main() -> int:
    """Exit code 1 if the run has a problem."""
    options = parsed()
    if reason := obstacle(lines=True):
        sys.stdout.write(json.dumps({"bench": "cluster", "skipped": reason}) + "\n")
        return 1
    wanted = one_machine(options) if options.compare else None
    layout = LAYOUTS[options.layout]
    with Network() as network:
        run = deployed(network, layout, options)
        began_s = time.monotonic()
        try:
            run.start()
            run.until_steps(1, START_S)
            faults = list(FAULTS[options.faults](layout))
            for fault in faults:
                report(case=str(fault), ours=round(endure(run, fault), 1), unit="s to recovery", step=run.steps_done())
            run.until_complete(END_S)
            return finish(run, options.steps, len(faults), time.monotonic() - began_s, wanted)
        finally:
            if options.keep:
                shutil.copytree(network.folder, options.keep, dirs_exist_ok=True, symlinks=True, ignore=sockets)


def deployed(network: Network, layout: Layout, options: argparse.Namespace) -> Deployment:
    task = network.folder / "task"
    make_step_sums(task, options.steps, (*layout.settings, *options.overrides))
    return Deployment(network, layout, task)


def one_machine(options: argparse.Namespace) -> float | None:
    """Held-out accuracy of the same run on one machine, without faults."""
    with Network() as network:
        run = deployed(network, SINGLE, options)
        run.start()
        run.until_complete(END_S)
        summary = run.summary()
        assert summary is not None
        return summary.held_out_accuracy


def finish(run: Deployment, steps: int, faults: int, seconds: float, wanted: float | None) -> int:
    """Print the line of the whole run. Returns the exit code."""
    summary, audit = run.summary(), run.audit()
    assert summary is not None
    problems = list(audit["problems"])
    if (summary.status, summary.steps) != ("finished", steps):
        problems.append(f"the run {summary.status} with {summary.steps} of {steps} steps: {summary.cause}")
    if wanted is not None and (summary.held_out_accuracy or 0.0) < wanted - TOLERANCE:
        problems.append(f"held-out accuracy is {summary.held_out_accuracy}, and {wanted} on one machine")
    report(
        case=f"{faults} faults, machines: {len(run.layout.machines)}",
        ours=len(problems),
        unit="problems",
        better="lower",
        seconds=round(seconds, 1),
        problems=problems,
        base_accuracy=summary.base_accuracy,
        held_out_accuracy=summary.held_out_accuracy,
        one_machine=wanted,
        **{key: audit[key] for key in ("steps", "skipped", "double_trained", "reissued", "tokens_thrown_away")},
    )
    return int(bool(problems))


def report(**fields: object) -> None:
    sys.stdout.write(json.dumps({"bench": "cluster", **fields}) + "\n")
    sys.stdout.flush()


def sockets(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(folder, name).is_socket()]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layout", choices=LAYOUTS, default="cluster")
    parser.add_argument("--faults", choices=FAULTS, default="all")
    parser.add_argument("--steps", type=int, default=300, help="More than are done before the last fault.")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--compare", action="store_true", help="Run it on one machine first, and compare accuracies.")
    parser.add_argument("--keep", type=Path, help="Copy the disks of all machines here afterwards.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
