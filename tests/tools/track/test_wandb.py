import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.records.trackers import WandB

WRITE = """
from pathlib import Path
from asyncrl.records.trackers import RunDescription
from asyncrl.records.trackers import WandB

folder = Path({folder!r})
for reward in (0.25, 0.5):
    tracker = WandB(mode="offline", tags=["toy"])
    tracker.start(RunDescription(name="tiny", path=folder, folder=folder, config={{"trainer.lr": 1e-3}}))
    tracker.log(1, {{"train/reward": reward}})
    tracker.event(1, "node.lost", {{"node": "r-0"}})
    tracker.finish(None)
"""


def test_there_are_two_modes() -> None:
    with pytest.raises(ConfigError, match="mode is 'disabled', expected one of online, offline"):
        WandB(mode="disabled")


def test_two_offline_processes_write_one_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra `tracking`")
    environment = {**os.environ, "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", WRITE.format(folder=str(tmp_path))]
    subprocess.run(command, env=environment, check=True, timeout=100)
    identity = (tmp_path / "run_id").read_text()
    files = list(tmp_path.glob(f"wandb/offline-run-*/run-{identity}.wandb"))
    assert files
    written = b"".join(file.read_bytes() for file in files)
    assert written.count(b"train/reward") >= 2
    assert b"trainer.lr" in written
    assert b"event.node.lost" in written
