"""
CPU time and memory of a process and its descendants, read from /proc while they run (Linux only).

Other load on the machine changes CPU time much less than wall time. Memory that processes share counts once.
"""

import threading
from bisect import bisect_left, bisect_right
from itertools import count
from pathlib import Path
from time import monotonic
from types import TracebackType

from asyncrl.workers import folders

EVERY_S = 0.1
MEMORY_EVERY = 10
"""Samples of CPU time for one of memory, which makes the kernel walk all pages."""


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
        """Most bytes that all processes had together between two `time.monotonic` times, and in the samples around."""
        times_s = [at_s for at_s, _ in self._memory]
        first, last = max(bisect_right(times_s, start_s) - 1, 0), bisect_left(times_s, end_s)
        return max(taken for _, taken in self._memory[first : last + 1])

    def _watch(self) -> None:
        for number in count():
            if self._ended.wait(EVERY_S):
                return
            now_s, family = monotonic(), folders.family(self._root)
            if number % MEMORY_EVERY == 0:
                self._memory.append((now_s, folders.memory_bytes(family)))
            for process in family:
                pid = process.pid
                self._points.setdefault(pid, []).append((now_s, process.cpu_s))
                # Read at every sample: before exec, a forked child has the command line of its parent.
                self._names[pid] = _name(pid) or self._names.get(pid, "")


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
