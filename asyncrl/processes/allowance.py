"""Allowance of a worker's output: so much at once, and so much a second, whoever prints."""

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
