"""A file that a command writes where its user said: `replacing`, with each failure as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import refuse_folder, replacing

REMEDY = "give the path of a file that can be written"


@contextmanager
def output(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Temporary path, as `replacing` gives it; raises `ConfigError` if the block or the replacement has an OSError."""
    try:
        with replacing(path, durable=durable) as unfinished:
            yield unfinished
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; {REMEDY}") from error


def check_output(path: Path) -> None:
    """Raise `ConfigError` if ``path`` is a folder: for a command that works long before it writes."""
    try:
        refuse_folder(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; {REMEDY}") from error
