"""
Sources of a process's samples: each actor is read at the moment of a scrape, and counts nothing for it.

    run_process ─ collect_in(sources) ─▶ tasks of the process ─ read_from(actor.metrics) ─▶ sources ─▶ scrape

As with the service manager, an actor inside a host is read by nobody, unless the host calls its `metrics`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from asyncrl.observe.metrics.table import Sample

Source = Callable[[], Iterable[Sample]]


class Sources:
    """The functions that a scrape calls, in the event loop. One actor may come after another of the same kind."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def __iter__(self) -> Iterator[Sample]:
        for source in self._sources:
            yield from source()

    @contextmanager
    def reading(self, source: Source) -> Iterator[None]:
        """Read ``source`` too, for the time of the block."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)


_current: ContextVar[Sources | None] = ContextVar("sources", default=None)


def collect_in(sources: Sources) -> None:
    """Have this task, and all tasks that it starts, add what they run to ``sources``."""
    _current.set(sources)


@contextmanager
def read_from(source: Source) -> Iterator[None]:
    """Let the scrapes of this process, if there are any, read ``source`` for the time of the block."""
    if (sources := _current.get()) is None:
        yield
        return
    with sources.reading(source):
        yield
