"""`asyncrl track`: sends the records of a run to a tracker, during the run or afterwards."""

import fcntl
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError
from asyncrl.observe.run_overview import require_run
from asyncrl.observe.trackers.catalogue import label, make_tracker
from asyncrl.observe.trackers.deadline import Deadline
from asyncrl.observe.trackers.follower import Follower

POLL_S = 1.0


def track(path: Path, name: str, overrides: Sequence[str], *, once: bool) -> None:
    """
    Send the records of a run to the tracker ``name``, from its cursor to the end of the run, or until SIGTERM.

    ``trackers.use`` need not contain the tracker. With ``once``, only the existing records are sent.
    Raises `ConfigError` if the run or the tracker does not exist, or another process sends the same run to it, and
    `TrackerError` if the tracker fails.
    """
    directory = require_run(path)
    config = load_config(directory.config, overrides).trackers
    tracker = make_tracker(name, config.options.get(name, {}))
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with _locked(directory.trackers / label(name), name):
        follower = Follower(directory, tracker, label(name), Deadline(config.timeout_s))
        follower.start()
        while not follower.advance():
            if once or stopping.wait(POLL_S):
                follower.leave()
                return


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another process already sends this run to {name!r}; wait until that process has ended"
            ) from None
        yield
