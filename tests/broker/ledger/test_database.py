"""Creation and verification of the ledger file."""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncrl.broker.ledger.database import (
    APPLICATION_ID,
    FRAME,
    HEADER,
    SCHEMA_VERSION,
    LockWait,
    check_wal,
    holder,
    is_lock,
    open_readable,
    open_writable,
    read_meta,
    write_meta,
)
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Record
from asyncrl.errors import LedgerError
from asyncrl.files.atomic import TornTail


def test_a_new_ledger_has_an_application_id_and_a_run_id(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "a" / "ledger.sqlite")
    other = open_writable(tmp_path / "b" / "ledger.sqlite")

    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert read_meta(connection, "schema_version") == SCHEMA_VERSION
    assert read_meta(connection, "broker_term") == 0
    assert read_meta(connection, "run_id") != read_meta(other, "run_id")
    connection.close()
    other.close()


def test_commits_are_on_disk_when_they_return(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "ledger.sqlite")

    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    connection.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    open_writable(tmp_path / "ledger.sqlite").close()
    connection = open_readable(tmp_path / "ledger.sqlite")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM meta")

    connection.close()


@pytest.mark.parametrize("open_it", [open_writable, open_readable])
@pytest.mark.parametrize("change", ["broker_term", "run_id"])
def test_the_meta_table_has_a_checksum(
    tmp_path: Path, open_it: Callable[[Path], sqlite3.Connection], change: str
) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_writable(path)
    write_meta(connection, "broker_term", 7)
    connection.execute("UPDATE meta SET value = 3 WHERE key = ?", (change,))
    connection.close()

    with pytest.raises(LedgerError, match="the checksum of its meta does not match; restore it"):
        open_it(path)


def test_a_ledger_without_that_checksum_is_used(tmp_path: Path) -> None:
    connection = open_writable(tmp_path / "ledger.sqlite")
    connection.execute("DELETE FROM meta WHERE key = 'crc32'")
    connection.close()

    open_writable(tmp_path / "ledger.sqlite").close()


def test_an_index_that_does_not_fit_its_table_is_refused(tmp_path: Path) -> None:
    """The index is not read here, but it keeps a group from being trained twice."""
    path = tmp_path / "ledger.sqlite"
    connection = open_writable(path)
    connection.execute("INSERT INTO records VALUES (1, 'Admitted', 'admitted/0', x'00', 0, NULL)")
    connection.close()
    path.write_bytes(path.read_bytes().replace(b"admitted/0", b"admitted/1", 1))

    with pytest.raises(LedgerError, match=r"the ledger .* is damaged: .*index"):
        open_writable(path)


