"""A running `asyncrl run` that a bench observes and injects faults into."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from run_files import written

from asyncrl.config.config import Config
from asyncrl.records.run_directory import RunDirectory

LOOK_S = 0.03
PATIENCE_S = 120.0
NAMESPACE = ("unshare", "-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class LiveRun:
    """
    All processes of one run.

    Args:
        directory: Parent of the run directory.
        config: Its name and directory are replaced.
        isolated: Run in a new network namespace, whose loopback interface `in_namespace` can switch off.
    """

    def __init__(self, directory: Path, config: Config, *, isolated: bool = False) -> None:
        path = written(config, directory, "live")
        command = [*(NAMESPACE if isolated else ()), sys.executable, "-m", "asyncrl", "run", str(path)]
        self.directory = RunDirectory(directory / "live")
        with (directory / "run.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)

    def steps_taken(self) -> int:
        """Number of optimizer steps so far, including repeated steps."""
        repeated = sum(event["event"] == "step.repeated" for event in self.events())
        return repeated + (len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0)

    def starts_of(self, node: str) -> int:
        """Number of times a node has joined; for the broker, number of times it has started to serve."""
        if node.startswith("broker"):
            return sum(event["event"] in ("run.started", "run.resumed") for event in self.events())
        return sum(event["event"] == "node.joined" and event["node"] == node for event in self.events())

    def kill(self, node: str) -> None:
        """Send SIGKILL, as the kernel's out-of-memory killer does."""
        if (pid := self.pid_of(node)) is None:
            raise SystemExit(f"no process runs node {node}")
        os.kill(pid, signal.SIGKILL)

    def pid_of(self, node: str) -> int | None:
        """Id of the process that runs ``node``; None if there is none."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        return None

    def in_namespace(self, *command: str) -> None:
        """Run a command in the network namespace of an isolated run."""
        entered = ["nsenter", "-t", str(self._process.pid), "-U", "-n", "--preserve-credentials", *command]
        subprocess.run(entered, check=True)

    def until(self, condition: Callable[[], bool]) -> float:
        """
        Wait until ``condition`` returns true.

        Returns:
            The current `time.monotonic`.

        Raises:
            SystemExit: The run ended, or the condition did not hold within `PATIENCE_S`.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the run ended or made no progress for {PATIENCE_S:g} s: see {self.directory.path}")
            time.sleep(LOOK_S)
        return time.monotonic()

    def start_process(self, module: str, *options: str) -> "subprocess.Popen[str]":
        """Start a further process outside the run, like a node on another machine."""
        return subprocess.Popen([sys.executable, "-m", module, *options], env=ENVIRONMENT, text=True)

    def end(self) -> None:
        """End the run with SIGINT and wait for it."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def events(self) -> list[dict[str, object]]:
        return self.directory.read_events() if self.directory.events.exists() else []

    def processes(self) -> list[int]:
        """Ids of all processes of the run, parents before children."""
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (thread / "children").read_text().split())
        return found
