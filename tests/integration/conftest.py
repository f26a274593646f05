"""Whole toy runs with real processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Dropped, Reissued, Result, Rewarded, Taken
from asyncrl.cli.inspect import read_audit
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.records.run_directory import RunDirectory, RunSummary
from asyncrl.tools.toy.models import make_hidden_sums
from tests.integration.node_processes import Nodes
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]

POLL_S = 0.05

ONE_ROLLOUT, TWO_ROLLOUTS = "rollout.replicas=1", "rollout.replicas=2"
"""A run has one rollout unless its test is about several: each process takes five seconds of a core to import torch."""

LOG_LINES = 12
"""Number of lines of each log shown when a run hangs."""


class ToyRun:
    """One `asyncrl run`: its process and its run directory."""

    def __init__(
        self, folder: Path, toy: Path, *overrides: str, steps: int = 8, environment: Mapping[str, str] | None = None
    ) -> None:
        shutil.copy(toy / "toy.toml", folder)
        self._folder = folder
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        settings = (part for override in (f"steps={steps}", ONE_ROLLOUT, *overrides) for part in ("--set", override))
        self._start("run", "toy.toml", *settings)
        self._others: list[subprocess.Popen[str]] = []
        self.directory = RunDirectory(folder / "runs" / "toy")
        self.patience_s = PATIENCE_S
        self.most_processes = 0
        self.output = self.errors = ""
        self.code: int | None = None

    def _start(self, *command: str) -> None:
        # Into files: nobody reads a pipe while a test waits, and `asyncrl run` would wait too once it is full.
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "asyncrl", *command],
                cwd=self._folder,
                env=self._environment,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def config(self) -> Config:
        return load_config(self.directory.config)

    @property
    def summary(self) -> RunSummary:
        summary = self.directory.read_summary()
        assert summary is not None
        return summary

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.directory.read_events()

    def happened(self, kind: str, node: str) -> list[dict[str, Any]]:
        """Events of one kind about one node."""
        return [event for event in self.events if event["event"] == kind and event.get("node") == node]

    def records(self) -> list[AnyRecord]:
        return list(read_records(self.directory.ledger))

    def processes(self, of: "subprocess.Popen[str] | None" = None) -> list[int]:
        """Process ids of this run with its supervisor, or of the node ``of`` started beside it."""
        found = [(of or self._process).pid]
        for pid in found:
            try:
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (thread / "children").read_text().split())
            except FileNotFoundError:
                continue
        return found

    def pid_of(self, node: str, of: "subprocess.Popen[str] | None" = None) -> int:
        for pid in self.processes(of):
            try:
                if node.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
            except FileNotFoundError:
                continue
        raise AssertionError(f"no process runs {node}")

    def steps_done(self) -> int:
        return len(self.directory.read_metrics()) if self.directory.metrics.exists() else 0

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until ``condition`` is true; fails if the run ends or hangs."""
        deadline_s = time.monotonic() + self.patience_s
        while not condition():
            self.most_processes = max(self.most_processes, len(self.processes()))
            assert self._process.poll() is None, f"the run ended too early: {self._printed()}"
            assert time.monotonic() < deadline_s, f"the run hangs: {self.log_tails()}"
            time.sleep(POLL_S)

    def log_tails(self) -> str:
        """The last lines of every log and of the events, for the message about a run that hangs."""
        lines_by_file = {path.name: path.read_text().splitlines() for path in sorted(self.directory.logs.glob("*.log"))}
        lines_by_file["events"] = list(map(str, self.events))
        lines_by_file |= {f"beside {index}": lines for index, lines in enumerate(self._ended_beside())}
        lines = (f"{name}: {line}" for name, all_lines in lines_by_file.items() for line in all_lines[-LOG_LINES:])
        return "\n".join([f"{self.steps_done()} steps done", *lines])

    def _ended_beside(self) -> list[list[str]]:
        """What processes beside the run that have ended wrote to stderr."""
        ended = (other for other in self._others if other.poll() is not None and other.stderr)
        return [other.communicate()[1].splitlines() for other in ended]

    def until_next_step(self) -> None:
        """Wait until one more step is done."""
        seen = self.steps_done()
        self.until(lambda: self.steps_done() > seen)

    def freeze_at_work(self, node: str) -> int:
        """
        Stop ``node`` by SIGSTOP while it holds leases, which others then take over; returns its process id.

        If it held none that anybody needs, it is continued, and stopped again while many trajectories are sampled.
        """
        victim = self.pid_of(node)
        much = self.config.schedule.groups_per_step * self.config.schedule.group_size // 2
        while True:
            self.until(lambda: self.units_without_result() >= much)
            os.kill(victim, signal.SIGSTOP)
            seen = self.steps_done()
            self.until(lambda seen=seen: self.has_reissued() or self.steps_done() > seen + 2)  # type: ignore[misc]
            if self.has_reissued():
                return victim
            os.kill(victim, signal.SIGCONT)

    def has_reissued(self) -> bool:
        """True once a trajectory was leased again."""
        return any(isinstance(record, Reissued) for record in self.records())

    def assert_adds_up(self) -> None:
        """Every trained group was trained once, in order, with one result and one reward per trajectory."""
        records, schedule, steps = self.records(), self.config.schedule, self.config.run.steps
        taken = [record for record in records if isinstance(record, Taken)]
        assert [record.step for record in taken] == list(range(steps))
        trained = [group_id for record in taken for group_id in record.group_ids]
        admitted = [record.group_id for record in records if isinstance(record, Admitted)]
        dropped = [record.group_id for record in records if isinstance(record, Dropped)]
        assert len(trained) == steps * schedule.groups_per_step
        assert admitted == list(range(len(admitted))), "dense, in order"
        assert sorted(trained + dropped) == admitted, "each group once, and no other"
        units = {(group_id, index) for group_id in trained for index in range(schedule.group_size)}
        for kind in (Result, Rewarded):
            seen = Counter(
                (record.unit.group_id, record.unit.index)
                for record in records
                if isinstance(record, kind) and record.unit.split == "train"
            )
            assert units <= set(seen)
            assert set(seen.values()) == {1}

    def samples(self) -> list[dict[str, Any]]:
        """Every consumed trajectory in the sample files."""
        files = sorted(self.directory.samples.glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file, columns=["node"]).to_pylist()]

    def audit(self) -> Audit:
        return read_audit(self.directory.path)

    def units_without_result(self) -> int:
        """Number of trajectories of admitted groups without a result."""
        records = self.records()
        admitted = sum(isinstance(record, Admitted) for record in records)
        results = sum(isinstance(record, Result) and record.unit.split == "train" for record in records)
        return admitted * self.config.schedule.group_size - results

    def has_sampled_all(self) -> bool:
        """True if each trajectory that was admitted, and there are some, has a result."""
        return any(isinstance(record, Admitted) for record in self.records()) and not self.units_without_result()

    def kill_node(self, node: str, of: "subprocess.Popen[str] | None" = None) -> None:
        os.kill(self.pid_of(node, of), signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill every process like a power cut, `asyncrl run` first."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # Some processes end by themselves.
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def resume(self, *options: str) -> None:
        self._start("resume", str(self.directory.path.relative_to(self._folder)), *options)

    def start_node(
        self, role: str, name: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        """Start `asyncrl-node` beside the run, as on another machine."""
        address = self.directory.address.read_text().strip()
        command = ["asyncrl.cli.node", "--role", role, "--name", name, "--broker", address, *options]
        return self.beside("-m", *command, environment=environment)

    def drain(self, node: str, *options: str) -> "subprocess.CompletedProcess[str]":
        return self._command("drain", node, *options)

    def operate(self, command: str) -> None:
        """Give an operator's command about the run, which must be obeyed."""
        done = self._command(command)
        assert done.returncode == 0, done.stderr

    def _command(self, name: str, *options: str) -> "subprocess.CompletedProcess[str]":
        where = str(self.directory.path.relative_to(self._folder))
        process = self.beside("-m", "asyncrl", name, where, *options)
        output, errors = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def beside(self, *options: str, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        """Start another Python process with these options."""
        process = subprocess.Popen(
            [sys.executable, *options],
            cwd=self._folder,
            env={**self._environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._others.append(process)
        return process

    def interrupt(self) -> None:
        """Send SIGINT to `asyncrl run` only; Ctrl-C would also reach its children."""
        self._process.send_signal(signal.SIGINT)

    def end(self) -> "ToyRun":
        try:
            self.code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run does not end: {self.log_tails()}") from None
        self.output, self.errors = self._printed()
        return self

    def _printed(self) -> tuple[str, str]:
        return self._stdout.read_text(), self._stderr.read_text()

    def kill(self) -> None:
        """Kill all processes that are left."""
        for pid in reversed(self.processes()):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for other in self._others:
            other.kill()
            other.communicate()


StartRun = Callable[..., ToyRun]


@contextlib.contextmanager
def starting_runs(toy: Path, folders: pytest.TempPathFactory) -> Iterator[StartRun]:
    """Runs started inside are killed at its end."""
    runs: list[ToyRun] = []

    def start(*overrides: str, steps: int = 8, environment: Mapping[str, str] | None = None) -> ToyRun:
        runs.append(ToyRun(folders.mktemp("run"), toy, *overrides, steps=steps, environment=environment))
        return runs[-1]

    try:
        yield start
    finally:
        for run in runs:
            run.kill()


@pytest.fixture
def start_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    """Start a toy run in a folder of its own, which ends with the test: ``start_run("staleness=0", steps=4)``."""
    with starting_runs(toy, tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    """`start_run` for a run that several tests of a module use, and that ends with them."""
    with starting_runs(toy, tmp_path_factory) as start:
        yield start


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    nodes.kill()


@pytest.fixture(scope="session")
def hidden_sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the model of the hidden sums, which takes a minute, its data, its run file and its environments."""
    folder = tmp_path_factory.mktemp("hidden_sums")
    make_hidden_sums(folder, report=lambda _: None)
    conf = (ROOT / "conf" / "hidden-sums.toml").read_text()
    (folder / "toy.toml").write_text(conf.replace("cache/hidden-sums", str(folder)).replace("examples", str(folder)))
    for name in ("hidden_sums.py", "hidden_sums_agent.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    return folder


def samples(run: ToyRun) -> list[dict[str, Any]]:
    """Trained trajectories, those of each step together."""
    return [row for file in sorted(run.directory.samples.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
