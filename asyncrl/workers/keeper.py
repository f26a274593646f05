"""
``python -m asyncrl.workers.keeper``: the parent of one worker, which ends all that the worker starts.

    pool ──stdin, stdout──▶ worker ─┬─ child              the worker has the pool's pipes; the keeper only watches
      │                      │      └─ ...
      └────▶ keeper ◀─stderr─┘         daemon             orphans come to the keeper, which is a subreaper
                └────▶ stderr, within its allowance

It ends the worker and every process below itself if the pool closes the worker's stdin, if the process that started it
dies, if the worker exits, or if memory, processes or threads exceed their limits. Orphans are killed while the worker
lives, too. It then writes the cause to REPORT_FD and exits with code 0: any other code means that it was killed.

Arguments: REPORT_FD OUTPUT_BYTES SECTION MEMORY_BYTES PROCESSES FILE_BYTES CGROUP FOLDER FOLDER_FD COMMAND...

CGROUP and FOLDER may be empty. FOLDER is removed at the end; FOLDER_FD holds its lock (`folders`).
"""

import os
import re
import resource
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from asyncrl.workers import folders
from asyncrl.workers.folders import Process
from asyncrl.workers.printed import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, prctl

# ── allowance ─────────────────────────────────────────────────────────────────────────────────
# Allowance of a worker's output: so much at once, and so much a second, whoever prints.

AT_ONCE_BYTES = 64 << 10
PER_S_BYTES = 1 << 10
NOTE_BYTES = 256
"""Reserve for the line that tells what was cut."""
NOTE_EVERY_S = 60.0


def refilled(elapsed_s: float) -> int:
    """Bytes that a worker may print at once, ``elapsed_s`` after the one before it was started."""
    return int(min(AT_ONCE_BYTES, NOTE_BYTES + PER_S_BYTES * elapsed_s))


class OutputAllowance:
    """Counts what a worker may still print, and what was cut; times are seconds of any one clock."""

    def __init__(self, owner: str, at_once_bytes: int, now: float) -> None:
        self._owner = owner
        """Name of the worker in the line."""
        self._left = float(at_once_bytes)
        self._then = now
        self._cut = 0
        self._killed = 0
        self._next_note = now

    def admit(self, num_bytes: int, now: float) -> int:
        """Return how many of these bytes may be printed; the others count as cut."""
        self._left = min(float(AT_ONCE_BYTES), self._left + (now - self._then) * PER_S_BYTES)
        self._then = now
        admitted = min(num_bytes, max(0, int(self._left) - NOTE_BYTES))
        self._left -= admitted
        self._cut += num_bytes - admitted
        return admitted

    def dropped(self, num_bytes: int) -> None:
        """Count bytes that were admitted but could not be printed."""
        self._cut += num_bytes

    def killed(self, processes: int) -> None:
        """Count processes that the function left behind."""
        self._killed += processes

    def note(self, now: float, *, last: bool = False) -> str:
        """Return the line to print about what was cut or killed since the last one; empty if it is not its time."""
        facts = []
        if self._cut:
            facts.append(
                f"{self._cut:,} bytes of output were cut (allowed: {AT_ONCE_BYTES >> 10} KiB, then {PER_S_BYTES} B/s)"
            )
        if self._killed:
            facts.append(f"{self._killed} processes that the function left behind were killed")
        if not facts or self._left < NOTE_BYTES or (now < self._next_note and not last):
            return ""
        self._left -= NOTE_BYTES
        self._cut = self._killed = 0
        self._next_note = now + NOTE_EVERY_S
        return f"\n{self._owner}: {'; '.join(facts)}\n"


# ── cgroup ────────────────────────────────────────────────────────────────────────────────────
# A cgroup (version 2) for one worker, where this process may make one.
#
# The kernel keeps every process that a worker starts in it, however it detaches itself, and kills them all at once. A
# function that runs as root, or as the owner of the cgroup, can move its processes out.

MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
OWN = Path("/proc/self/cgroup")
NAME = re.compile(r"asyncrl-[a-z]+-[0-9a-f]{16}")
LEFT_S = 60.0
"""Age of a cgroup that no worker is about to join."""


def make(name: str, mounts: tuple[Path, ...] = MOUNTS, own: Path = OWN) -> Path | None:
    """Make a cgroup below that of this process; None without cgroups, permission, or ``cgroup.kill`` (Linux 5.14)."""
    with suppress(OSError):
        path = next(line[3:] for line in [*own.read_text().splitlines(), "0::"] if line.startswith("0::"))
        for mount in mounts:
            if path and (mount / "cgroup.controllers").exists():
                return _made(mount / path.lstrip("/") / name)
    return None


