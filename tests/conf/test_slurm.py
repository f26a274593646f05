"""The job of conf/slurm, run by stand-ins for Slurm and for asyncrl-node."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.node import main

FOLDER = Path(__file__).parent
SCRIPT = FOLDER.parents[1] / "conf" / "slurm" / "asyncrl.sbatch"
HOSTS = ("n1", "n2", "n3", "n4")
PATIENCE_S = 60.0
NEVER = 1000
SBATCH = {"job-name", "nodes", "ntasks-per-node", "exclusive", "time", "signal", "requeue", "open-mode", "output"}

pytestmark = pytest.mark.slow("a job of several processes that waits for limits of time")


class Job:
    """One job on this machine, which may be queued again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run folder"
        self.fake = folder / "fake"
        self.steps = folder / "steps"
        bin_folder = folder / "bin"
        for path in (self.fake, self.steps, bin_folder):
            path.mkdir()
        for name in ("srun", "scontrol", "scancel"):
            self._write(bin_folder / name, f"-S {FOLDER}/slurm.py {name}")
        self._write(bin_folder / "asyncrl-node", f"-S {FOLDER}/slurm_program.py")
        self._write(bin_folder / "asyncrl", "-m asyncrl")
        self._bin = bin_folder
        self._process: subprocess.Popen[str] | None = None

    def start(self, end: int = len(HOSTS) + 1, hosts: tuple[str, ...] = HOSTS, **settings: str) -> None:
        """Run the script; its broker completes the run when ``end`` processes have started."""
        environment = {
            "PYTHONPATH": str(FOLDER.parents[1]),
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "BIN": str(self._bin),
            "RUN": str(self.run),
            "END": str(end),
        }
        environment |= {"FAKE": str(self.fake), "STEPS": str(self.steps), "PAUSE_S": "0.05", "LEAVE_S": "20"}
        environment |= {"SLURM_JOB_ID": "100007", "SLURM_JOB_NODELIST": ",".join(hosts), "SLURM_CPUS_ON_NODE": "2"}
        self._process = subprocess.Popen(
            ["/bin/bash", SCRIPT, "my.toml"],
            cwd=self.folder,
            env=environment | settings,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        assert self._process is not None
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, errors

    def signal(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def started(self) -> list[list[str]]:
        """Arguments of each start of asyncrl-node."""
        path = self.fake / "started"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, starts: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.started()) < starts:
            assert time.monotonic() < deadline_s, f"{len(self.started())} of {starts} processes have started"
            time.sleep(0.02)

    def is_requeued(self) -> bool:
        return (self.steps / "requeued").exists()

    def kill(self) -> None:
        for step in self.steps.glob("[0-9]*"):
            signal_process(int(step.name))
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE_S)

    def _write(self, path: Path, command: str) -> None:
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {command} "$@"\n')
        path.chmod(0o755)


def signal_process(pid: int) -> None:
    subprocess.run(["/bin/kill", "-9", str(pid)], check=False, capture_output=True)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.kill()


def parsed(arguments: list[str]) -> dict[str, Any]:
    """Values of the options of asyncrl-node."""
    return main.make_context("asyncrl-node", list(arguments)).params


def test_a_job_runs_every_role_until_the_run_is_complete(job: Job) -> None:
    job.start()
    assert job.end() == (0, "")
    assert not job.is_requeued()
    nodes = {options["name"] or "broker": options for options in map(parsed, job.started())}
    assert set(nodes) == {"broker", "reward-0", "trainer-1", "rollout-2", "rollout-3"}
    assert nodes["broker"]["address"] == "tcp://*:20007"
    assert nodes["broker"]["run_dir"] == job.run / "run"
    assert {nodes[name]["address"] for name in nodes if name != "broker"} == {"tcp://n1:20007"}
    assert nodes["rollout-2"]["replicas"] == "auto"
    assert {path.name for path in (job.run / "logs").iterdir()} == {f"{name}.log" for name in nodes}


def test_keys_are_made_once_for_each_role_in_a_private_folder(job: Job) -> None:
    for _ in range(2):
        job.start()
        assert job.end() == (0, "")
    keys = job.run / "keys"
    assert {path.stem for path in (keys / "nodes").iterdir()} == {"trainer", "rollout", "reward"}
    assert keys.stat().st_mode & 0o077 == job.run.stat().st_mode & 0o077 == 0


def test_a_process_that_dies_is_started_again_and_a_final_exit_code_is_final(job: Job) -> None:
    (job.fake / "rollout-2").write_text("137\n70")
    (job.fake / "reward-0").write_text("78")
    (job.fake / "broker").write_text("139")
    job.start(end=len(HOSTS) + 1 + 3)
    code, errors = job.end()
    assert code == 0, errors
    names = [parsed(arguments)["name"] or "broker" for arguments in job.started()]
    assert {name: names.count(name) for name in sorted(set(names))} == {
        "broker": 2,
        "reward-0": 1,
        "rollout-2": 3,
        "rollout-3": 1,
        "trainer-1": 1,
    }
    assert "asyncrl: rollout-2 on n3 ended with exit code 137 and is started again" in errors


@pytest.mark.parametrize("code", [1, 78])
def test_a_run_that_fails_ends_the_job_and_every_process(job: Job, code: int) -> None:
    (job.fake / "broker").write_text(str(code))
    job.start(end=NEVER)
    assert job.end()[0] == code
    assert not job.is_requeued()
    assert list(job.steps.iterdir()) == [], "no step is left"


def test_before_the_time_limit_every_process_drains_and_the_job_is_queued_again(job: Job) -> None:
    job.start(end=NEVER)
    job.until(len(HOSTS) + 1)
    job.signal()
    assert job.end()[0] == 0
    assert [path.name for path in job.steps.iterdir()] == ["requeued"], "no step is left"
    (job.steps / "requeued").unlink()
    job.start(end=2 * (len(HOSTS) + 1))
    assert job.end()[0] == 0
    assert not job.is_requeued(), "the run is complete"


def test_several_trainer_nodes_have_names_of_their_own(job: Job) -> None:
    job.start(TRAINERS="2")
    assert job.end()[0] == 0
    names = {parsed(arguments)["name"] for arguments in job.started()}
    assert {"trainer-1", "trainer-2", "rollout-3"} <= names


def test_a_job_without_a_node_for_rollouts_is_refused_before_it_makes_anything(job: Job) -> None:
    job.start(hosts=("n1", "n2"))
    code, errors = job.end()
    assert code == 78
    assert "a job of 2 nodes is too small: expected 1 for the broker, 1 for the trainer" in errors
    assert not job.run.exists()


def test_the_options_of_sbatch_exist() -> None:
    given = re.findall(r"(?m)^#SBATCH --([a-z-]+)", SCRIPT.read_text())
    assert set(given) == SBATCH
    assert "B:TERM@" in SCRIPT.read_text(), "the script itself gets the signal"


@pytest.mark.parametrize("command", [["srun", "--het-group=1"], ["scancel", "--all"], ["scontrol", "release", "1"]])
def test_the_stand_ins_refuse_what_they_do_not_know(tmp_path: Path, command: list[str]) -> None:
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "STEPS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, FOLDER / "slurm.py", *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
