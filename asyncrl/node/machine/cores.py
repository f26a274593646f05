"""
Use of cores, as Linux counts it in ticks: of the whole machine in /proc/stat, since its start,

    cpu  user nice system idle iowait irq softirq steal guest guest_nice

and of each process in /proc/PID/stat, where the 14th and 15th fields are its time in user and system mode.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

STAT = Path("/proc/stat")
COUNTED = slice(1, 9)
"""Columns that add up to all ticks; those of guests are in ``user`` and ``nice`` already."""
IDLE = slice(4, 6)


class Cores:
    """Each look tells about the time since the one before."""

    def __init__(self, path: Path = STAT) -> None:
        self._path = path
        self._before = self._ticks()
        self._busy = 0.0

    def busy(self) -> float:
        """Share of the time of all cores in which they were busy; 0 where the system does not tell."""
        idle, total = self._ticks()
        before_idle, before_total = self._before
        if total > before_total:  # Otherwise no tick has passed.
            self._busy = min(max(1 - (idle - before_idle) / (total - before_total), 0.0), 1.0)
            self._before = idle, total
        return self._busy

    def _ticks(self) -> tuple[int, int]:
        """Idle ticks and all ticks."""
        try:
            columns = self._path.read_text(encoding="ascii").partition("\n")[0].split()
        except OSError:
            return 0, 0
        return sum(map(int, columns[IDLE])), sum(map(int, columns[COUNTED]))


class OwnCores:
    """Cores that this process and those it started use. Each look tells about the time since the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        self._clock, self._proc = clock, proc
        self._before_s, self._before = clock(), self._seconds()

    def used(self) -> float:
        """Cores in use, on average; a process that has ended since then counts as none."""
        now_s, now = self._clock(), self._seconds()
        used_s = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in now.items())
        elapsed_s, self._before_s, self._before = now_s - self._before_s, now_s, now
        return used_s / elapsed_s if elapsed_s > 0 else 0.0

    def _seconds(self) -> dict[int, float]:
        """CPU seconds of each process, by its id. Without /proc those of this one alone."""
        found = {os.getpid(): time.process_time()}
        waiting = self._children(os.getpid())
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(OSError, ValueError, IndexError):  # It may end meanwhile.
                fields = (self._proc / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                waiting += self._children(pid)
        return found

    def _children(self, pid: int) -> list[int]:
        """Processes that any thread of a process has started."""
        children: list[int] = []
        with contextlib.suppress(OSError, ValueError):
            for listed in (self._proc / str(pid) / "task").glob("*/children"):
                children += map(int, listed.read_text(encoding="ascii").split())
        return children
