import json
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from asyncrl.cli.doctor import show, to_plain
from asyncrl.cli.terminal import to_json
from asyncrl.node.machine.diagnosis import Diagnosis, Line

FOUND = Diagnosis(
    (
        Line("installed", "torch", "good", "2.13.0, built for CUDA 13.0"),
        Line("installed", "vllm", "absent", "not installed"),
        Line("devices", "cuda", "bad", "the driver has 1, torch none", "torch sees no cuda device: install another"),
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
    show(Console(file=out, width=40), FOUND)
    assert out.getvalue() == TABLE


def test_json_has_the_same_content() -> None:
    said = json.loads(to_json(to_plain(FOUND)))
    assert said["is_fit"] is False
    assert said["problems"] == ["torch sees no cuda device: install another"]
    assert [line["state"] for line in said["lines"]] == ["good", "absent", "bad"]


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncrl", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_doctor_checks_gloo_between_two_processes_and_finds_a_trainer_can_run() -> None:
    done = doctor("--role", "trainer", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line["name"]: line for line in json.loads(done.stdout)["lines"]}
    assert "1 MiB between two processes" in lines["gloo"]["what"]
    assert "checksums agree" in lines["gloo"]["what"]
    assert lines["trainer"]["state"] == "good"


@pytest.mark.parametrize("arguments", [("--npu", "--role", "trainer"), ("--role", "cook")])
def test_contradictory_options_are_refused(arguments: tuple[str, ...]) -> None:
    assert doctor(*arguments).returncode == 2
