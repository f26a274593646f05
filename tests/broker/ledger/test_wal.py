"""A torn or damaged ledger is read correctly, truncated with a report, or refused."""

import asyncio
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, AnyRecord, Record
from asyncrl.broker.ledger.wal import FRAME, HEADER, check_wal
from asyncrl.errors import LedgerError
from asyncrl.files.disk import TornTail

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
