"""`asyncrl track`: one tracker follows one run, beside it or long after."""

import fcntl
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.run_file import load
from asyncrl.errors import ConfigError
from asyncrl.observe.run_directory import RunDirectory
from asyncrl.observe.trackers.catalogue import label, make_tracker
from asyncrl.observe.trackers.deadline import Deadline
from asyncrl.observe.trackers.follower import Follower

POLL_S = 1.0


def track(path: Path, name: str, overrides: Sequence[str], *, once: bool) -> None:
    """
    Hand the run over to a tracker, from where it was left to the end of the run, or until SIGTERM.

    Args:
        path: The run directory.
        name: As in ``trackers.use``, which need not have it.
        once: Do not wait for more than there is.

    Raises:
        ConfigError: There is no such run or tracker, or another process does this already.
        TrackerError: The tracker raised or hung.
    """
    directory = RunDirectory(path)
    config = load(directory.config, overrides).trackers
    tracker = make_tracker(name, config.options.get(name, {}))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with _alone(directory.trackers / label(name), name):
        follower = Follower(directory, tracker, label(name), Deadline(config.timeout_s))
        follower.start()
        while not follower.advance():
            if once or stopping.wait(POLL_S):
                follower.leave()
                return


@contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process hands this run over to {name!r} already; wait until it has ended"
            ) from None
        yield
