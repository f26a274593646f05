"""
Use of cores, of the whole machine and of the processes of a node. Linux counts that of the machine in /proc/stat, in
ticks since its start:

    cpu  user nice system idle iowait irq softirq steal guest guest_nice
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from asyncrl.processes import process_tree

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
    """Cores that this process and those below it use. Each look tells about the time since the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before_s, self._before = clock(), _cpu_seconds()

    def used(self) -> float:
        """Cores in use, on average; a process that has ended since the last look counts as none."""
        now_s, now = self._clock(), _cpu_seconds()
        used_s = sum(seconds - self._before.get(pid, 0.0) for pid, seconds in now.items())
        elapsed_s, self._before_s, self._before = now_s - self._before_s, now_s, now
        return used_s / elapsed_s if elapsed_s > 0 else 0.0


def _cpu_seconds() -> dict[int, float]:
    """CPU seconds of this process and of each below it, by process id."""
    own = os.getpid()
    return {own: time.process_time(), **{process.pid: process.cpu_s for process in process_tree.below(own)}}
