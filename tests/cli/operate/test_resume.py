"""The command that is told continues the run."""

from pathlib import Path

import pytest

from asyncrl.cli.operate.resume import how_to_resume
from asyncrl.config.run_file import to_toml
from tests.config.configs import made


@pytest.mark.parametrize(
    ("bind", "expected"),
    [
        ("tcp://127.0.0.1:0", "asyncrl resume {run}"),
        ("ipc:///run/broker", "asyncrl resume {run}"),
        ("tcp://10.0.0.1:5570", "start its services again"),
        (["tcp://127.0.0.1:5570", "tcp://10.0.0.1:5570"], "start its services again"),
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
