"""What a ledger says: to a broker that starts again, to `asyncrl audit`, and to a person who wants to know."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from asyncrl.broker.ledger.file import UNREADABLE, one_line, open_readable, read_meta
from asyncrl.broker.ledger.records import AnyRecord, Result, Rewarded, Taken, decode, key, units_of_group
from asyncrl.errors import LedgerError
from asyncrl.messages import Split

REMEDY = "restore the ledger from a copy, or start a new run"


class LedgerReader:
    """
    Reads a run's records, also while its broker writes them. A context manager.

    Args:
        is_ours: This very process is the one that writes them.

    Raises:
        LedgerError: There is no ledger at ``path``, or it is not one that this asyncrl can read.
    """

    def __init__(self, path: Path, *, is_ours: bool = False) -> None:
        self._path = path
        self._connection = open_readable(path, is_ours=is_ours)
        self.run_id = str(read_meta(self._connection, "run_id"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def records(self) -> Iterator[AnyRecord]:
        """
        Every record, in the order they were made.

        Raises:
            LedgerError: A record is damaged or missing; names it.
        """
        for expected, (seq, record) in enumerate(self._select("ORDER BY seq"), start=1):
            if seq != expected:
                raise LedgerError(f"the ledger {self._path} is damaged: record {expected} is missing; {REMEDY}")
            yield record

    def counts(self) -> dict[str, int]:
        """How many records there are of each kind, by class name."""
        try:
            return dict(self._connection.execute("SELECT kind, count(*) FROM records GROUP BY kind"))
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def taken(self, step: int) -> Taken | None:
        """The batch of ``step``, if it was ever asked for."""
        found = (record for _, record in self._select("WHERE key = ?", f"taken/{step}"))
        return next((record for record in found if isinstance(record, Taken)), None)

    def results(self, group_id: int, split: Split = "train") -> list[tuple[Result, Rewarded | None]]:
        """What is stored of a group, in order of index, each with its verdict if there is one."""
        results = [r for r in self._of_group("result", split, group_id) if isinstance(r, Result)]
        verdicts = {r.unit: r for r in self._of_group("verdict", split, group_id) if isinstance(r, Rewarded)}
        return [(result, verdicts.get(result.unit)) for result in sorted(results, key=lambda result: result.unit)]

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def _of_group(self, kind: Literal["result", "verdict"], split: Split, group_id: int) -> Iterator[AnyRecord]:
        prefix = units_of_group(kind, split, group_id)
        last = f"{prefix}:"  # ":" sorts right after the digits
        return (record for _, record in self._select("WHERE key BETWEEN ? AND ?", prefix, last))

    def _select(self, which: str, *parameters: str) -> Iterator[tuple[int, AnyRecord]]:
        """Numbers and records."""
        try:
            for row in self._connection.execute(f"SELECT seq, kind, key, body, crc32 FROM records {which}", parameters):
                yield row[0], self._checked(*row)
        except UNREADABLE as error:
            raise self._damaged(error) from error

    def _checked(self, seq: int, kind: object, name: object, body: Any, crc32: object) -> AnyRecord:
        """A damaged page may hold anything, also values of another type."""
        where = f"record {seq} of the ledger {self._path}"
        if not isinstance(body, bytes) or zlib.crc32(body) != crc32:
            raise LedgerError(f"{where} is damaged: its checksum does not fit; {REMEDY}")
        try:
            record = decode(body)
        except LedgerError as error:
            raise LedgerError(f"{where} cannot be read: {error}; use the asyncrl that wrote it") from error
        if (kind, name) != (type(record).__name__, key(record)):
            raise LedgerError(f"{where} is damaged: it is filed as {kind!r} {name!r}; {REMEDY}")
        return record

    def _damaged(self, error: Exception) -> LedgerError:
        return LedgerError(f"the ledger {self._path} is damaged: {one_line(error)}; {REMEDY}")
