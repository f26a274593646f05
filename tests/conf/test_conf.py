"""Every file below conf/ works unchanged."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncrl.config.run_file import load_config
from asyncrl.observe.run_directory import RunDirectory

CONF = Path(__file__).parents[2] / "conf"
UNIT = CONF / "systemd" / "asyncrl@.service"
BIN = Path(sys.executable).parent
TOO_LONG_S = 100.0


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_every_run_file_is_accepted(path):
    load_config(path)


# ── systemd ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def verify(tmp_path):
    """Messages of systemd-analyze about the unit; its program is replaced by one that exists here."""
    if not (systemd_analyze := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")

    def verify(text: str) -> str:
        path = tmp_path / "asyncrl@rollout.service"
        path.write_text(text.replace("/opt/asyncrl/.venv/bin/asyncrl-node", sys.executable))
        done = subprocess.run(
            [systemd_analyze, "verify", "--man=no", "--recursive-errors=no", path],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return "\n".join(line for line in done.stderr.splitlines() if path.name in line)

    return verify


def test_the_systemd_unit_is_clean(verify):
    assert verify(UNIT.read_text()) == ""


def test_a_mistake_in_the_unit_is_found(verify):
    """Otherwise the test above might pass for any file."""
    assert "Unknown key" in verify(UNIT.read_text().replace("NoNewPrivileges", "NoNewPriviledges"))


# ── supervisord ─────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def supervisord(toy, tmp_path):
    """A toy run under a real supervisord; the folder it runs in."""
    pytest.importorskip("supervisor")
    logs = tmp_path / "logs"
    logs.mkdir()
    environment = {
        **os.environ,
        "ASYNCRL_CONFIG": str(toy / "toy.toml"),
        "ASYNCRL_BIN": str(BIN),
        "ASYNCRL_ADDRESS": f"tcp://127.0.0.1:{free_port()}",
        "ASYNCRL_LOGS": str(logs),
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [BIN / "supervisord", "-c", CONF / "supervisord" / "asyncrl.conf"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )

    def control(*arguments: str) -> str:
        command: list[str | Path] = [BIN / "supervisorctl", "-s", f"unix://{logs}/supervisor.sock", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout

    yield tmp_path, control
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output


@pytest.mark.slow
def test_a_run_finishes_under_supervisord(supervisord):
    folder, control = supervisord
    directory = RunDirectory(folder / "runs" / "toy")
    deadline_s = time.monotonic() + TOO_LONG_S
    while directory.read_summary() is None:
        assert time.monotonic() < deadline_s, control("status")
        time.sleep(0.2)
    summary = directory.read_summary()
    assert summary is not None
    assert (summary.status, summary.cause, summary.steps) == ("finished", "", 8)
    while "RUNNING" in (status := control("status")):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.2)
    states = {line.split()[0]: line.split()[1] for line in status.splitlines()}
    assert states == dict.fromkeys(("broker", "reward", "rollout:rollout-0", "rollout:rollout-1", "trainer"), "EXITED")


@pytest.mark.slow
def test_without_its_variables_supervisord_does_not_start(tmp_path):
    """Otherwise a run would start with half of its settings."""
    pytest.importorskip("supervisor")
    command: list[str | Path] = [BIN / "supervisord", "-c", CONF / "supervisord" / "asyncrl.conf"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "ENV_ASYNCRL_" in done.stderr
