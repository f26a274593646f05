"""
Random kills of a run whose roles are services, then the audit of its ledger.

    PYTHONPATH=. python bench/services.py [--manager supervisord|systemd] [--kills 50] [--every 3] [--steps 300]

The service files are those that `asyncrl services install` writes for this machine, unchanged. supervisord is the real
one; systemd is played by tests/conf/unit_manager.py, which runs the units' own command lines as strictly as systemd.
One role or two at once are killed by SIGKILL at random times; every third time, the same ones again while they start.
Nobody helps: at the end the run must have all its steps, in the one run directory that there is.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import smoke
from run_files import add_run_file, take, written

from asyncrl.cli.inspect import read_audit
from asyncrl.config.run_file import with_absolute_paths
from tests.conf.managed_run import MANAGERS, ManagedRun, kill_at_random

SETTINGS = (
    "trainer.lr=1e-6",  # the quickstart's rate is meant for 40 steps
    "checkpoint.every_steps=5",
    "rollout.progress_every_s=0.2",
)
EVALUATIONS = {"every_versions": 50}


def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = (*SETTINGS, f"run.steps={options.steps}")
        config = with_absolute_paths(take(options, settings, EVALUATIONS), Path.cwd())
        run_file = written(config, Path(folder), "live")
        run = MANAGERS[options.manager](Path(folder), run_file)
        began_s = time.monotonic()
        run.start()
        try:
            run.until_steps(1)
            kills = kill_at_random(run, options.kills, options.seed, options.every)
            killed_s = time.monotonic() - began_s
            run.until_complete(seconds=3600)
        except AssertionError:
            print(run.describe(), flush=True)
            raise
        finally:
            run.end()
            if options.keep:
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        problems = report(run, options, dict(sorted(kills.items())), killed_s, time.monotonic() - began_s)
    if problems:
        raise SystemExit("\n".join(problems))


def report(
    run: ManagedRun, options: argparse.Namespace, kills: dict[str, int], kill_s: float, all_s: float
) -> list[str]:
    """Print one line of figures. Returns the problems found."""
    summary, audit = run.directory.read_summary(), read_audit(run.directory.path)
    problems = list(audit.problems)
    if summary is None or (summary.status, summary.steps) != ("finished", options.steps):
        problems.append(f"the run has not all its {options.steps} steps: {summary}")
    folders = [path.name for path in run.directory.path.parent.iterdir() if (path / "config.toml").exists()]
    if len(folders) != 1:
        problems.append(f"there are {len(folders)} runs in place of one: {folders}")
    figures = {
        "bench": "services",
        "case": f"random kills under {options.manager}",
        "ours": len(problems),
        "unit": "problems",
        "better": "lower",
        "peer": "none",
        "kills": kills,
        "seconds_of_kills": round(kill_s, 1),
        "seconds": round(all_s, 1),
        "steps": audit.steps,
        "skipped": audit.skipped,
        "double_trained": audit.double_trained,
        "reissued": audit.reissued,
        "tokens_trained": audit.tokens_trained,
        "tokens_thrown_away": audit.tokens_thrown_away,
    }
    print(json.dumps(figures), flush=True)
    return problems


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--manager", choices=MANAGERS, default="supervisord")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--every", type=float, default=3.0, help="Mean seconds from one kill to the next.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300, help="More than are done before the last kill.")
    parser.add_argument("--keep", type=Path, help="Copy run, logs and service files here afterwards.")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
