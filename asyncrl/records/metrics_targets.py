"""
The address of a process's metrics as a file that Prometheus discovers: ``file_sd_configs`` with ``FOLDER/*.json``.

    start, run known       RUN.NODE.json, with the label run
    start, run not known   NODE.json ─ the broker's welcome names the run ─▶ RUN.NODE.json

Each process has a file of its own, so that none waits for another, and removes it when it ends. Prometheus allows ``*``
in the last part of a path alone: for the runs of a machine to be found by one pattern, their files are in one folder.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing
from asyncrl.log import get_logger
from asyncrl.records.metrics import Sample

log = get_logger()


class Target:
    """
    The file of one process. A process's samples have its role and node themselves; the label ``run`` tells the runs of
    one Prometheus apart.
    """

    def __init__(self, folder: Path, node: str, address: str) -> None:
        self.path: Path | None = None
        """The file; None while there is none."""
        self._folder = folder
        self._node = node
        self._address = address

    def write(self, run: str) -> None:
        """
        Write the file for a process of ``run``, in place of the one before; an empty ``run`` is one not known yet.

        Raises:
            ConfigError: The file cannot be written.
        """
        path = self._folder / f"{f'{run}.' if run else ''}{self._node}.json"
        target = {"targets": [self._address], "labels": {"run": run} if run else {}}
        try:
            with replacing(path, durable=False) as unfinished:
                unfinished.write_text(json.dumps([target]) + "\n")
                unfinished.chmod(0o600 | path.parent.stat().st_mode & 0o044)  # Whoever may list the folder may read it.
        except OSError as error:
            raise ConfigError(f"cannot write {path}, which tells Prometheus of this node: {error.strerror}") from error
        if self.path != path:
            self.remove()
            self.path = path

    def remove(self) -> None:
        if self.path:
            self.path.unlink(missing_ok=True)
            self.path = None


_current: ContextVar[Target | None] = ContextVar("target", default=None)


@contextmanager
def discoverable(folder: Path, run: str, node: str, address: str) -> Iterator[Target]:
    """
    Name ``address``, HOST:PORT, in a file of ``folder`` for the time of the block. Yields the target, which
    `belongs_to` changes from this task, and from all tasks that it starts.

    Raises:
        ConfigError: The file cannot be written.
    """
    target = Target(folder, node, address)
    target.write(run)
    _current.set(target)
    try:
        yield target
    finally:
        _current.set(None)
        target.remove()


def belongs_to(run: str) -> None:
    """Tell Prometheus, if it is told of this process, the name of its run. A failure leaves the file as it is."""
    if (target := _current.get()) is None:
        return
    try:
        target.write(run)
    except ConfigError as error:
        log.warning("metrics.target_kept", cause=str(error))


# ── sources ───────────────────────────────────────────────────────────────────────────────────
# Sources of a process's samples: each actor is read at the moment of a scrape, and counts nothing for it.
#
#     run_process ─ collect_in(sources) ─▶ tasks of the process ─ read_from(actor.metrics) ─▶ sources ─▶ scrape
#
# As with the service manager, an actor inside a host is read by nobody, unless the host calls its `metrics`.

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


_current_lines: ContextVar[Sources | None] = ContextVar("sources", default=None)


def collect_in(sources: Sources) -> None:
    """Have this task, and all tasks that it starts, add what they run to ``sources``."""
    _current_lines.set(sources)


@contextmanager
def read_from(source: Source) -> Iterator[None]:
    """Let the scrapes of this process, if there are any, read ``source`` for the time of the block."""
    if (sources := _current_lines.get()) is None:
        yield
        return
    with sources.reading(source):
        yield
