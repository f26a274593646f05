"""A cgroup for a worker: in a folder that looks like one, and in the kernel where it permits one."""

import subprocess
from pathlib import Path

import pytest

from asyncrl.processes import cgroup


def made_in(folder: Path, own: str = "3:cpu:/x\n0::/user/me\n") -> Path | None:
    (folder / "own").write_text(own)
    return cgroup.make("mine", (folder / "absent", folder), folder / "own")


def test_without_version_2_there_is_no_cgroup(tmp_path: Path) -> None:
    assert made_in(tmp_path) is None
    (tmp_path / "cgroup.controllers").touch()
    assert made_in(tmp_path, "3:cpu:/x\n") is None
    assert made_in(tmp_path) is None  # /user/me does not exist there


def test_without_cgroup_kill_the_folder_is_removed_again(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "user" / "me").mkdir(parents=True)

    assert made_in(tmp_path) is None
    assert list((tmp_path / "user" / "me").iterdir()) == []


def test_a_cgroup_that_is_gone_is_no_error(tmp_path: Path) -> None:
    cgroup.join(tmp_path / "gone")
    cgroup.kill(tmp_path / "gone")
    assert cgroup.remove(tmp_path / "gone")


def test_processes_that_detach_themselves_are_killed_with_their_cgroup() -> None:
    if (group := cgroup.make("asyncrl-test-cgroup")) is None:
        pytest.skip("this process may make no cgroup")
    script = f"echo 0 > {group}/cgroup.procs; setsid sh -c 'echo begun; exec sleep 424242' & wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not cgroup.remove(group)

        cgroup.kill(group)

        assert process.stdout.read() == b""  # both have closed it
    while not cgroup.remove(group):
        pass
