"""
Share of busy cores of this machine, as Linux counts it in /proc/stat, in ticks since the start of the machine:

    cpu  user nice system idle iowait irq softirq steal guest guest_nice
"""

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
