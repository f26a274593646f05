"""A failing tracker is reported and never ends the run."""

import pytest

pytestmark = pytest.mark.slow("whole runs of real processes")

STEPS = 300
"""Enough steps for trackers to start, fail and restart."""

TRACKER = """
import json
import os
import signal
import time

class Notes:
    def __init__(self, manner):
        self.manner = manner

    def start(self, run):
        self.path = run.path / f"{self.manner}.jsonl"
        if self.manner == "refuses":
            raise OSError("no network")

    def log(self, step, metrics):
        if self.manner == "hangs":
            time.sleep(1000)
        with self.path.open("a") as file:
            file.write(json.dumps([step, metrics]) + "\\n")
        if self.manner == "dies" and step == 3 and not (self.path.parent / "died").exists():
            (self.path.parent / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def event(self, step, kind, fields):
        pass

    def finish(self, summary):
        if self.manner == "lingers":
            time.sleep(1000)

def lingers():
    return Notes("lingers")

def refuses():
    return Notes("refuses")

def hangs():
    return Notes("hangs")

def dies():
    return Notes("dies")
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "trackers.py"
    path.write_text(TRACKER)
    return str(path)


@pytest.mark.long("waits for trackers that hang")
def test_trackers_that_raise_hang_or_die_do_not_stop_the_run(start_run, own):
    use = [f"{own}:{manner}" for manner in ("refuses", "hangs", "dies")]
    run = start_run(f"trackers.use={use}", "trackers.timeout_s=1", "supervisor.max_restarts=1", steps=STEPS)
    for manner, times in (("refuses", 2), ("hangs", 1), ("dies", 1)):
        run.until(lambda: len(run.happened("node.exited", f"tracker-{manner}")) >= times)  # noqa: B023  called at once
    run.end()

    assert run.code == 0, (run.errors, run.output)
    assert (run.summary.status, run.summary.steps) == ("finished", STEPS)
    refused = run.happened("node.exited", "tracker-refuses")
    assert [event["restarting"] for event in refused] == [True, False]
    assert "refuses.start: OSError: no network" in refused[0]["cause"]
    assert "hangs.log took more than 1 s" in run.happened("node.exited", "tracker-hangs")[0]["cause"]
    assert run.happened("node.exited", "tracker-dies")[0]["cause"] == "was killed by SIGKILL"
    assert "tracker-refuses exited with 70" in run.output


@pytest.mark.long("waits for a tracker that hangs")
def test_a_tracker_that_does_not_finish_is_ended_and_can_be_continued(start_run, own):
    run = start_run(f"trackers.use=['{own}:lingers']", steps=2).end()
    assert run.code == 0, (run.errors, run.output)
    assert "tracker-lingers has not finished; asyncrl track continues where it stopped" in run.output


def test_a_run_without_its_tracker_installed_does_not_start(start_run):
    run = start_run("trackers.use=['tensorbord']", steps=2).end()
    assert run.code == 78
    assert "trackers.use names 'tensorbord'" in run.errors
