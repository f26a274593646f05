"""The complete loop of `asyncrl run`: broker with spool, rollouts, reward and trainer, each a process."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path
from time import monotonic, time

from cpu import CpuWatch
from run_files import written
from timeline import Timeline, batches_ahead

from asyncrl.config.config import Config
from asyncrl.records.run_record import RunRecord, read_run


def run(config: Config, directory: Path) -> Timeline:
    """
    Run ``config`` with its run directory in ``directory``.

    Raises:
        SystemExit: The run failed; the message contains its output.
    """
    path = written(config, directory, "asyncrl")
    started_s = monotonic()
    with (directory / "asyncrl.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "asyncrl", "run", str(path)], stdout=log)
        with CpuWatch(process.pid) as watch:
            code = process.wait()
    if code:
        raise SystemExit(f"asyncrl run failed with exit code {code}: {(directory / 'asyncrl.log').read_text()}")
    timeline = read_timeline(read_run(directory / "asyncrl"), batches_ahead(config))
    return timeline.with_process_times(started_s, watch)


def read_timeline(record: RunRecord, ahead: int) -> Timeline:
    """
    Measurements from the run directory. The clock starts when the trainer begins to wait for its first batch.

    A policy counts from the time it was live. Evaluation time is included, because rollouts run the evaluations.
    """
    times_s, steps_s = ([value for _, value in record.curve(key)] for key in ("time_s", "step_s"))
    zero_s = times_s[0] - steps_s[0]
    began_s = datetime.fromisoformat(record.events[0]["at"]).timestamp() - (time() - monotonic())
    live_s = {e["policy_version"]: e["time_s"] - zero_s for e in record.events if e["event"] == "version.live"}
    per_publish = record.config["schedule.steps_per_publish"]
    return Timeline(
        zero_s=began_s + zero_s,
        ends_s=[at_s - zero_s for at_s in times_s],
        ahead=ahead,
        tokens=[int(value) for _, value in record.curve("tokens")],
        accuracies=[
            (found.policy_version * per_publish, max(live_s[found.policy_version], 0.0), found.accuracy)
            for found in record.evaluations()
        ],
        notes={
            "trainer_busy_s": sum(value for key in ("train_s", "stage_s") for _, value in record.curve(key)),
            "rollout_busy_s": sum(steps_s) - sum(value for _, value in record.curve("wait_rollout_s")),
        },
    )
