"""
The address of a process's metrics as a file that Prometheus discovers: ``file_sd_configs`` with ``RUN/metrics/*.json``.

Each process has a file of its own, so that none waits for another, and removes it when it ends.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.files.atomic import replacing


@contextmanager
def discoverable(run: Path, node: str, address: str) -> Iterator[Path]:
    """
    Name ``address``, HOST:PORT, in ``run/metrics/NODE.json`` for the time of the block. Yields the file.

    The label ``run`` tells the runs of one Prometheus apart; a process's samples have its role and node themselves.

    Raises:
        ConfigError: The file cannot be written.
    """
    path = run / "metrics" / f"{node}.json"
    try:
        with replacing(path, durable=False) as unfinished:
            unfinished.write_text(json.dumps([{"targets": [address], "labels": {"run": run.name}}]) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}, which tells Prometheus of this node: {error.strerror}") from error
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
