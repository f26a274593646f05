"""`asyncrl ls`: the runs of a folder, one line each."""

from pathlib import Path

from asyncrl.cli.terminal import Row, aligned
from asyncrl.errors import ConfigError
from asyncrl.evaluation.metrics import failed_note
from asyncrl.observe.formatting import count, duration
from asyncrl.observe.run_overview import RunOverview, find_runs, overview

DAY_S = 86_400


def list_runs(folder: Path) -> list[RunOverview]:
    """Every run directly below ``folder``, the newest last. Raises `ConfigError` if there is no such folder."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: give the one with the run directories (run.dir of a run file)")
    return sorted(map(overview, find_runs(folder)), key=lambda run: run.began_at)


def run_table(runs: list[RunOverview]) -> list[str]:
    """Table of the runs."""
    rows: list[Row] = [["run", "status", "step", "reward", "held out", "age", "disk"]]
    for run in runs:
        rows.append(
            [
                run.run,
                run.status,
                f"{run.step}/{'?' if run.steps is None else run.steps}",
                "" if run.reward is None else f"{run.reward:.3f}",
                "" if run.accuracy is None else f"{run.accuracy:.1%}{failed_note(run.accuracy_failed)}",
                "" if run.age_s is None else age(run.age_s),
                f"{count(run.num_bytes)}B",
            ]
        )
    return aligned(rows, right=range(2, 7))


def age(seconds: float) -> str:
    """Age in days from two days on, otherwise as `duration`."""
    return duration(seconds) if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"
