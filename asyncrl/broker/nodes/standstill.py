"""
Progress of a node that has work, judged from its heartbeats.

    progress grows, or nothing to compute ─▶ moving
    no progress, but its processes compute ─▶ moving, for ``stall_limit_s`` at most
    neither, for ``stall_s``               ─▶ stalled, until progress grows

A heartbeat says that a process lives, its ``progress`` that it works. A model may compute for minutes before its next
token, so what computes is not stalled; what neither computes nor progresses hangs, however regularly it beats.
"""

from asyncrl.config.sections.broker import Broker
from asyncrl.messages.session import Beat
from asyncrl.messages.words import Activity

AT_WORK: frozenset[Activity | str] = frozenset(("sampling", "swapping", "training", "checkpointing"))
"""Activities that end in progress. Transfers, turns at shared devices, environments and verdicts have deadlines."""
IDLE: frozenset[Activity | str] = frozenset(("idle", ""))
UNITS = {"sampling": "a token", "swapping": "an end", "training": "a micro-batch"}
"""Unit of progress by activity."""
COMPUTES = 0.05
"""Share of a core from which a node computes: one that only waits and beats uses about .01, a starved one more."""


class Standstill:
    """
    Progress of one node, which is stalled after ``stall_s`` with neither progress nor computation, and after
    ``stall_limit_s`` without progress.
    """

    def __init__(self, limits: Broker = Broker(), now_s: float = 0.0) -> None:  # noqa: B008  immutable
        self._notice_s, self._limit_s = limits.stall_s, limits.stall_limit_s
        self._moved_s = self._computed_s = self._active_s = now_s
        self._progress = -1
        self._doing = ""

    def heard(self, beat: Beat, now_s: float) -> None:
        """Note the progress and the activity that a heartbeat tells."""
        if beat.progress != self._progress or beat.doing != self._doing or beat.doing not in AT_WORK:
            self._moved_s = now_s
        if beat.cores >= COMPUTES:
            self._computed_s = now_s
        if beat.progress != self._progress or beat.cores >= COMPUTES or beat.doing not in IDLE:
            self._active_s = now_s
        self._progress, self._doing = beat.progress, beat.doing

    def excuse(self, seconds: float) -> None:
        """Ignore ``seconds`` in which no heartbeat could be heard."""
        self._moved_s += seconds
        self._computed_s += seconds
        self._active_s += seconds

    def seconds(self, now_s: float) -> float:
        """Seconds since the node made progress, or had nothing to compute."""
        return max(now_s - self._moved_s, 0.0)

    def idle_s(self, now_s: float) -> float:
        """Seconds in which no beat said that it does anything, whether it has work or not."""
        return max(now_s - self._active_s, 0.0)

    def is_stalled(self, now_s: float) -> bool:
        """True if the node has neither moved nor computed for ``stall_s``, or not moved for ``stall_limit_s``."""
        hangs = now_s - max(self._moved_s, self._computed_s) >= self._notice_s
        return hangs or self.is_over_limit(now_s)

    def is_over_limit(self, now_s: float) -> bool:
        """True if the node made no progress for ``stall_limit_s`` and must be replaced, whether it computes or not."""
        return self.seconds(now_s) >= self._limit_s

    def clause(self, now_s: float) -> str:
        """Activity without progress, such as ``sampling for 31 s without a token``."""
        return f"{self._doing} for {self.seconds(now_s):.0f} s without {UNITS.get(self._doing, 'progress')}"

    def sentence(self, now_s: float) -> str:
        """The clause of a stalled node, and whether it computes."""
        idle_s = max(now_s - max(self._moved_s, self._computed_s), 0.0)
        computes = (
            "though it computes" if idle_s < self._notice_s else f"and it has computed nothing for {idle_s:.0f} s"
        )
        return f"{self.clause(now_s)}, {computes}"