def join(cgroup: Path) -> None:
    """Move this process into the cgroup; it stays outside if it may not."""
    with suppress(OSError):
        (cgroup / "cgroup.procs").write_text("0")


def kill(cgroup: Path) -> None:
    with suppress(OSError):
        (cgroup / "cgroup.kill").write_text("1")


def remove(cgroup: Path) -> bool:
    """Remove the cgroup, and those that its processes made in it; False while a process in it still runs."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    return not cgroup.exists()


def remove_left(parent: Path, now_s: float) -> None:
    """Remove the cgroups that killed keepers have left, and that no process is in."""
    for cgroup in parent.glob("asyncrl-*"):
        with suppress(OSError):  # another user's, or removed by another start
            is_old = NAME.fullmatch(cgroup.name) and now_s - cgroup.stat().st_mtime > LEFT_S
            if is_old and "populated 0" in (cgroup / "cgroup.events").read_text():
                remove(cgroup)


def _made(cgroup: Path) -> Path | None:
    cgroup.mkdir()
    remove_left(cgroup.parent, time.time())
    if os.access(cgroup / "cgroup.kill", os.W_OK):
        return cgroup
    cgroup.rmdir()
    return None


# ── keeper ────────────────────────────────────────────────────────────────────────────────────

LOOK_S = 0.2
MAX_LOOK_S = 2.0
"""Seconds between two looks at the processes."""
LOOK_SHARE = 50
"""A look that takes t seconds of CPU time is followed by this many times t, within these bounds."""
END_S = 4.0
"""Seconds to kill everything; a process that the kernel cannot end by then is left to it."""
MAX_THREADS = 4096
"""Threads of all processes of a worker together."""
MAX_FILES = 4096
"""Open files of each process."""
CHUNK_BYTES = 1 << 16
MEMORY_KILLS_FIRST = b"1000"
"""``oom_score_adj``: if the machine runs out of memory, the kernel kills workers before brokers and trainers."""


class GuardLimits(NamedTuple):
    section: str
    """Section of the configuration that sets them, such as ``reward``; for messages."""
    memory_bytes: int
    processes: int
    file_bytes: int

    def problem_of(self, tree: list[Process]) -> str:
        """Return the limit that a worker's processes exceed; empty if they exceed none."""
        if len(tree) > self.processes:
            return (
                f"it had {len(tree)} processes, more than {self.section}.processes = {self.processes}, and was killed"
            )
        if (threads := sum(process.threads for process in tree)) > MAX_THREADS:
            return f"it had {threads} threads, more than {MAX_THREADS}, and was killed"
        if sum(process.resident_bytes for process in tree) <= self.memory_bytes:
            return ""
        if (held := folders.memory_bytes(tree)) <= self.memory_bytes:
            return ""
        limit = f"{self.section}.memory_bytes = {self.memory_bytes:,}"
        return f"it held {held:,} bytes of memory, more than {limit}, and was killed"

    @property
    def worker(self) -> str:
        return f"{self.section} worker"


def main() -> None:
    report, output_bytes = map(int, sys.argv[1:3])
    limits = GuardLimits(sys.argv[3], *map(int, sys.argv[4:7]))
    group = Path(sys.argv[7]) if sys.argv[7] else None
    folder = sys.argv[8]
    os.set_inheritable(report, False)
    if folder:
        os.set_inheritable(int(sys.argv[9]), False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_DUMPABLE, 0)  # the function may have the same user: it must not reach into this process
    wakeups = _wakeups()
    output, worker_stderr = os.pipe()
    worker = os.fork()
    if not worker:
        _become_worker(sys.argv[10:], worker_stderr, limits, group)
    os.close(worker_stderr)
    os.dup2(2, 1)  # the pool sees the end of the worker's stdout only if nobody else has it open
    allowance = OutputAllowance(limits.worker, output_bytes, time.monotonic())
    keeper = Keeper(worker, output, wakeups, limits, allowance)
    reason = keeper.watch()
    keeper.end(group)
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os.write(report, reason.encode())


