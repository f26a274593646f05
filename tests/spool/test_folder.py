"""Contents of a spool's directory, read without a lock."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError, LedgerError
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.spool.folder import FILE, SpoolIdentity, open_folder, read_contents, segment_numbers, write_identity
from asyncrl.spool.segment_writer import Entry
from asyncrl.spool.segments import Segments

SUMMARY = TrajectorySummary(3, 2, 4, 5, 2, "stop")


def spool(folder: Path, *payloads: bytes) -> Segments:
    """An open spool with one payload in each segment."""
    segments = Segments(folder, segment_bytes=1)
    for index, payload in enumerate(payloads):
        segments.append([(Entry(Unit(7, index), 1, SUMMARY, "r", "0"), memoryview(payload))])
    segments.sync()
    return segments


def test_every_payload_is_read_while_the_spool_is_in_use(tmp_path: Path) -> None:
    segments = spool(tmp_path, b"alpha", b"beta")
    contents = list(read_contents(tmp_path))
    assert [(found.path.name, found.problem) for found in contents] == [
        ("segment_000000.seg", ""),
        ("segment_000001.seg", ""),
    ]
    (first,), (second,) = (found.payloads for found in contents)
    assert (first.entry.unit, first.payload, second.payload) == (Unit(7, 0), b"alpha", b"beta")
    assert list(segment_numbers(tmp_path)) == [0, 1]
    segments.close()


def test_a_torn_tail_of_the_newest_segment_is_not_damage(tmp_path: Path) -> None:
    spool(tmp_path, b"alpha", b"beta").close()
    first, second = segment_numbers(tmp_path).values()
    second.write_bytes(second.read_bytes() + b"torn")
    assert [found.problem for found in read_contents(tmp_path)] == ["", ""]
    first.write_bytes(first.read_bytes() + b"torn")
    assert "is damaged at offset" in next(iter(read_contents(tmp_path))).problem


def test_a_segment_under_the_name_of_another_is_named(tmp_path: Path) -> None:
    spool(tmp_path, b"alpha", b"beta").close()
    first, second = segment_numbers(tmp_path).values()
    first.write_bytes(second.read_bytes())
    assert next(iter(read_contents(tmp_path))).problem == f"{first} is segment 1 by its header: it was swapped"


def test_no_directory_is_an_empty_spool(tmp_path: Path) -> None:
    assert list(read_contents(tmp_path / "gone")) == []


# ── test folder ───────────────────────────────────────────────────────────────────────────────
# The name of a spool is that of its files.


def test_a_folder_keeps_the_name_of_its_spool_and_its_run(tmp_path: Path) -> None:
    first = open_folder(tmp_path / "a", "spool-0")
    assert first.name == f"spool-0-{first.folder_id}"
    assert first.run_id == ""
    write_identity(tmp_path / "a", SpoolIdentity(first.name, "run-1"))
    assert open_folder(tmp_path / "a", "spool-0") == SpoolIdentity(first.name, "run-1")


def test_a_new_folder_is_another_spool(tmp_path: Path) -> None:
    assert open_folder(tmp_path / "a", "spool-0").name != open_folder(tmp_path / "b", "spool-0").name


def test_a_folder_of_another_spool_is_refused_with_its_name(tmp_path: Path) -> None:
    open_folder(tmp_path, "spool-0")
    with pytest.raises(ConfigError, match="has the payloads of the spool spool-0: give --name spool-0, or another"):
        open_folder(tmp_path, "spool-1")


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(LedgerError, match=r"spool.json is damaged"):
        open_folder(tmp_path, "spool-0")
