"""One `asyncrl run` that goes on while a bench watches it, and does things to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from base_model import make_base

from asyncrl.observe.run_directory import RunDirectory

QUICKSTART = Path(__file__).parent.parent / "conf" / "quickstart.toml"
ENDLESS = {
    "run.steps": "1000000",
    "evaluation.every_versions": "0",
    "evaluation.at_start": "false",
    "evaluation.at_end": "false",
    "trainer.lr": "1e-6",  # so many steps at a learning rate that is meant for forty would end in nonsense
}
"""Settings of a run that goes on until its bench is done."""

LOOK_S = 0.03
PATIENCE_S = 120.0
NAMESPACE = ("unshare", "-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class LiveRun:
    """
    Every process of one run.

    Args:
        directory: Where its run directory is made.
        config: Its run file.
        settings: Over that.
        overrides: Over those, as ``a.b=value``.
        isolated: In a network namespace of its own, whose loopback `in_namespace` can take away.
    """

    def __init__(
        self,
        directory: Path,
        config: Path,
        settings: Mapping[str, str],
        overrides: list[str],
        *,
        isolated: bool = False,
    ) -> None:
        settings = {**settings, "run.name": '"live"', "run.dir": json.dumps(str(directory))}
        command = [*(NAMESPACE if isolated else ()), sys.executable, "-m", "asyncrl", "run", str(config)]
        overrides = [*(f"{key}={value}" for key, value in settings.items()), *overrides]
        make_base(config, overrides)
        for override in overrides:
            command += ["--set", override]
        self.directory = RunDirectory(directory / "live")
        with (directory / "run.log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)

    def steps_taken(self) -> int:
        """Optimizer steps, repeated ones too."""
        repeated = sum(event["event"] == "step.repeated" for event in self.events())
        return repeated + (len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0)

    def starts_of(self, node: str) -> int:
        """How often a node has come; of the broker, how often it has begun to serve."""
        if node.startswith("broker"):
            return sum(event["event"] in ("run.started", "run.resumed") for event in self.events())
        return sum(event["event"] == "node.joined" and event["node"] == node for event in self.events())

    def kill(self, node: str) -> None:
        """As the kernel would that has run out of memory."""
        if (pid := self.pid_of(node)) is None:
            raise SystemExit(f"no process plays {node}")
        os.kill(pid, signal.SIGKILL)

    def pid_of(self, node: str) -> int | None:
        """The process that plays ``node`` now; None while there is none."""
        for pid in self._tree():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        return None

    def in_namespace(self, *command: str) -> None:
        """Run a command in the network namespace of an isolated run."""
        entered = ["nsenter", "-t", str(self._process.pid), "-U", "-n", "--preserve-credentials", *command]
        subprocess.run(entered, check=True)

    def until(self, condition: Callable[[], bool]) -> float:
        """When it came to be, by the monotonic clock."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(f"the run ended or hangs: see {self.directory.path}")
            time.sleep(LOOK_S)
        return time.monotonic()

    def beside(self, module: str, *options: str) -> "subprocess.Popen[str]":
        """One more process, as on another machine."""
        return subprocess.Popen([sys.executable, "-m", module, *options], env=ENVIRONMENT, text=True)

    def end(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def events(self) -> list[dict[str, object]]:
        """What happened so far."""
        return self.directory.read_events() if self.directory.events.exists() else []

    def _tree(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (thread / "children").read_text().split())
        return found