class Keeper:
    """Watches a worker until it must end, and ends it."""

    def __init__(self, worker: int, output: int, wakeups: int, limits: GuardLimits, allowance: OutputAllowance) -> None:
        self._worker = worker
        self._output = output
        self._wakeups = wakeups
        self._limits = limits
        self._allowance = allowance
        self._terminated = False
        self._exit: int | None = None
        """Exit code of the worker; negative: the signal that killed it."""
        os.set_blocking(output, False)

    def watch(self) -> str:
        """Return the cause, once the worker has ended or must end; empty if this was asked for."""
        events = select.poll()
        events.register(0, 0)  # only a hang-up is reported: the worker alone reads
        events.register(self._output, select.POLLIN)
        events.register(self._wakeups, select.POLLIN)
        look_at = time.monotonic() + LOOK_S
        while True:
            for fd, event in events.poll(max(0.0, look_at - time.monotonic()) * 1000):
                if fd == 0:
                    return ""
                if fd == self._wakeups:
                    self._terminated |= signal.SIGTERM in os.read(fd, 4096)
                elif not self._relay() and event & select.POLLHUP:
                    events.unregister(fd)
            self._reap()
            if self._terminated or self._exit is not None:
                return "" if self._exit is None else _ended(self._exit)
            if time.monotonic() >= look_at:
                begun = time.process_time()
                if problem := self._look():
                    return problem
                pause_s = LOOK_SHARE * (time.process_time() - begun)
                look_at = time.monotonic() + min(max(pause_s, LOOK_S), MAX_LOOK_S)

    def end(self, group: Path | None) -> None:
        """Kill everything below this process; print the last output."""
        deadline = time.monotonic() + END_S
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._worker, signal.SIGKILL)
        while self._reap() and time.monotonic() < deadline:
            if group:
                kill(group)
            folders.kill([process.pid for process in folders.below(os.getpid())])
            time.sleep(0.001)
        if group:
            remove(group)
        while self._relay():
            pass
        self._print(self._allowance.note(time.monotonic(), last=True).encode())

    def _look(self) -> str:
        """Kill orphans; return the limit that was exceeded, if any."""
        tree = folders.below(os.getpid())
        if orphans := [
            process.pid for process in tree if process.parent == os.getpid() and process.pid != self._worker
        ]:
            folders.kill(orphans)
            self._allowance.killed(len(orphans))
        self._print(self._allowance.note(time.monotonic()).encode())
        return self._limits.problem_of(tree)

    def _reap(self) -> bool:
        """Collect exit codes; return True while this process has children."""
        try:
            while (exited := os.waitpid(-1, os.WNOHANG))[0]:
                if exited[0] == self._worker:
                    self._exit = os.waitstatus_to_exitcode(exited[1])
        except ChildProcessError:
            return False
        return True

    def _relay(self) -> int:
        """Print what the worker has printed, within the allowance; return the number of bytes read."""
        try:
            chunk = os.read(self._output, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self._print(chunk[: self._allowance.admit(len(chunk), time.monotonic())])
        return len(chunk)

    def _print(self, text: bytes) -> None:
        """Write to stderr, unless its reader is too slow: a full pipe must not hold up the watch."""
        ready = select.poll()
        ready.register(2, select.POLLOUT)
        for start in range(0, len(text), select.PIPE_BUF):
            if not any(event & select.POLLOUT for _, event in ready.poll(0)):
                self._allowance.dropped(len(text) - start)
                return
            with suppress(OSError):
                os.write(2, text[start : start + select.PIPE_BUF])


def _become_worker(command: list[str], output: int, limits: GuardLimits, group: Path | None) -> NoReturn:
    try:
        os.setsid()
        os.dup2(output, 2)
        if group:
            join(group)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_bytes(MEMORY_KILLS_FIRST)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
        _limit(resource.RLIMIT_NOFILE, MAX_FILES)
        os.execv(command[0], command)
    except BaseException as error:  # noqa: BLE001  nothing may return from here: this is a copy of the keeper
        os.write(2, f"{limits.worker}: {error}\n".encode())
    os._exit(127)


def _limit(kind: int, amount: int) -> None:
    """Lower a limit; a hard limit that is lower already is kept."""
    _, hard = resource.getrlimit(kind)
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (amount, amount))


def _wakeups() -> int:
    """Pipe that becomes readable when a child exits, or when this process is to end."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return reader


def _ended(code: int) -> str:
    return (
        f"it exited with code {code}" if code >= 0 else f"it was killed by signal {-code} ({signal.strsignal(-code)})"
    )


if __name__ == "__main__":
    main()
