"""`asyncrl-node` processes on one machine, each started as by a service manager."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from asyncrl.records.run_directory import RunDirectory
from tests.patience import PATIENCE_S

CONFIG = """
[run]
steps = 8
[model]
path = "{folder}/model"
[data]
train = "{folder}/train.jsonl"
[reward]
function = "{folder}/score.py:score"
[evaluation]
every_versions = 0
at_start = false
at_end = false
"""
EX_CONFIG, EX_UNAVAILABLE = 78, 69


class Nodes:
    """`asyncrl-node` processes in one folder, and one port for their brokers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n' * 8)
        (folder / "score.py").write_text("def score(sample):\n    return 1.0\n")
        (folder / "run.toml").write_text(CONFIG.format(folder=folder))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, role: str, *options: str) -> "subprocess.Popen[str]":
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        command = [sys.executable, "-m", "asyncrl.cli.node", "--role", role, "--name", f"{role}-0"]
        command += ["--broker", self.address, *options]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)
        self._processes.append(process)
        return process

    def broker(self, run: str, *options: str) -> "tuple[subprocess.Popen[str], RunDirectory]":
        """Start the broker of a run, and wait until it listens."""
        directory = RunDirectory(self.folder / run)
        process = self.start("broker", "--config", "run.toml", "--run-dir", run, *options)
        until(lambda: directory.events.exists() and b"node.joined" in directory.events.read_bytes(), process)
        return process, directory

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def joined(directory: RunDirectory) -> list[str]:
    events = directory.read_events() if directory.events.exists() else []
    return [event["node"] for event in events if event["event"] == "node.joined" and event["role"] != "spool"]
