"""`asyncrl doctor` makes one check at a time, of what its options name."""

import json
import socket
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from asyncrl.cli.doctor import show, to_plain
from asyncrl.config.config import Config
from asyncrl.runtime.checks import Say
from asyncrl.runtime.machine import CheckLine, DoctorReport
from asyncrl.terminal import to_json
from tests.cli.invoke import asyncrl

FOUND = DoctorReport(
    (CheckLine("devices", "cuda", "bad", "none", "torch sees no cuda device: install another"),), is_fit=False
)


@pytest.mark.parametrize(
    "arguments", [("--npu", "--role", "trainer"), ("--role", "cook"), ("--npu", "--cluster", "cluster.toml")]
)
def test_contradictory_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert asyncrl("doctor", *arguments).exit_code == 2


def test_a_run_file_is_judged_by_its_own_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def diagnose_run(config: Config, *given: str | Say) -> DoctorReport:
        memory = given[:2]
        assert (config.run.seed, memory) == (5, ("80GB", "1TB"))
        return FOUND

    monkeypatch.setattr("asyncrl.tools.doctor.diagnose_run", diagnose_run)
    (tmp_path / "run.toml").write_text('[model]\npath = "m"\n[data]\ntrain = "t"\n')
    result = asyncrl(
        "doctor", str(tmp_path / "run.toml"), "--set", "seed=5", "--device-memory", "80GB", "--host-memory", "1TB"
    )
    assert result.exit_code == 1
    assert "torch sees no cuda device" in result.output


def test_a_run_file_is_not_asked_together_with_other_checks(tmp_path: Path) -> None:
    assert "give one of them" in asyncrl("doctor", str(tmp_path / "run.toml"), "--npu").stderr
    assert "are for CONFIG" in asyncrl("doctor", "--set", "seed=5").stderr


# ── test output ───────────────────────────────────────────────────────────────────────────────

FOUND_OUTPUT = DoctorReport(
    (
        CheckLine("installed", "torch", "good", "2.13.0, built for CUDA 13.0"),
        CheckLine("installed", "vllm", "absent", "not installed"),
        CheckLine(
            "devices", "cuda", "bad", "the driver has 1, torch none", "torch sees no cuda device: install another"
        ),
    ),
    is_fit=False,
)

TABLE = """\
installed
 ✓  torch  2.13.0, built for CUDA 13.0
 ·  vllm   not installed

devices
 ✗  cuda   the driver has 1, torch none

problem  torch sees no cuda device: install another
"""


def test_the_table_is_aligned_and_ends_with_one_sentence_per_problem() -> None:
    out = StringIO()
    show(Console(file=out, width=40), FOUND_OUTPUT)
    assert out.getvalue() == TABLE


def test_json_has_the_same_content() -> None:
    said = json.loads(to_json(to_plain(FOUND_OUTPUT)))
    assert said["is_fit"] is False
    assert said["problems"] == ["torch sees no cuda device: install another"]
    assert [line["state"] for line in said["lines"]] == ["good", "absent", "bad"]


@pytest.mark.slow("real processes that import torch")
def test_doctor_checks_gloo_between_two_processes_and_finds_a_trainer_can_run() -> None:
    command = [sys.executable, "-m", "asyncrl", "doctor", "--role", "trainer", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert "1 MiB between two processes" in lines["gloo"]["what"]
    assert "checksums agree" in lines["gloo"]["what"]
    assert lines["trainer"]["state"] == "good"


CLUSTER = """
broker = "tcp://127.0.0.1:{port}"
[[machine]]
name = "here"
roles = ["broker", "reward"]
key = "/nonexistent/key"
"""


def test_the_machines_of_a_cluster_file_are_checked(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as broker:
        (tmp_path / "cluster.toml").write_text(CLUSTER.format(port=broker.getsockname()[1]))
        done = asyncrl("doctor", "--cluster", str(tmp_path / "cluster.toml"), "--json")
        table = asyncrl("doctor", "--cluster", str(tmp_path / "cluster.toml"))
    assert (done.exit_code, table.exit_code) == (1, 1), done.stderr
    said = json.loads(done.stdout)
    assert said["is_fit"] is False
    assert {line["name"]: line["state"] for line in said["lines"]}["broker"] == "good"
    (problem,) = said["problems"]
    assert problem.startswith("key of here: no such key file: /nonexistent/key")
    assert f"problem  {problem}" in table.stdout


def test_a_mistake_in_a_cluster_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(port=1).replace("roles", "role"))
    done = asyncrl("doctor", "--cluster", str(tmp_path / "cluster.toml"))
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr == "asyncrl: unknown key 'machine.role': did you mean 'machine.roles'?\n"
