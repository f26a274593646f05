"""
Digest of the rows of a dataset, so that a run does not continue with others.

    a.parquet ─ rows in order ─▶ 4f1c… ─┐
    b.jsonl ─── rows in order ─▶ 09ab… ─┴─▶ "4f1c… 09ab…"     recorded when a run is made, compared when it continues

It covers what a run reads of each row, and not the bytes of the file: a file that is compressed again has the same.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec

from asyncrl.data.dataset import BadRow
from asyncrl.errors import DataError
from asyncrl.messages.trajectory import Prompt

BYTES = 16

_encoder = msgspec.msgpack.Encoder()


class DatasetDigest:
    """Digest of one file, row by row; 2 µs each."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=BYTES)

    def add(self, row: Prompt | BadRow) -> None:
        # A row that cannot be used counts too: if it is repaired, the rows after it get other places in the order.
        encoded = _encoder.encode(row.reason if isinstance(row, BadRow) else row)
        self._hash.update(len(encoded).to_bytes(8, "little"))
        self._hash.update(encoded)

    def __str__(self) -> str:
        return self._hash.hexdigest()


def joined(digests: Iterable[DatasetDigest]) -> str:
    """Digest of a dataset of several files, in their order."""
    return " ".join(map(str, digests))


def check_same(setting: str, files: Sequence[str], recorded: str, now: str) -> None:
    """
    Raise `DataError` if a dataset has other rows than when its run was made.

    Args:
        setting: Key of the dataset, ``data.train`` or ``data.held_out``, for messages.
        files: Its files, in order.
        recorded: `joined` digest of then; empty if none was recorded, which is accepted.
        now: That of now.
    """
    before, after = recorded.split(), now.split()
    if not before or before == after:
        return
    if len(before) != len(after):
        raise DataError(
            f"{setting} names {len(after)} files, but this run began with {len(before)}: name the same ones, or start "
            f"another run"
        )
    changed = next(place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])
    raise DataError(
        f"{setting}: {files[changed]} has other rows than when this run began (digest {after[changed]}, recorded "
        f"{before[changed]}); put the old file back, or start another run"
    )
