"""Reads a ledger: for a restarting broker, for `asyncrl audit` and for people."""

import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from asyncrl.broker.ledger.database import (
    CHAIN_ID,
    CONFIG,
    DIGESTS,
    HEADLESS,
    NUM_HEADLESS,
    READ_ERRORS,
    connect_readable,
    meta_digest,
    one_line,
    open_readable,
    read_meta,
)
from asyncrl.broker.ledger.records import Admitted, AnyRecord, FailedAt, FailedAttempt, decode, unique_key
from asyncrl.errors import LedgerError
from asyncrl.messages.words import Split

# ── chain ─────────────────────────────────────────────────────────────────────────────────────
# Digest of a ledger's records from the first on, which changes if any of them is edited, inserted, removed or moved.
#
#     record     1   2   3         4   5         6
#     head       -   -   h(1..3)   -   h(1..5)   h(1..6)      SHA-256 of the run's id and of every body so far
#                        └ transaction ends      └ the newest, which others keep too: summary, checkpoints, events
#
# One hash runs over all bodies as they are stored, and is read where a transaction ends: half a microsecond per
# record. The bodies need no separators, because a body is one msgpack value, which tells where it ends; number, kind
# and key of a record follow from its place and its body.
#
# Whoever can write the file can compute all heads anew. Heads that others keep show that, if they cannot be written
# too.


class Head(NamedTuple):
    """Number of records, and their digest."""

    num_records: int
    digest: str
    """64 hexadecimal digits."""


class Chain:
    """Running digest; `add` the bodies in order."""

    def __init__(self, run_id: str) -> None:
        self._hash = hashlib.sha256(run_id.encode())
        self.num_records = 0

    @property
    def head(self) -> Head:
        return Head(self.num_records, self._hash.hexdigest())

    def add(self, *bodies: bytes) -> None:
        for body in bodies:  # Not joined: hashlib lets go of Python's global lock for 2 KiB and more.
            self._hash.update(body)
        self.num_records += len(bodies)

    def copy(self) -> "Chain":
        """An equal chain that goes on by itself."""
        twin = Chain("")
        twin._hash, twin.num_records = self._hash.copy(), self.num_records
        return twin


class ChainCheck:
    """
    Compares the stored heads with the records: `add` every row in order, then read `problem` and `digests`.

    Args:
        num_headless: Records that an earlier asyncrl wrote, without heads.
        wanted: Numbers of first records whose digest others keep.
    """

    def __init__(self, run_id: str, num_headless: int = 0, wanted: Collection[int] = ()) -> None:
        self.chain = Chain(run_id)
        self.digests = {0: self.chain.head.digest}
        """Digests of the first records, by their number, of those wanted."""
        self.num_headless = num_headless
        self._wanted = frozenset(wanted)
        self._num_sound = 0
        """Records up to the last head that matches."""
        self._broken_at = 0
        """First record whose head does not match; 0 if there is none."""
        self._num_covered = 0
        """Records up to the last head."""

    def add(self, body: bytes, head: object) -> None:
        self.chain.add(body)
        number = self.chain.num_records
        if head is not None:
            self._num_covered = number
            if not self._broken_at:
                is_sound = head == bytes.fromhex(self.chain.head.digest)
                self._num_sound, self._broken_at = (number, 0) if is_sound else (self._num_sound, number)
        if number in self._wanted:
            self.digests[number] = self.chain.head.digest

    @property
    def problem(self) -> str:
        """Sentence about records that are not those that were written; empty if there are none."""
        number = self.chain.num_records
        if self._broken_at:
            return (
                f"records {self._num_sound + 1} to {self._broken_at} are not those that were written: one of them was "
                f"edited, inserted, removed or moved, expected the digest stored with record {self._broken_at}"
            )
        if number > max(self._num_covered, self.num_headless):
            return (
                f"records {self._num_covered + 1} to {number} have no digest: another program wrote them, or the end "
                f"of their transaction was removed"
            )
        return ""


# ── reader ────────────────────────────────────────────────────────────────────────────────────

REMEDY = "restore the ledger from a copy, or start a new run"


def read_records(
    path: Path, *, is_writer_process: bool = False, check: ChainCheck | None = None
) -> Iterator[AnyRecord]:
    """
    Yield a run's records in the order they were written, also while its broker writes further ones.

    Args:
        is_writer_process: This process also has the ledger open for writing.
        check: Told the body and the head of every record.

    Raises:
        LedgerError: There is no ledger at ``path``, this asyncrl cannot read it, or a record is damaged or missing;
            names the record.
    """
    with closing(open_readable(path, is_writer_process=is_writer_process)) as connection:
        try:
            head = "NULL" if read_meta(connection, "schema_version") == HEADLESS else "head"
            rows = connection.execute(f"SELECT seq, kind, key, body, crc32, {head} FROM records ORDER BY seq")
            for expected, (seq, *row, stored) in enumerate(rows, start=1):
                if seq != expected:
                    raise LedgerError(f"the ledger {path} is damaged: record {expected} is missing; {REMEDY}")
                record = _decoded(f"record {seq} of the ledger {path}", *row)
                if check:
                    check.add(row[2], stored)
                yield record
        except READ_ERRORS as error:
            raise LedgerError(f"the ledger {path} is damaged: {one_line(error)}; {REMEDY}") from error


