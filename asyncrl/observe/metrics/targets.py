"""
The address of a process's metrics as a file that Prometheus discovers: ``file_sd_configs`` with ``FOLDER/*.json``.

Each process has a file of its own, so that none waits for another, and removes it when it ends. Prometheus allows ``*``
in the last part of a path alone: for the runs of a machine to be found by one pattern, their files are in one folder.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing


@contextmanager
def discoverable(folder: Path, run: str, node: str, address: str) -> Iterator[Path]:
    """
    Name ``address``, HOST:PORT, in ``folder/RUN.NODE.json`` for the time of the block. Yields the file.

    The label ``run`` tells the runs of one Prometheus apart; a process's samples have its role and node themselves.
    Without a ``run`` neither the label nor the name of the file has one.

    Raises:
        ConfigError: The file cannot be written.
    """
    path = folder / f"{f'{run}.' if run else ''}{node}.json"
    target = {"targets": [address], "labels": {"run": run} if run else {}}
    try:
        with replacing(path, durable=False) as unfinished:
            unfinished.write_text(json.dumps([target]) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}, which tells Prometheus of this node: {error.strerror}") from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
