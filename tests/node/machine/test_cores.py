"""Busy cores are read as Linux counts them."""

from pathlib import Path

import pytest

from asyncrl.node.machine.cores import Cores


def ticks(file: Path, user: int, idle: int, steal: int = 0) -> None:
    file.write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {steal} {user} 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")


def test_each_look_tells_about_the_time_since_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    ticks(file, 1000, 1000)
    cores = Cores(file)
    assert cores.busy() == 0.0
    ticks(file, 1090, 1010)
    assert cores.busy() == pytest.approx(0.9)
    assert cores.busy() == pytest.approx(0.9)
    ticks(file, 1090, 1060, steal=50)
    assert cores.busy() == pytest.approx(0.5)


def test_a_system_that_does_not_tell_has_none(tmp_path: Path) -> None:
    assert Cores(tmp_path / "stat").busy() == 0.0
