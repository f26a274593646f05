"""Allowance of output: what is printed, what is cut, and the line that tells it; and the cgroup of a worker."""

import subprocess
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from asyncrl.workers import keeper
from asyncrl.workers.keeper import AT_ONCE_BYTES, NOTE_BYTES, PER_S_BYTES, OutputAllowance, refilled


def test_little_output_is_printed_whole_and_needs_no_line() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)

    assert [allowance.admit(1000, float(second)) for second in range(600)] == [1000] * 600
    assert allowance.note(600.0, last=True) == ""


def test_output_beyond_the_allowance_is_cut_and_one_line_tells_it() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)

    assert allowance.admit(10**9, 0.0) == AT_ONCE_BYTES - NOTE_BYTES
    note = allowance.note(0.0)
    assert f"{10**9 - AT_ONCE_BYTES + NOTE_BYTES:,} bytes of output were cut" in note
    assert note.startswith("\nreward worker: ")
    assert len(note) < NOTE_BYTES
    allowance.admit(10**9, 1.0)
    assert allowance.note(1.0) == ""  # once a minute is enough
    allowance.admit(10**9, 61.0)
    assert "1,999,9" in allowance.note(61.0)


def test_an_hour_of_prints_leaves_a_few_megabytes() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)
    printed = 0
    for tick in range(36_000):
        printed += allowance.admit(1 << 20, tick / 10) + len(allowance.note(tick / 10))

    assert printed < AT_ONCE_BYTES + 3600 * PER_S_BYTES


def test_workers_that_follow_each_other_share_the_allowance() -> None:
    assert refilled(0.0) == NOTE_BYTES
    assert refilled(10.0) == NOTE_BYTES + 10 * PER_S_BYTES
    assert refilled(1e9) == AT_ONCE_BYTES


def test_processes_that_were_left_behind_are_told_and_so_is_output_that_nobody_took() -> None:
    allowance = OutputAllowance("reward worker", AT_ONCE_BYTES, 0.0)
    allowance.killed(3)
    allowance.dropped(7)

    assert "7 bytes of output were cut" in (note := allowance.note(5.0))
    assert "3 processes that the function left behind were killed" in note
    assert allowance.note(1000.0, last=True) == ""


# ── test cgroup ───────────────────────────────────────────────────────────────────────────────
# A cgroup for a worker: in a folder that looks like one, and in the kernel where it permits one.


def made_in(folder: Path, own: str = "3:cpu:/x\n0::/user/me\n") -> Path | None:
    (folder / "own").write_text(own)
    return keeper.make("mine", (folder / "absent", folder), folder / "own")


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
    keeper.join(tmp_path / "gone")
    keeper.kill(tmp_path / "gone")
    assert keeper.remove(tmp_path / "gone")


def test_processes_that_detach_themselves_are_killed_with_their_cgroup() -> None:
    if (group := keeper.make("asyncrl-test-cgroup")) is None:
        pytest.skip("this process may make no cgroup")
    script = f"echo 0 > {group}/cgroup.procs; setsid sh -c 'echo begun; exec sleep 424242' & wait"
    with subprocess.Popen(["sh", "-c", script], stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not keeper.remove(group)

        keeper.kill(group)

        assert process.stdout.read() == b""  # both have closed it
    while not keeper.remove(group):
        pass


def test_a_start_removes_the_old_cgroups_that_no_process_is_in() -> None:
    if (parent := keeper.make("asyncrl-test-parent")) is None:
        pytest.skip("this process may make no cgroup")
    left, used = (parent / f"asyncrl-test-{number:016x}" for number in range(2))
    left.mkdir()
    used.mkdir()
    script = f"echo 0 > {used}/cgroup.procs; echo begun; read _"
    with subprocess.Popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        keeper.remove_left(parent, time.time())
        assert left.exists()  # its worker is about to join

        keeper.remove_left(parent, time.time() + 61.0)
        assert (left.exists(), used.exists()) == (False, True)
    while not keeper.remove(parent):
        pass
