import resource
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import LedgerError, RunFailed
from asyncrl.files.atomic import TornTail
from asyncrl.files.json_lines import JsonLines, toml_key, toml_value

RECORDS: list[dict[str, Any]] = [{"step": 1, "note": "two\nlines"}, {"step": 2}, {"step": 3, "reward": None}]


@given(cut=st.integers(0, 100))
def test_a_file_cut_anywhere_gives_its_complete_lines_and_can_be_appended_to(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """A writer may die between any two bytes; complete lines are kept, and a partial one is never read."""
    lines = JsonLines(tmp_path_factory.mktemp("cut") / "events.jsonl")
    for record in RECORDS:
        lines.append(record)
    whole = lines.path.read_bytes()
    lines.path.write_bytes(whole[:cut])
    kept = RECORDS[: whole[:cut].count(b"\n")]

    assert lines.read() == kept
    lines.append({"step": 4})
    assert lines.read() == [*kept, {"step": 4}]


@given(cut=st.integers(0, 100))
def test_a_torn_line_is_cut_and_reported_once(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    lines = JsonLines(tmp_path_factory.mktemp("cut") / "events.jsonl")
    for record in RECORDS:
        lines.append(record)
    whole = lines.path.read_bytes()[:cut]
    lines.path.write_bytes(whole)
    end = whole.rfind(b"\n") + 1

    assert lines.cut() == (TornTail(lines.path, end, len(whole) - end) if end < len(whole) else None)
    assert lines.path.read_bytes() == whole[:end]
    assert lines.cut() is None


def test_a_missing_file_has_no_torn_line(tmp_path: Path) -> None:
    assert JsonLines(tmp_path / "events.jsonl").cut() is None
    assert not (tmp_path / "events.jsonl").exists()


def test_a_full_disk_is_reported_and_loses_only_that_line(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "events.jsonl")
    lines.append({"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, hard))
    try:
        with pytest.raises(RunFailed, match=r"cannot write .*events\.jsonl: File too large; free space"):
            lines.append({"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines.append({"step": 3})

    assert lines.read() == [{"step": 1}, {"step": 3}]


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert JsonLines(tmp_path / "events.jsonl").read() == []


def test_an_unreadable_file_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot read .*: Is a directory"):
        JsonLines(tmp_path).read()


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.append({"kl": float("nan"), "loss": float("-inf")})

    assert lines.read() == [{"kl": None, "loss": None}]


@pytest.mark.parametrize("damage", [b"{]\n", b"[1]\n", b'{"a": "\xff"}\n', b"\n"])
def test_a_damaged_line_is_reported_with_its_number(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"a": 1}\n' + damage + b'{"a": 2}\n')

    with pytest.raises(LedgerError, match=r"events\.jsonl line 2 is not a JSON object"):
        JsonLines(path).read()


def test_since_returns_the_lines_after_an_offset(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    assert list(lines.since(0)) == []
    lines.append({"step": 1})
    lines.append({"step": 2})
    (_, first), (_, second) = lines.since(0)
    assert list(lines.since(first)) == [({"step": 2}, second)]
    assert list(lines.since(second)) == []
    with lines.path.open("ab") as file:
        file.write(b'{"step": 3')
    assert list(lines.since(second)) == [], "the line is not complete yet"


def test_a_damaged_line_is_reported_with_its_byte_offset(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n{]\n')
    with pytest.raises(LedgerError, match=r"metrics\.jsonl at byte 9 is not a JSON object"):
        list(JsonLines(path).since(9))


def test_a_file_shorter_than_the_offset_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(LedgerError, match=r"metrics\.jsonl has fewer than the 10 bytes already read"):
        list(JsonLines(path).since(10))


def test_the_first_and_the_last_complete_line_are_read_without_the_rest(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "events.jsonl")
    assert (lines.first(), lines.last()) == (None, None)
    lines.path.write_bytes(b'{"step": 1')
    assert (lines.first(), lines.last()) == (None, None)
    lines.path.write_bytes(b'{"step": 1}\nno json\n{"step": 3}\n{"st')
    assert (lines.first(), lines.last()) == ({"step": 1}, {"step": 3})
    assert lines.last(num_bytes=20) == {"step": 3}


def test_a_last_line_that_is_longer_than_what_is_read_is_none(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "events.jsonl")
    lines.append({"text": "x" * 100})
    assert lines.last(num_bytes=50) is None


# ── test toml text ────────────────────────────────────────────────────────────────────────────
# Text of TOML values reads back as the values.


@pytest.mark.parametrize(
    "value", [True, 3, 1e-06, 'a\x7fb\n"c"', [1, 2], ["a", "b"], {"a b": {"c": [False]}}, [{"x": 1}, {"y": "z"}]]
)
def test_a_value_reads_back(value: object) -> None:
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


@pytest.mark.parametrize("key", ["plain-key_1", "with space", "dot.ted", "é"])
def test_a_key_reads_back(key: str) -> None:
    assert tomllib.loads(f"{toml_key(key)} = 1") == {key: 1}
