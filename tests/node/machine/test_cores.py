"""Busy cores are read as Linux counts them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.node.machine.cores import Cores, OwnCores


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


def busy_child() -> "subprocess.Popen[str]":
    """A process that computes for .3 s of its own time, and then stays until it is told to end."""
    program = "import sys, time\nwhile time.process_time() < .3: pass\nprint('done', flush=True)\nsys.stdin.read()"
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_uses_the_cores_of_those_that_it_started_too() -> None:
    times: Iterator[float] = iter([0.0, 10.0, 20.0])
    cores = OwnCores(lambda: next(times))
    with busy_child() as child:
        assert child.stdout
        child.stdout.readline()
        assert cores.used() >= 0.025
        child.communicate()
    assert cores.used() < 0.025