class LedgerMeta(NamedTuple):
    """Contents of a ledger beside its records."""

    run_id: str
    broker_term: int
    """Number of broker starts."""
    train_digest: str
    """Digest of the training prompts that the run began with; empty if none was recorded."""
    held_out_digest: str
    config: str = ""
    """Configuration of the run as JSON; empty if none was recorded."""
    num_headless: int | None = 0
    """Records that were written without heads; None if all of them were, and no broker has opened the ledger since."""
    chain_id: str = ""
    """Identity that the digests of records began with: that of the run, or of the first run that it is a copy of."""
    digest: str = ""
    """Digest of what is stored beside the records: `Started.meta` of the last start."""


def read_ledger_meta(path: Path) -> LedgerMeta:
    """Read what is stored beside the records. Raises `LedgerError` as `read_records`."""
    with closing(open_readable(path)) as connection:
        run_id, term, *found = (read_meta(connection, key) for key in ("run_id", "broker_term", *DIGESTS, CONFIG))
        train_digest, held_out_digest, config = (str(text or "") for text in found)
        is_headless = read_meta(connection, "schema_version") == HEADLESS
        return LedgerMeta(
            run_id=str(run_id),
            broker_term=int(term or 0),
            train_digest=train_digest,
            held_out_digest=held_out_digest,
            config=config,
            num_headless=None if is_headless else int(read_meta(connection, NUM_HEADLESS) or 0),
            chain_id=str(read_meta(connection, CHAIN_ID) or run_id),
            digest=meta_digest(connection),
        )


def read_retired(path: Path) -> dict[int, str]:
    """Read the end of each group from the table that refuses a second one. Raises `LedgerError` as `read_records`."""
    with closing(open_readable(path)) as connection:
        return dict(connection.execute("SELECT group_id, how FROM retired ORDER BY group_id").fetchall())


def peek_meta(path: Path, key: str) -> str:
    """
    Fact of a ledger by its key, without the check of the whole file that `read_ledger_meta` makes.

    Empty if the ledger has none, or cannot be read. It may be open for writing in this process.
    """
    if not path.is_file():
        return ""
    try:
        with closing(connect_readable(path)) as found:
            return str(read_meta(found, key) or "")
    except READ_ERRORS:
        return ""


def _decoded(where: str, kind: object, key: object, body: Any, crc32: object) -> AnyRecord:
    """Check and decode a row. The types are loose because a damaged page may hold any value."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc32:
        raise LedgerError(f"{where} is damaged: its checksum does not match; {REMEDY}")
    try:
        record = decode(body)
    except LedgerError as error:
        raise LedgerError(f"{where} cannot be read: {error}; use the asyncrl that wrote it") from error
    if (kind, key) != (type(record).__name__, unique_key(record)):
        raise LedgerError(f"{where} is damaged: it is filed as {kind!r} {key!r}; {REMEDY}")
    return record


# ── dead letters ──────────────────────────────────────────────────────────────────────────────
# Dead letters: units that failed for good, with the reason and the dataset row of their prompt.


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A unit that is not tried again."""

    split: Split
    group_id: int
    index: int
    epoch: int | None
    """Passes over the dataset before this one; None for held-out prompts, which are not admitted."""
    row: int | None
    """Row, from 0, of the training data or of the held-out data; None in ledgers without that of a held-out prompt."""
    stage: FailedAt
    attempts: int
    reason: str
    """Reason of the last attempt."""


def dead_letters(records: Iterable[AnyRecord]) -> list[DeadLetter]:
    """Dead letters of a ledger, in the order the units were given up."""
    admitted: dict[int, Admitted] = {}
    letters = []
    for record in records:
        match record:
            case Admitted(group_id=group_id):
                admitted[group_id] = record
            case FailedAttempt(unit=unit, is_final=True, held_out_row=held_out_row):
                source = admitted.get(unit.group_id) if unit.split == "train" else None
                row = source.row if source else held_out_row
                letters.append(
                    DeadLetter(
                        split=unit.split,
                        group_id=unit.group_id,
                        index=unit.index,
                        epoch=source.epoch if source else None,
                        row=row if row >= 0 else None,
                        stage=record.stage,
                        attempts=record.attempts,
                        reason=record.reason,
                    )
                )
            case _:
                pass
    return letters