def test_an_emptied_ledger_with_a_log_is_not_recreated(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.touch()
    path.with_name("ledger.sqlite-wal").write_bytes(b"records")

    with pytest.raises(LedgerError, match=r"missing or empty, but its log .*-wal is there; restore"):
        open_writable(path)
    assert path.with_name("ledger.sqlite-wal").read_bytes() == b"records"


# ── test lock wait ────────────────────────────────────────────────────────────────────────────
# A lock of another program is waited for, and not forever once the ledger is being left.


def refusal(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


class Clock:
    """Time that passes only in pauses, a minute each."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, _: float) -> None:
        self.now_s += 60.0

    def wait(self) -> LockWait:
        return LockWait(lambda: self.now_s, self.sleep)


def test_a_lock_is_waited_for_as_long_as_it_is_held() -> None:
    clock, told = Clock(), []
    wait = clock.wait()

    def attempt() -> str:
        told.append(wait.waited_s)
        if len(told) < 1000:
            raise refusal(sqlite3.SQLITE_BUSY)
        return "written"

    assert wait.retry(attempt) == "written"
    assert told[:4] == [0, 60, 120, 180]
    assert told[-1] == 999 * 60
    assert wait.waited_s == 0
    assert not wait.has_given_up


def test_who_leaves_waits_no_longer_than_said() -> None:
    clock = Clock()
    wait = clock.wait()
    attempts = []

    def attempt() -> None:
        attempts.append(clock.now_s)
        if len(attempts) == 3:
            wait.leave(within_s=90)
            wait.leave(within_s=600)
        raise refusal(sqlite3.SQLITE_BUSY)

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        wait.retry(attempt)
    assert attempts == [100, 160, 220, 280, 340]
    assert wait.has_given_up


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT])
def test_what_is_no_lock_is_raised_at_once(code: int) -> None:
    def attempt() -> None:
        raise refusal(code)

    wait = Clock().wait()
    with pytest.raises(sqlite3.OperationalError):
        wait.retry(attempt)
    assert not wait.has_given_up


def test_a_lock_is_recognized_in_the_error_that_was_made_of_it() -> None:
    made = LedgerError("cannot use the ledger")
    made.__cause__ = refusal(261)  # SQLITE_BUSY_RECOVERY
    assert is_lock(made)
    assert not is_lock(LedgerError("cannot use the ledger"))


LINES = """\
1: FLOCK  ADVISORY  WRITE 9 08:01:{index} 0 EOF
2: POSIX  ADVISORY  READ {process} 08:01:{index} 123 123
3: POSIX  ADVISORY  WRITE 77 08:01:1 120 120
3: -> POSIX  ADVISORY  WRITE 78 08:01:{index} 120 120
"""


def test_the_process_that_has_the_lock_is_named(tmp_path: Path) -> None:
    ledger, locks = tmp_path / "ledger.sqlite", tmp_path / "locks"
    assert holder(ledger, locks) == "another program"
    (tmp_path / "ledger.sqlite-shm").touch()
    index = (tmp_path / "ledger.sqlite-shm").stat().st_ino
    others = "\n".join(LINES.format(index=index, process=os.getppid()).splitlines()[1:])
    locks.write_text(others)
    assert holder(ledger, locks) == "another program"
    locks.write_text(f"{others}\n4: POSIX  ADVISORY  READ {os.getppid()} 08:01:{index} 120 120\n")
    assert holder(ledger, locks).startswith(f"process {os.getppid()} (")
    locks.write_text(f"4: POSIX  ADVISORY  WRITE {os.getpid()} 08:01:{index} 120 120\n")
    assert holder(ledger, locks) == "another program", "this process itself"


# ── test wal ──────────────────────────────────────────────────────────────────────────────────
# A torn or damaged ledger is read correctly, truncated with a report, or refused.

FRAME_BYTES = FRAME.size + 4096
NUM_CALLS = 12
CALLS: list[list[Record]] = [
    [Admitted(group_id=3 * call + i, epoch=0, row=i, policy_version=0) for i in range(3)] for call in range(NUM_CALLS)
]
RECORDS = [record for call in CALLS for record in call]
SUFFIXES = ("", "-wal", "-shm")


class Image:
    """The files of a ledger as a killed process leaves them."""

    def __init__(self, ledger: Path) -> None:
        self.files = {s: (ledger.parent / f"ledger.sqlite{s}").read_bytes() for s in SUFFIXES}

    def place(self, folder: Path, **changed: bytes | None) -> Path:
        """Write the files; ``db``, ``wal`` and ``shm`` replace their content, and None deletes the file."""
        for name, suffix in zip(("db", "wal", "shm"), SUFFIXES, strict=True):
            if (content := changed.get(name, self.files[suffix])) is not None:
                (folder / f"ledger.sqlite{suffix}").write_bytes(content)
        return folder / "ledger.sqlite"

    @property
    def wal(self) -> bytes:
        return self.files["-wal"]


def record_and_copy(folder: Path, *, backfilled_after: int | None) -> Image:
    path = folder / "ledger.sqlite"

    async def run() -> Image:
        ledger = Ledger(path)
        for call, records in enumerate(CALLS):
            await ledger.commit(records)
            if call == backfilled_after:  # The next call begins a new round: its frames lie over those before.
                ledger._connection.execute("PRAGMA wal_checkpoint(RESTART)")
        image = Image(path)
        ledger.close()
        return image

    return asyncio.run(run())


@pytest.fixture(scope="module", params=[None, 6], ids=["one round", "two rounds"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    return record_and_copy(tmp_path_factory.mktemp("ledger"), backfilled_after=request.param)


def outcome(path: Path) -> tuple[list[AnyRecord], TornTail | None] | str:
    """Records and torn tail that a starting broker finds, or its error message."""
    try:
        ledger = Ledger(path)
        ledger.close()
        return list(read_records(path)), ledger.torn
    except LedgerError as error:
        return str(error)


def assert_correct_or_refused(path: Path) -> None:
    match outcome(path):
        case str(sentence):
            assert str(path) in sentence
            assert "\n" not in sentence
        case records, torn:
            assert records == RECORDS[: len(records)]
            assert torn or records == RECORDS


def flipped(content: bytes, at: int, mask: int) -> bytes:
    return content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]


WHERE = st.integers(0, 2**30)
MASK = st.integers(1, 255)


@settings(max_examples=60, deadline=None)
@given(where=WHERE, mask=MASK, has_index=st.booleans())
def test_any_byte_of_the_log_may_be_flipped(image: Image, where: int, mask: int, has_index: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        wal = flipped(image.wal, where % len(image.wal), mask)
        kept = image.files["-shm"] if has_index else None
        assert_correct_or_refused(image.place(Path(folder), wal=wal, shm=kept))


@settings(max_examples=30, deadline=None)
@given(where=WHERE, mask=MASK, is_closed=st.booleans())
@example(where=3, mask=1, is_closed=True)
@example(where=27, mask=255, is_closed=True)
@example(where=3628801, mask=65, is_closed=False)  # a column gets another name
@example(where=4038, mask=230, is_closed=True)  # SQLite says of the schema what is not text
@example(where=11799, mask=1, is_closed=True)  # a record becomes text, with line breaks
def test_any_byte_of_the_database_may_be_flipped(image: Image, where: int, mask: int, is_closed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = image.place(Path(folder))
        if is_closed:  # Else most pages are in the log, and hide what is damaged below.
            Ledger(path).close()
        content = path.read_bytes()
        path.write_bytes(flipped(content, where % len(content), mask))
        assert_correct_or_refused(path)


@settings(max_examples=40, deadline=None)
@given(where=WHERE)
@example(where=0)
@example(where=HEADER.size)
def test_the_log_may_end_anywhere(image: Image, where: int) -> None:
    """The index has the number of committed frames, so no lost transaction goes unnoticed."""
    with tempfile.TemporaryDirectory() as folder:
        path = image.place(Path(folder), wal=image.wal[: where % len(image.wal)])
        found = outcome(path)
        assert isinstance(found, str) or found[0] == RECORDS


@settings(max_examples=20, deadline=None)
@given(where=WHERE)
def test_the_database_may_end_anywhere_but_at_its_beginning(image: Image, where: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = image.place(Path(folder))
        Ledger(path).close()
        content = path.read_bytes()
        path.write_bytes(content[: 1 + where % (len(content) - 1)])
        assert_correct_or_refused(path)


def test_files_of_a_killed_broker_have_no_torn_tail(image: Image, tmp_path: Path) -> None:
    path = image.place(tmp_path)

    assert check_wal(path) is None
    assert outcome(path) == (RECORDS, None)


def test_a_lost_index_loses_nothing(image: Image, tmp_path: Path) -> None:
    assert outcome(image.place(tmp_path, shm=None)) == (RECORDS, None)


def test_a_damaged_index_loses_nothing(image: Image, tmp_path: Path) -> None:
    assert outcome(image.place(tmp_path, shm=flipped(image.files["-shm"], 17, 1))) == (RECORDS, None)


def test_a_lost_log_is_refused(image: Image, tmp_path: Path) -> None:
    path = image.place(tmp_path, wal=None)

    with pytest.raises(LedgerError, match=r"ledger.sqlite-wal is damaged at offset 0, .* it has 0 bytes, expected \d+"):
        check_wal(path)


def torn_transaction(image: Image) -> tuple[bytes, int]:
    """The log with one more transaction whose first frame was not written, and the offset of that frame."""
    salts = image.wal[16:24]
    end = HEADER.size
    while image.wal[end + 8 : end + 16] == salts:
        end += FRAME_BYTES
    junk = FRAME.pack(2, 0, b"\1" * 8, bytes(8)) + bytes(4096)
    last = FRAME.pack(3, 5, salts, bytes(8)) + bytes(4096)
    return image.wal[:end] + junk + last, end


def test_a_torn_transaction_is_cut_and_reported_once(image: Image, tmp_path: Path) -> None:
    wal, end = torn_transaction(image)
    path = image.place(tmp_path, wal=wal)

    assert outcome(path) == (RECORDS, TornTail(tmp_path / "ledger.sqlite-wal", end, 2 * FRAME_BYTES))
    assert outcome(path) == (RECORDS, None)


def test_the_rest_of_a_cut_tail_is_not_mistaken_for_damage_later(image: Image, tmp_path: Path) -> None:
    """The next broker overwrites the beginning of the tail, and is killed too."""
    wal, _ = torn_transaction(image)
    path = image.place(tmp_path, wal=wal)
    (tmp_path / "later").mkdir()

    ledger = Ledger(path)
    for suffix in SUFFIXES:
        shutil.copy(tmp_path / f"ledger.sqlite{suffix}", tmp_path / "later")
    ledger.close()

    assert outcome(tmp_path / "later" / "ledger.sqlite") == (RECORDS, None)


def test_a_refusal_changes_nothing(image: Image, tmp_path: Path) -> None:
    wal = flipped(image.wal, HEADER.size + FRAME.size + 100, 255)
    path = image.place(tmp_path, wal=wal)
    before = {suffix: (tmp_path / f"ledger.sqlite{suffix}").read_bytes() for suffix in SUFFIXES}

    for _ in range(2):
        assert "damaged at offset 32" in str(outcome(path))

    assert {suffix: (tmp_path / f"ledger.sqlite{suffix}").read_bytes() for suffix in SUFFIXES} == before


def test_damage_in_the_middle_is_refused_also_without_an_index(image: Image, tmp_path: Path) -> None:
    wal = flipped(image.wal, HEADER.size + FRAME.size + 100, 255)

    with pytest.raises(LedgerError, match=r"at offset 32, .* committed pages follow that cannot be read"):
        check_wal(image.place(tmp_path, wal=wal, shm=None))


def test_a_log_can_be_checked_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"

    async def run() -> None:
        ledger = Ledger(path)
        for records in CALLS:
            writing = ledger.append(records)
            check_wal(path)
            await writing
            assert check_wal(path) is None
        ledger.close()

    asyncio.run(run())


def test_a_ledger_without_a_log_is_read(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "ledger.sqlite").close()

    assert check_wal(tmp_path / "ledger.sqlite") is None
