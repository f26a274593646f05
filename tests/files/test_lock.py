import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import is_locked, locked, private_socket

HOLDS = """
import sys
from pathlib import Path
from asyncrl.files.lock import locked
with locked(Path(sys.argv[1]), "held"):
    print("holds", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "holds\n"
    return process


def test_a_lock_is_held_by_one_process_and_names_it(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        assert is_locked(tmp_path / "lock")
        with (
            pytest.raises(LinkError, match=f"the run is served already \\(process {other.pid}\\)"),
            locked(tmp_path / "lock", "the run is served already"),
        ):
            pass
        other.kill()


def test_a_killed_process_releases_its_lock(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        other.kill()
        other.wait()
        with locked(tmp_path / "lock", "held"):
            assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    assert not is_locked(tmp_path / "lock")


def test_the_holder_may_end_while_another_waits(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            other.kill()
            other.wait()

        with locked(tmp_path / "lock", "held", 10.0, sleep=sleep):
            assert len(pauses) == 1


def test_no_file_is_no_lock(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")


def test_the_lock_of_another_user_which_cannot_be_tried_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may be shared with a group, which looks whether it goes on."""

    def refuse(*_: object) -> int:
        raise PermissionError

    for holds, expected in ((locked(tmp_path / "lock", "held"), True), (nullcontext(), False)):
        with holds, monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            assert is_locked(tmp_path / "lock") == expected


# ── test private socket ───────────────────────────────────────────────────────────────────────
# The folder of a run's sockets is one user's, one place's, and gone with the process.

RUN_ID = "a" * 32


@pytest.fixture
def sockets(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "sockets").mkdir()
    return tmp_path / "sockets"


@contextmanager
def folder(sockets: Path, run_id: str = RUN_ID, place: str = "run") -> Iterator[Path]:
    with private_socket("spool", run_id, sockets.parent / place, {"XDG_RUNTIME_DIR": str(sockets)}) as address:
        path = Path(address.removeprefix("ipc://"))
        assert path.name == "spool"
        yield path.parent


def test_every_start_of_a_run_has_the_same_private_folder_and_leaves_none(sockets: Path) -> None:
    with folder(sockets) as first:
        assert first.parent == sockets
        assert first.stat().st_mode & 0o777 == 0o700
        (first / "spool").touch()
    assert list(sockets.iterdir()) == []
    with folder(sockets) as second:
        assert second == first


def test_the_folder_goes_with_a_run_that_fails(sockets: Path) -> None:
    with pytest.raises(RuntimeError), folder(sockets):
        raise RuntimeError
    assert list(sockets.iterdir()) == []


def test_a_folder_that_a_killed_process_left_is_used_again(sockets: Path) -> None:
    with folder(sockets) as first:
        pass
    first.mkdir(mode=0o700)
    (first / "spool").touch()
    with folder(sockets) as second:
        assert second == first


def test_a_start_removes_what_killed_processes_of_other_runs_left_and_nothing_else(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sockets)
    here = {"XDG_RUNTIME_DIR": "."}  # A socket has a short path.
    left, heard, new = (Path(f"asyncrl-{letter * 20}") for letter in "abc")
    other = Path("asyncrl-workers-0")
    for path in (left, heard, new, other):
        path.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as gone, socket.socket(socket.AF_UNIX) as server:
        gone.bind(f"{left}/spool")
        server.bind(f"{heard}/spool")
        server.listen()
        for path in (left, heard, other):
            os.utime(path, (0, 0))
        with private_socket("spool", "held", sockets, here), private_socket("spool", RUN_ID, sockets, here):
            assert len(there := set(Path().iterdir())) == 5
    assert [path in there for path in (left, heard, new, other)] == [False, True, True, True]


def test_another_run_and_a_copy_of_a_run_have_other_folders(sockets: Path) -> None:
    (sockets.parent / "copy").mkdir()
    with folder(sockets) as own, folder(sockets, "b" * 32) as other, folder(sockets, place="copy") as copy:
        assert len({own, other, copy}) == 3


def test_a_link_to_the_place_leads_to_the_same_folder(sockets: Path) -> None:
    (sockets.parent / "link").symlink_to(sockets.parent / "run")
    with folder(sockets) as own:
        pass
    with folder(sockets, place="link") as linked:
        assert linked == own


def test_the_folder_of_a_service_comes_first(sockets: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/nowhere", "RUNTIME_DIRECTORY": f"{sockets}:/other"}
    with private_socket("spool", RUN_ID, sockets.parent / "run", environment) as address:
        assert address.startswith(f"ipc://{sockets}/")


def test_without_any_it_is_below_the_folder_for_temporary_files(sockets: Path) -> None:
    with private_socket("spool", RUN_ID, sockets.parent / "run", {}) as address:
        assert address.startswith(f"ipc://{tempfile.gettempdir()}/asyncrl-")


def opened(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def given_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives folders away")
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    "take",
    [opened, given_away, Path.touch, lambda path: path.symlink_to(path.parent)],
    ids=["open", "his", "file", "link"],
)
def test_whoever_makes_the_folder_first_blocks_nobody(sockets: Path, take: Callable[[Path], None]) -> None:
    """The name is known to all users once the run has started; a tmp cleaner, or a reboot, lets them take it."""
    with folder(sockets) as known:
        pass
    take(known)
    with folder(sockets) as other:
        assert other != known
        assert other.name.startswith(f"{known.name}-")
        assert other.stat().st_mode & 0o777 == 0o700
    with folder(sockets) as again:
        assert again == other, "links of nodes find the next broker there"
    take(other)
    with folder(sockets) as third:
        assert third not in (known, other)


def test_a_parent_that_cannot_be_written_is_named(sockets: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(sockets / "missing")}
    with (
        pytest.raises(ConfigError, match=rf"cannot make the folder {sockets}/missing/asyncrl-\w+ for sockets: No such"),
        private_socket("spool", RUN_ID, sockets.parent / "run", environment),
    ):
        raise AssertionError("not reached")


def test_who_takes_every_name_is_told_of(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "77")
    with folder(sockets) as known:
        pass
    known.touch()
    known.with_name(f"{known.name}-77").touch()
    with pytest.raises(ConfigError, match="set XDG_RUNTIME_DIR to one's own"), folder(sockets):
        raise AssertionError("not reached")
