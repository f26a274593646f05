"""
Sandbox for hostile programs: the policy is rewarded for what they print.

    worker ──▶ bwrap or unshare ──▶ jail.py ──▶ python program.py     a session of its own, killed whole
               namespaces           limits      in an empty folder, with an empty environment

Always guaranteed: limits on CPU time, wall time, address space, size of each file and number of processes; the program
sees no environment variable of this process; its folder is removed; its session is killed in any case.

Guaranteed with namespaces, if the kernel permits them (`Sandbox.find` tries): no network, not even loopback; every
process the program started is dead when `run` returns, even one that left the session.

Guaranteed with bubblewrap, if ``bwrap`` is installed and works here: that, and the program can write nowhere but in its
own folder, in empty temporary folders and in ``/dev``; it still reads what its user can.

If this process is root: with namespaces the program runs as nobody, if nobody may run the interpreter (an interpreter
below root's home often forbids it). Otherwise it runs as root, whose processes the kernel does not limit. If this
process is an ordinary user, so is the program.

Not guaranteed without bubblewrap: the program reads and writes every file that its user can, in any number. So run
reward nodes as a user, or in a container, that can do no harm. Bugs of the kernel are out of scope.

It needs the standard library of Python 3.9 alone, because workers of environments load it under other interpreters.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import SandboxError
from asyncrl.workers.jail import READY

JAIL = Path(__file__).with_name("jail.py")
TEMPORARY = "/tmp"
NOBODY = 65534
"""User and group id of nobody, by convention on Linux."""
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child")
"""
Commands of util-linux. If worker or unshare dies, the jail dies too; it is the first process of its namespace, so the
kernel then kills all others there.
"""
BUBBLEWRAP = (
    "bwrap", "--die-with-parent", "--new-session",
    "--unshare-ipc", "--unshare-net", "--unshare-pid", "--unshare-uts",
    "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
)  # fmt: skip
"""Bubblewrap's first process reaps orphans; everything in the namespace dies with bwrap, and bwrap with the worker."""
BUBBLEWRAP_ROOT = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""For the jail, so that it can become nobody."""
PROBE_S = 10.0


@dataclass(frozen=True)
class SandboxLimits:
    cpu_s: int = 4
    wall_s: float = 8.0
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    file_bytes: int = 1 << 20
    """Size of each file, and of stdout."""
    processes: int = 64
    """Concurrent processes of the program's user, threads included; no limit for root."""


@dataclass(frozen=True)
class ProgramResult:
    output: str
    """Stdout; bytes that are not UTF-8 are replaced."""
    succeeded: bool
    """Program exited in time with code 0."""


@dataclass(frozen=True)
class Sandbox:
    has_namespaces: bool
    """The program runs in namespaces, of bubblewrap or of unshare."""
    has_bubblewrap: bool = False
    """Bubblewrap makes the namespaces, and shows the program a file system that it can only read."""
    user_id: int = 0
    """User id to run as; 0 keeps the current user."""
    python: str = sys.executable

    @classmethod
    def find(cls, python: str = sys.executable) -> Sandbox | None:
        """Return the strictest sandbox that works on this machine; None if none does."""
        users = (NOBODY, 0) if os.geteuid() == 0 else (0,)
        candidates = [
            cls(has_namespaces=True, has_bubblewrap=has_bubblewrap, user_id=user_id, python=python)
            for user_id in users
            for has_bubblewrap in (True, False)
        ]
        candidates.append(cls(has_namespaces=False, python=python))
        return next((sandbox for sandbox in candidates if sandbox._works()), None)

    def run(self, program: str, stdin: str, limits: SandboxLimits, *, with_errors: bool = False) -> ProgramResult:
        """
        Run a program, blocking.

        Args:
            with_errors: Its stderr goes into the output too; otherwise it is thrown away.

        Raises:
            SandboxError: It cannot be started.
        """
        with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
            outside = Path(name)
            (folder := outside / "home").mkdir()
            (folder / "program.py").write_bytes(program.encode("utf-8", "replace"))
            (outside / "stdin").write_bytes(stdin.encode("utf-8", "replace"))
            if self.user_id:
                outside.chmod(0o711)
                (folder / "program.py").chmod(0o644)  # whatever the umask
                os.chown(folder, self.user_id, self.user_id)
            succeeded = self._run(outside, folder, limits, subprocess.STDOUT if with_errors else subprocess.DEVNULL)
            output = (outside / "stdout").read_bytes().decode("utf-8", "replace")
            return ProgramResult(output=output, succeeded=succeeded)

    def _run(self, outside: Path, folder: Path, limits: SandboxLimits, stderr: int) -> bool:
        ready_reader, ready = os.pipe()
        with (
            os.fdopen(ready_reader, "rb") as ready_file,
            (outside / "stdin").open("rb") as stdin,
            (outside / "stdout").open("wb") as stdout,
        ):
            try:
                process = subprocess.Popen(
                    self._command(folder, limits, ready),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(ready,),
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"the sandbox cannot start {error.filename}: {error.strerror}") from error
            finally:
                os.close(ready)
            code = ended(process, limits.wall_s)
            message = ready_file.read()
        if message != READY:
            reason = message.decode("utf-8", "replace") or f"exit code {code}"
            raise SandboxError(f"the sandbox could not start a program: {reason}")
        return code == 0

    def _command(self, folder: Path, limits: SandboxLimits, ready: int) -> list[str]:
        numbers = (self.user_id, limits.cpu_s, limits.memory_bytes, limits.file_bytes, limits.processes, ready)
        return [*self._walls(folder), self.python, "-I", "-S", str(JAIL), str(folder), *map(str, numbers)]

    def _walls(self, folder: Path) -> list[str]:
        """Return the command that makes namespaces, to be followed by the one that runs in them."""
        if self.has_bubblewrap:
            root = BUBBLEWRAP_ROOT if self.user_id else ()
            temporary = dict.fromkeys((TEMPORARY, tempfile.gettempdir()))  # TMPDIR may be another one
            empty = [part for place in temporary for part in ("--tmpfs", place)]
            files = (*empty, "--ro-bind", JAIL, JAIL, "--bind", folder, folder)
            return [*BUBBLEWRAP, *root, *map(str, files), "--"]
        if not self.has_namespaces:
            return []
        return [*NAMESPACES] if os.geteuid() == 0 else [*NAMESPACES, "--user", "--map-current-user"]

    def _works(self) -> bool:
        try:
            result = self.run("print(input())", "hello", SandboxLimits(wall_s=PROBE_S))
        except SandboxError:
            return False
        return result.succeeded and result.output == "hello\n"


def ended(process: subprocess.Popen[bytes], wall_s: float) -> int | None:
    """Return the exit code, or None if the time was up; its whole session is dead afterwards."""
    try:
        return process.wait(wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
