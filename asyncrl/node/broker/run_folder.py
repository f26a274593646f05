"""
The run directory of a broker: created or continued by the same command, and used by one broker at a time.

    lock ─▶ no config.toml: a new run, with a secret ─▶ serve
         └▶ config.toml: the run continues, unless it is complete
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from asyncrl.config.changes import changed
from asyncrl.config.config import Config
from asyncrl.config.resolve import with_absolute_paths, with_backend
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.errors import ConfigError
from asyncrl.files.access import make_folder
from asyncrl.files.disk import needed
from asyncrl.files.lock import locked
from asyncrl.files.secret_file import new_secret, read_secret, write_secret
from asyncrl.log import get_logger
from asyncrl.node.broker.origin import disown, original_of
from asyncrl.observe.run_directory import RunDirectory

log = get_logger()

LOCK_WAIT_S = 10.0
"""Time for an earlier broker of the run to end: one whose supervisor was killed notices within seconds."""


class RunFolder(Struct, frozen=True):
    """A run directory that this process holds."""

    directory: RunDirectory
    config: Config
    secret: bytes
    secret_file: Path


@contextmanager
def held_run(path: Path, config: Config, secret_file: Path | None = None) -> Iterator[RunFolder]:
    """
    Create the run in ``path``, or continue it. Nothing is changed before the lock is held.

    Args:
        config: Of a new run. For an existing run it may differ in what `asyncrl.config.changes` allows.
        secret_file: Secret to use; None takes the run's own, which is made with the run.

    Raises:
        LinkError: Another broker serves this run.
        ConfigError: The folder holds something else than a run, ``config`` is not that of the run, or another user
            could have written the one that is recorded.
        RunFailed: The disk refuses a write.
    """
    with needed(path), suppress(FileExistsError):
        make_folder(path, group_reads=config.run.share_with_group)
    served = f"another broker serves the run in {path}"
    with locked(RunDirectory(path).lock, served, LOCK_WAIT_S, remedy="stop it, or give another --run-dir"):
        directory = RunDirectory(path)
        if was_open := directory.close(group_reads=config.run.share_with_group):
            log.warning("run.was_open", cause=was_open)
        if original_of(directory):  # Told when its ledger is opened.
            disown(directory)
        config = with_backend(with_absolute_paths(config, Path.cwd()))
        if directory.config.is_file():
            if changed(load_config(directory.config), config):
                directory.write_config(to_toml(config))
        else:
            _require_no_files(path)
            directory.write_config(to_toml(config))
        secret_file = secret_file or _own_secret(directory)
        yield RunFolder(RunDirectory.reopen(path), config, read_secret(secret_file), secret_file)


def is_complete(path: Path, config: Config) -> bool:
    """True if the run in ``path`` has made all steps of ``config``."""
    summary = RunDirectory(path).finished_summary()
    return summary is not None and summary.steps >= config.run.steps


def _require_no_files(path: Path) -> None:
    if others := sorted({item.name for item in path.iterdir()} - {"broker.lock", "secret", "key", "logs", "metrics"}):
        raise ConfigError(
            f"{path} has files ({', '.join(others[:3])}), but no config.toml of a run: give another --run-dir"
        )


def _own_secret(directory: RunDirectory) -> Path:
    """File of the run's own secret, made if it is missing."""
    if not directory.secret.exists():
        with needed(directory.secret):
            write_secret(directory.secret, new_secret())
    return directory.secret
