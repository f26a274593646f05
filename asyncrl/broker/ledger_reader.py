"""What a ledger says: to a broker that starts again, to `asyncrl audit`, and to a person who wants to know."""

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from asyncrl.broker.ledger_file import open_readable, read_meta
from asyncrl.broker.records import AnyRecord, Result, Taken, Verdict, decode, units_of_group
from asyncrl.errors import LedgerError
from asyncrl.messages import Split


class LedgerReader:
    """
    Reads a run's records, also while its broker writes them. A context manager.

    Raises:
        LedgerError: There is no ledger at ``path``, or it is not one that this asyncrl can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_readable(path)
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
            LedgerError: A record is damaged; names it.
        """
        return self._select("ORDER BY seq")

    def counts(self) -> dict[str, int]:
        """How many records there are of each kind, by class name."""
        try:
            return dict(self._connection.execute("SELECT kind, count(*) FROM records GROUP BY kind"))
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self._path} is damaged: {error}") from error

    def taken(self, step: int) -> Taken | None:
        """The batch of ``step``, if it was ever asked for."""
        return next((r for r in self._select("WHERE key = ?", f"taken/{step}") if isinstance(r, Taken)), None)

    def results(self, group_id: int, split: Split = "train") -> list[tuple[Result, Verdict | None]]:
        """What is stored of a group, in order of index, each with its verdict if there is one."""
        results = [r for r in self._of_group("result", split, group_id) if isinstance(r, Result)]
        verdicts = {r.unit: r for r in self._of_group("verdict", split, group_id) if isinstance(r, Verdict)}
        return [(result, verdicts.get(result.unit)) for result in sorted(results, key=lambda result: result.unit)]

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def _of_group(self, kind: Literal["result", "verdict"], split: Split, group_id: int) -> Iterator[AnyRecord]:
        prefix = units_of_group(kind, split, group_id)
        return self._select("WHERE key BETWEEN ? AND ?", prefix, f"{prefix}:")  # ":" sorts right after the digits

    def _select(self, which: str, *parameters: str) -> Iterator[AnyRecord]:
        try:
            for seq, body, crc32 in self._connection.execute(
                f"SELECT seq, body, crc32 FROM records {which}", parameters
            ):
                if zlib.crc32(body) != crc32:
                    raise LedgerError(f"record {seq} of the ledger {self._path} is damaged: its checksum does not fit")
                yield decode(body)
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self._path} is damaged: {error}") from error
