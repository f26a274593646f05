"""
Processes whose place another process of the same name has taken.

    older ─Hello─▶ broker ◀─Hello─ newer        older ◀─Reject─ broker        older ─Hello─▶ broker: refused again

Without it the two would displace each other for ever: a process that loses its session says Hello again.

What a process said before it was killed may arrive behind the Hello of its successor, if the broker's machine stood
still. Such a late Hello displaces nobody and gets no answer: its sender is gone, or gives up and starts again.
"""

from asyncrl.messages.session import Hello, process_of


class DisplacedBook:
    def __init__(self) -> None:
        self._processes: dict[str, str] = {}
        """The process that was displaced last, by the name of the node."""

    def joined(self, hello: Hello, earlier: list[str]) -> None:
        """A node was welcomed, which displaces the ``earlier`` incarnations of its name."""
        for process in map(process_of, earlier):
            if process and process != hello.process:
                self._processes[hello.node] = process
        if self._processes.get(hello.node) == hello.process:
            del self._processes[hello.node]

    def is_displaced(self, hello: Hello) -> bool:
        """True if another process took the place of the one that says Hello."""
        return bool(hello.process) and self._processes.get(hello.node) == hello.process


def is_late(incarnation: str, joined: str) -> bool:
    """True if the process that ``joined`` started after this one, another of its name, by clocks that may differ."""
    return process_of(incarnation) != process_of(joined) and _started(incarnation) < _started(joined)


def _started(incarnation: str) -> int:
    """Start in an incarnation, in units of its own; 0 if it does not tell."""
    try:
        return int(incarnation.partition("-")[0], 16)
    except ValueError:
        return 0


def displaced(name: str) -> str:
    """Reason for which a displaced process is refused."""
    return f"another process has joined as {name}, and takes its place: give each process another --name"
