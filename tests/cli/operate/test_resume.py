"""The command that is told continues the run."""

from pathlib import Path

import pytest

from asyncrl.cli.operate import resume
from asyncrl.cli.operate.resume import COMMANDS, SERVICES, how_to_resume
from asyncrl.config.run_file import to_toml
from tests.config.configs import made


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("tcp://127.0.0.1:0", "asyncrl resume {run}"),
        ("ipc:///run/broker", "asyncrl resume {run}"),
        ("tcp://10.0.0.1:5570", SERVICES),
        (["tcp://127.0.0.1:5570", "tcp://10.0.0.1:5570"], SERVICES),
    ],
)
def test_a_run_that_other_machines_reach_is_continued_by_its_services(
    tmp_path: Path, bind: str | list[str], expected: str
) -> None:
    (tmp_path / "config.toml").write_text(to_toml(made(broker={"bind": bind})))
    assert how_to_resume(str(tmp_path)) == expected.format(run=tmp_path)


def test_a_configuration_that_cannot_be_read_is_left_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("run = 1")
    assert how_to_resume(str(tmp_path)) == f"asyncrl resume {tmp_path}"


@pytest.mark.parametrize("command", COMMANDS.values())
def test_the_manager_whose_files_name_the_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "config.toml").write_text(to_toml(made(broker={"bind": "tcp://10.0.0.1:5570"})))
    (tmp_path / "services").write_text(f"--role broker --run-dir {tmp_path} --broker tcp://10.0.0.1:5570")
    monkeypatch.setattr(resume, "COMMANDS", {tmp_path / "services": command, tmp_path / "none": "another"})
    assert how_to_resume(str(tmp_path)) == f"start its services again on every machine: {command}"
