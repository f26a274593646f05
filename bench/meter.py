"""Measures the delivery rate at a consumer and the CPU time of the middle process."""

import os
import time
from pathlib import Path

from msgspec import Struct

WARM_UP_S = 0.5
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Rate(Struct, frozen=True):
    """Delivery rate at one consumer."""

    trajectories_per_s: float
    mb_per_s: float
    middle_cpu_us: float
    """CPU microseconds per trajectory of the middle process, all threads."""


class Meter:
    """
    Counts deliveries for ``seconds``, starting `WARM_UP_S` after the first delivery.

    Args:
        seconds: Duration of the measurement.
        middle_pid: The process that queues, stores or relays.
    """

    def __init__(self, seconds: float, middle_pid: int) -> None:
        self._seconds = seconds
        self._pid = middle_pid
        self._starts_s = 0.0
        self._is_counting = False
        self._num = 0
        self._bytes = 0
        self._cpu_s = 0.0
        self.rate: Rate | None = None
        """Set at the end of the measurement."""

    def add(self, num: int, num_bytes: int) -> None:
        """Record the delivery of ``num`` trajectories."""
        now_s = time.perf_counter()
        self._starts_s = self._starts_s or now_s + WARM_UP_S
        if self._is_counting:
            self._num += num
            self._bytes += num_bytes
            if now_s - self._starts_s >= self._seconds and self.rate is None:
                self.rate = self._read(now_s - self._starts_s)
        elif now_s >= self._starts_s:
            self._is_counting = True
            self._starts_s, self._cpu_s = now_s, cpu_s(self._pid)

    def _read(self, seconds: float) -> Rate:
        spent_us = (cpu_s(self._pid) - self._cpu_s) * 1e6
        return Rate(self._num / seconds, self._bytes / seconds / 1e6, spent_us / max(self._num, 1))


def cpu_s(pid: int) -> float:
    """Total CPU seconds of a process: user and system time, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
