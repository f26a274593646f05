import os
import subprocess
import sys
from pathlib import Path

import pytest

WRITE = """
from pathlib import Path
from asyncrl.records.trackers import RunDescription, Trackio

folder = Path({folder!r})
for reward in (0.25, 0.5):
    tracker = Trackio(project="sums")
    tracker.start(RunDescription(name="tiny", path=folder, folder=folder, config={{"trainer.lr": 1e-3}}))
    tracker.log(1, {{"train/reward": reward}})
    tracker.event(1, "node.lost", {{"node": "r-0"}})
    tracker.finish(None)
"""
READ = """
from trackio import Api, SQLiteStorage
(run,) = Api().runs("sums")
rows = SQLiteStorage.get_logs("sums", run.name)
print(run.name, [row["train/reward"] for row in rows], run.config["trainer.lr"])
"""


def test_two_processes_write_one_run_that_trackio_reads(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="needs the extra `tracking`")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")}
    write, read = WRITE.format(folder=str(tmp_path)), READ
    subprocess.run([sys.executable, "-c", write], env=environment, check=True, timeout=100)
    command = [sys.executable, "-c", read]
    done = subprocess.run(command, env=environment, check=True, timeout=100, capture_output=True, text=True)
    name = f"tiny-{(tmp_path / 'run_id').read_text()[:6]}"
    assert done.stdout.splitlines()[-1] == f"{name} [0.25, 0.5] 0.001"
