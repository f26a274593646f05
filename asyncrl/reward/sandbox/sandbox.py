"""
Runs a program that was written by somebody who is paid for what it prints.

    worker ──▶ unshare ──▶ jail.py ──▶ python program.py          a session of its own, killed whole
               walls       limits      in an empty folder, with an empty environment

What holds everywhere: CPU time, address space, size of each file, processes and time by the clock are limited; the
program sees no variable of ours; its folder is removed; its session is killed, whatever happened.

What holds inside walls, which the kernel gives or not (`Sandbox.find` tries): no network, not even loopback, and
everything the program started is dead when `run` returns, also what has left the session.

What holds if we are root: inside walls the program is nobody, if nobody may run the interpreter; a home of root's often
forbids it. Otherwise the program is root, for whom the kernel counts no processes. An ordinary user's program is that
user.

What does not hold: it reads every file that its user can, and writes where its user can, in as many files as fit. So
run reward nodes as a user, or in a container, that can do no harm. Holes in the kernel are beyond this.
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
"""User and group, by Linux' custom."""
WALLS = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child")
"""
Of util-linux. Whoever dies first of worker, unshare and jail, the jail dies too; it is the first process of its
namespace, so the kernel kills all others there.
"""
PROBE_S = 10.0


class Limits(Struct, frozen=True, kw_only=True):
    """What one run of a program may use."""

    cpu_s: int = 4
    wall_s: float = 8.0
    """By the clock: for programs that wait."""
    memory_bytes: int = 1 << 30
    """Address space of each process."""
    file_bytes: int = 1 << 20
    """Each file, and what is printed."""
    processes: int = 64
    """Of its user at once, threads included; for root, none."""


class Ran(Struct, frozen=True, kw_only=True):
    """What became of a program."""

    output: str
    """On stdout; bytes that are not UTF-8 are replaced."""
    succeeded: bool
    """It ended by itself, with exit code 0."""


class Sandbox(Struct, frozen=True, kw_only=True):
    """A way of running programs on this machine."""

    walls: bool
    """Namespaces around it."""
    user_id: int = 0
    """Whom the program becomes; 0 stays who we are."""
    python: str = sys.executable
    """Interpreter of the program."""

    @classmethod
    def find(cls, python: str = sys.executable) -> "Sandbox | None":
        """The strictest that works here; None if even the plainest does not."""
        candidates = [cls(walls=True, python=python), cls(walls=False, python=python)]
        if os.geteuid() == 0:
            candidates.insert(0, cls(walls=True, user_id=NOBODY, python=python))
        return next((sandbox for sandbox in candidates if sandbox._works()), None)

    def run(self, program: str, stdin: str, limits: Limits) -> Ran:
        """
        What a Python program makes of an input. Blocks.

        Raises:
            VerifierError: It could not be started; another try may.
        """
        with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
            outside = Path(name)
            (folder := outside / "home").mkdir()
            (folder / "program.py").write_bytes(program.encode("utf-8", "replace"))
            (outside / "stdin").write_bytes(stdin.encode("utf-8", "replace"))
            if self.user_id:
                outside.chmod(0o711)
                os.chown(folder, self.user_id, self.user_id)
            succeeded = self._run(outside, folder, limits)
            return Ran(output=(outside / "stdout").read_bytes().decode("utf-8", "replace"), succeeded=succeeded)

    def _run(self, outside: Path, folder: Path, limits: Limits) -> bool:
        begun, ready = os.pipe()
        with (
            os.fdopen(begun, "rb") as begun_file,
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
            said = begun_file.read()
        if said != READY:
            why = said.decode("utf-8", "replace") or f"exit code {code}"
            raise VerifierError(f"the sandbox could not begin a program: {why}", retryable=True)
        return code == 0

    def _command(self, folder: Path, limits: Limits, ready: int) -> list[str]:
        """What is started, outermost first."""
        walls = list(WALLS) if self.walls else []
        if self.walls and os.geteuid() != 0:
            walls += ["--user", "--map-current-user"]
        numbers = (self.user_id, limits.cpu_s, limits.memory_bytes, limits.file_bytes, limits.processes, ready)
        return [*walls, self.python, "-I", "-S", str(JAIL), str(folder), *map(str, numbers)]

    def _works(self) -> bool:
        """Whether it runs a program here."""
        try:
            ran = self.run("print(input())", "hello", Limits(wall_s=PROBE_S))
        except VerifierError:
            return False
        return ran.succeeded and ran.output == "hello\n"


def _end(process: "subprocess.Popen[bytes]", wall_s: float) -> int | None:
    """Its exit code, or None if it had to be killed; nothing of its session is alive afterwards."""
    try:
        return process.wait(wall_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
