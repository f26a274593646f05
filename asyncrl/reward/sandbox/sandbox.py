"""
Sandbox for hostile programs: the policy is rewarded for what they print.

    worker ──▶ unshare ──▶ jail.py ──▶ python program.py          a session of its own, killed whole
               namespaces  limits      in an empty folder, with an empty environment

Always guaranteed: limits on CPU time, wall time, address space, size of each file and number of processes; the program
sees no environment variable of this process; its folder is removed; its session is killed in any case.

Guaranteed with namespaces, if the kernel permits them (`Sandbox.find` tries): no network, not even loopback; every
process the program started is dead when `run` returns, even one that left the session.

If this process is root: with namespaces the program runs as nobody, if nobody may run the interpreter (an interpreter
below root's home often forbids it). Otherwise it runs as root, whose processes the kernel does not limit. If this
process is an ordinary user, so is the program.

Not guaranteed: the program reads and writes every file that its user can, in any number. So run reward nodes as a user,
or in a container, that can do no harm. Bugs of the kernel are out of scope.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.sandbox.jail import READY

JAIL = Path(__file__).with_name("jail.py")
NOBODY = 65534
"""User and group id of nobody, by convention on Linux."""
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child")
"""
Commands of util-linux. If worker or unshare dies, the jail dies too; it is the first process of its namespace, so the
kernel then kills all others there.
"""
PROBE_S = 10.0


class Limits(Struct, frozen=True, kw_only=True):
    cpu_s: int = 4
    wall_s: float = 8.0
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    file_bytes: int = 1 << 20
    """Size of each file, and of stdout."""
    processes: int = 64
    """Concurrent processes of the program's user, threads included; no limit for root."""


class ProgramResult(Struct, frozen=True, kw_only=True):
    output: str
    """Stdout; bytes that are not UTF-8 are replaced."""
    succeeded: bool
    """It exited in time with code 0."""


class Sandbox(Struct, frozen=True, kw_only=True):
    has_namespaces: bool
    user_id: int = 0
    """User id to run as; 0 keeps the current user."""
    python: str = sys.executable

    @classmethod
    def find(cls, python: str = sys.executable) -> "Sandbox | None":
        """Return the strictest sandbox that works on this machine; None if none does."""
        candidates = [cls(has_namespaces=True, python=python), cls(has_namespaces=False, python=python)]
        if os.geteuid() == 0:
            candidates.insert(0, cls(has_namespaces=True, user_id=NOBODY, python=python))
        return next((sandbox for sandbox in candidates if sandbox._works()), None)

    def run(self, program: str, stdin: str, limits: Limits) -> ProgramResult:
        """Run a program, blocking; raises a retryable `VerifierError` if it cannot be started."""
        with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
            outside = Path(name)
            (folder := outside / "home").mkdir()
            (folder / "program.py").write_bytes(program.encode("utf-8", "replace"))
            (outside / "stdin").write_bytes(stdin.encode("utf-8", "replace"))
            if self.user_id:
                outside.chmod(0o711)
                os.chown(folder, self.user_id, self.user_id)
            succeeded = self._run(outside, folder, limits)
            output = (outside / "stdout").read_bytes().decode("utf-8", "replace")
            return ProgramResult(output=output, succeeded=succeeded)

    def _run(self, outside: Path, folder: Path, limits: Limits) -> bool:
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
                    stderr=subprocess.DEVNULL,
                    pass_fds=(ready,),
                    start_new_session=True,
                )
            except OSError as error:
                raise VerifierError(
                    f"the sandbox cannot start {error.filename}: {error.strerror}", retryable=True
                ) from error
            finally:
                os.close(ready)
            code = _end(process, limits.wall_s)
            message = ready_file.read()
        if message != READY:
            reason = message.decode("utf-8", "replace") or f"exit code {code}"
            raise VerifierError(f"the sandbox could not start a program: {reason}", retryable=True)
        return code == 0

    def _command(self, folder: Path, limits: Limits, ready: int) -> list[str]:
        prefix = list(NAMESPACES) if self.has_namespaces else []
        if self.has_namespaces and os.geteuid() != 0:
            prefix += ["--user", "--map-current-user"]
        numbers = (self.user_id, limits.cpu_s, limits.memory_bytes, limits.file_bytes, limits.processes, ready)
        return [*prefix, self.python, "-I", "-S", str(JAIL), str(folder), *map(str, numbers)]

    def _works(self) -> bool:
        try:
            result = self.run("print(input())", "hello", Limits(wall_s=PROBE_S))
        except VerifierError:
            return False
        return result.succeeded and result.output == "hello\n"


def _end(process: "subprocess.Popen[bytes]", wall_s: float) -> int | None:
    """Return the exit code, or None if the time was up; its whole session is dead afterwards."""
    try:
        return process.wait(wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
