"""Linux namespaces that live as long as their first process, and commands that run inside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNSHARE = ("unshare", "--net", "--uts", "--mount", "--pid", "--ipc", "--fork", "--propagation", "private")
START_S = 30.0
LOOK_S = 0.02


class CommandFailed(AssertionError):
    """A command inside a namespace failed; the message has its output."""


class Process:
    """
    A command whose output is appended to a file.

    Args:
        command: nsenter or unshare and what they start, which is the process that gets signals.
        owned: The process is told by the end of its standard input that nobody needs it, however its owner ended.
    """

    def __init__(self, command: Sequence[str], log: Path, *, owned: bool = False) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._begins = output.tell()
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if owned else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
            )

    @property
    def pid(self) -> int:
        """Id of the process inside, as seen from outside; raises `ProcessLookupError` if it has ended."""
        pid = self._popen.pid
        while self._popen.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):
                if children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    return int(children[0])
            time.sleep(LOOK_S)
        raise ProcessLookupError(f"{self.log.name} has ended: {self.last_lines()}")

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self, seconds: float) -> int:
        """Exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        return self._popen.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def until_ready(self) -> None:
        """Wait until it prints ``ready``; raises `CommandFailed` if it ends before."""
        deadline_s = time.monotonic() + START_S
        while "ready" not in self.output().split():
            if self._popen.poll() is not None or time.monotonic() > deadline_s:
                raise CommandFailed(f"{self.log.name} did not start: {self.last_lines()}")
            time.sleep(LOOK_S)

    def end(self) -> None:
        """Kill what is left of it, and wait for its end."""
        if self._popen.poll() is None:
            with suppress(ProcessLookupError):  # It ended in between.
                self.signal(signal.SIGKILL)
            self._popen.wait(START_S)
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def finish(self, seconds: float = 5.0) -> None:
        """Close the standard input of an `owned` process, wait for its end, and kill it if it takes longer."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)
        self.end()

    def output(self) -> str:
        """Everything that this process has written to its log."""
        return self.log.read_bytes()[self._begins :].decode(errors="replace")

    def last_lines(self, count: int = 20) -> str:
        return "\n".join(self.output().splitlines()[-count:])


class Namespace:
    """
    Namespaces of the network, host name, file system and processes; killing `init` ends everything inside.

    Args:
        log: Output of `init`.
        init: Command of the first process. It prints ``ready``, and ends when its standard input does.
    """

    def __init__(self, log: Path, init: Sequence[str]) -> None:
        self._init = Process([*UNSHARE, *init], log, owned=True)
        self._init.until_ready()
        self.pid = self._init.pid
        """Of the first process, as seen from outside: the name of the namespaces."""

    def entered(self, command: Sequence[str], environment: Mapping[str, str], folder: str = "/") -> list[str]:
        """The command line that runs ``command`` inside."""
        settings = [f"{key}={value}" for key, value in environment.items()]
        enter = ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid", "--ipc"]
        return [*enter, "env", "-i", "-C", folder, *settings, *command]

    def ip(self, *arguments: str) -> None:
        """Configure the network inside; process ids in ``arguments`` are those seen from outside."""
        run(["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *arguments])

    def kill(self) -> None:
        self._init.end()


def run(command: Sequence[str], seconds: float = 60.0) -> str:
    """
    Standard output of a command.

    Raises:
        CommandFailed: It failed, or took more than ``seconds``.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)  # nsenter alone would leave the command behind.
            raise CommandFailed(f"{' '.join(command)} took more than {seconds:g} s") from error
    if process.returncode:
        raise CommandFailed(f"{' '.join(command)} ended with {process.returncode}: {errors}{output}")
    return output


def python(module: str, *arguments: str) -> list[str]:
    """Command line of a module of this repository."""
    return [sys.executable, "-m", module, *arguments]
