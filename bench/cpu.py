"""
CPU time and memory of a process and its descendants, read from /proc while they run (Linux only).

Other load on the machine changes CPU time much less than wall time. Memory that processes share counts once.
"""

import os
import re
import threading
from bisect import bisect_left, bisect_right
from itertools import count
from pathlib import Path
from time import monotonic
from types import TracebackType

EVERY_S = 0.1
MEMORY_EVERY = 10
"""Samples of CPU time for one of memory, which makes the kernel walk all pages."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PARENT, USER, SYSTEM = 1, 11, 12
"""Indices of fields in /proc/PID/stat after the parenthesised command name."""


class CpuWatch:
    """Context manager that samples the CPU time of a process and all its descendants ten times per second."""

    def __init__(self, pid: int) -> None:
        self._root = pid
        self._points: dict[int, list[tuple[float, float]]] = {}
        """(time, total CPU seconds) samples by process id."""
        self._names: dict[int, str] = {}
        self._memory: list[tuple[float, int]] = []
        """(time, bytes of all processes) samples."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "CpuWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def used(self, start_s: float, end_s: float) -> dict[str, float]:
        """CPU seconds by process name between two `time.monotonic` times, without processes that used none."""
        found: dict[str, float] = {}
        for pid, points in self._points.items():
            name = self._names[pid]
            first = max(bisect_right(points, (start_s, 0.0)) - 1, 0)
            last = min(bisect_left(points, (end_s, 0.0)), len(points) - 1)
            found[name] = found.get(name, 0.0) + max(points[last][1] - points[first][1], 0.0)
        return {name: seconds for name, seconds in found.items() if seconds}

    def most_memory(self, start_s: float, end_s: float) -> int:
        """Most bytes that all processes had together between two `time.monotonic` times; 0 if none was sampled."""
        return max((taken for at_s, taken in self._memory if start_s <= at_s <= end_s), default=0)

    def _watch(self) -> None:
        for number in count():
            if self._ended.wait(EVERY_S):
                return
            now_s, stats = monotonic(), _stats()
            family = _family(self._root, stats)
            if number % MEMORY_EVERY == 0:
                self._memory.append((now_s, sum(map(_memory, family))))
            for pid in family:
                used_s = (int(stats[pid][USER]) + int(stats[pid][SYSTEM])) / TICKS_PER_S
                self._points.setdefault(pid, []).append((now_s, used_s))
                # Read at every sample: before exec, a forked child has the command line of its parent.
                self._names[pid] = _name(pid) or self._names.get(pid, "")


def _stats() -> dict[int, list[str]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has just ended
                continue
    return found


def _family(root: int, stats: dict[int, list[str]]) -> set[int]:
    family = {root} & stats.keys()
    while more := {pid for pid, fields in stats.items() if int(fields[PARENT]) in family} - family:
        family |= more
    return family


def _memory(pid: int) -> int:
    """Bytes of a process, with its share of the pages that others have too; 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # the process has just ended
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _name(pid: int) -> str:
    """Value of ``--name`` on the command line, else the module after ``-m``, else "child"; empty if it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:  # the process has just ended
        return ""
    if not any(words):  # a zombie has an empty command line
        return ""
    if "--name" in words:
        return words[words.index("--name") + 1]
    return next((words[i + 1] for i, word in enumerate(words) if word == "-m"), "child")
