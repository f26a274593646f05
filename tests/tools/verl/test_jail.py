"""The jail's walls, one by one; what the script notices of them is in test_expand.py."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.tools.verl import jail


def start(root: Path, command: str) -> str:
    """Reason for which the jail did not become ``command``."""
    reader, writer = os.pipe()
    numbers = ("61184" if os.geteuid() == 0 else "0", "100", str(writer))
    arguments = [sys.executable, "-I", "-S", jail.__file__, str(root), *numbers, "/", command]
    subprocess.run(arguments, pass_fds=(writer,), check=False, stderr=subprocess.DEVNULL)
    os.close(writer)
    with os.fdopen(reader) as failed:
        return failed.read()


@pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of system calls of Linux")
def test_a_wall_that_cannot_be_built_is_named_and_nothing_is_run(tmp_path: Path) -> None:
    assert "No such file" in start(tmp_path / "nowhere", "/bin/bash") or "not permitted" in start(tmp_path, "/bin/bash")


@pytest.mark.skipif(sys.platform != "linux", reason="the jail is made of system calls of Linux")
def test_a_program_that_is_not_below_the_root_does_not_start(tmp_path: Path) -> None:
    assert start(tmp_path, "/bin/bash")


def test_both_architectures_refuse_the_same_calls() -> None:
    assert len({len(calls) for _, calls in jail.REFUSED.values()}) == 1


@pytest.mark.skipif(platform.machine() not in jail.REFUSED, reason="another architecture")
def test_this_architecture_is_known() -> None:
    architecture, calls = jail.REFUSED[platform.machine()]
    assert architecture > 0xC0000000
    assert len(set(calls)) == len(calls)
