"""
Pictures of a run's prompts by digest, for the spool in the broker's process.

    dataset ─ scan ─▶ add ─▶ a file without a name on the run's disk ─▶ read ─▶ rollouts, trainer

The broker reads every picture when it starts, to digest it, and adds each distinct one here. Reading them from the
dataset on demand would decode a whole row group of a parquet file for each picture; appending them on admission would
need trimming, and a copy for each epoch. The file has no name, so the operating system deletes it when the process
ends, and the next process fills a new one: no index can be stale, and neither a second broker nor a power cut can
damage it. It takes the size of the distinct pictures on disk, and about 200 bytes of memory for each.
"""

import os
import tempfile
from collections import Counter
from pathlib import Path

from asyncrl.files.atomic import needed
from asyncrl.messages.trajectory import Image


class ImageStore:
    """Files of pictures by digest. One thread may `add`, any may `read`. A missing ``folder`` is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[bytes, tuple[int, int]] = {}
        """Offset and size of each picture."""
        self._end = 0
        self.num_sent = Counter[str]()
        """Number of pictures sent to each node; one that stays in a node's cache is sent to it once."""
        with needed(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  closed by `close`

    def __len__(self) -> int:
        return len(self._places)

    def add(self, image: Image, content: bytes) -> None:
        """Store a picture that is new. Raises `RunFailed` if the disk is full or broken."""
        if image.digest in self._places:
            return
        with needed(self._folder):
            left = memoryview(content)
            while left:
                left = left[self._file.write(left) :]
        self._places[image.digest] = self._end, len(content)
        self._end += len(content)

    def size(self, digest: bytes) -> int:
        """Size of a picture in bytes; 0 if it is not stored."""
        return self._places.get(digest, (0, 0))[1]

    def read(self, digest: bytes) -> bytes:
        """Bytes of a picture's file; empty if it is not stored."""
        offset, size = self._places.get(digest, (0, 0))
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._file.close()
