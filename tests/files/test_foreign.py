"""Files that others wrote: what none of them can do to a process."""

import os
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.errors import DataError
from asyncrl.files.foreign import (
    MAX_BYTES,
    MAX_DEPTH,
    NoSuchFile,
    parse_json,
    parse_toml,
    read_bytes,
    read_json,
    read_text,
    within,
)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe that nobody writes to": (os.mkfifo, "it is a pipe, expected a regular file"),
    "a link to a device without an end": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "a folder": (Path.mkdir, "it is a folder"),
    "a socket": (a_socket, "it is a socket"),
    "a link to itself": (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "there is no such file"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    make, words = KINDS[kind]
    make(tmp_path / "f")
    with pytest.raises(DataError, match=f"/f cannot be read: {words}"):
        read_bytes(tmp_path / "f")


def test_a_file_that_is_missing_is_told_from_others(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="/none cannot be read: there is no such file"):
        read_bytes(tmp_path / "none")
    with pytest.raises(DataError, match=r"\\x00/none cannot be read: that is no path of a file"):
        read_bytes(tmp_path / "\0" / "none")
    with pytest.raises(DataError, match="File name too long"):
        read_bytes(tmp_path / ("a" * 300))


def test_a_file_is_read_up_to_its_limit_and_no_further(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"abcd")
    assert read_bytes(file, 4) == b"abcd"
    with pytest.raises(DataError, match="/f is too large: the limit is 3 bytes; make it smaller"):
        read_bytes(file, 3)
    os.truncate(file, 2**40)
    with pytest.raises(DataError, match="is too large"):
        read_bytes(file)


def test_a_file_that_claims_to_be_empty_is_read_up_to_its_limit() -> None:
    """As those of /proc do; one that grows while it is read is the same."""
    with pytest.raises(DataError, match="is too large"):
        read_bytes(Path("/proc/self/status"), 16)


def test_the_name_of_a_file_acts_on_no_terminal(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/a\\n\\x1b\[2Jb cannot be read"):
        read_bytes(tmp_path / "a\n\x1b[2Jb")


@pytest.mark.parametrize("content", [b"\xff", "{}".encode("utf-16"), b"caf\xe9"])
def test_a_text_of_another_encoding_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match="/f is not text in UTF-8: 'utf-8' codec can't decode"):
        read_text(tmp_path / "f")


def test_links_lead_about_in_a_folder_and_to_the_blobs_of_the_hub(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--o--n" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blob = tmp_path / "models--o--n" / "blobs" / "123"
    blob.parent.mkdir()
    blob.write_bytes(b"{}")
    (snapshot / "config.json").symlink_to("../../blobs/123")
    (snapshot / "other.json").symlink_to("config.json")
    (snapshot / "up.json").symlink_to("../up.json")
    (tmp_path / "linked").symlink_to(snapshot)
    for folder in (snapshot, tmp_path / "linked"):
        for name in ("config.json", "other.json"):
            assert read_json(within(folder, name), dict) == {}
        for name in ("up.json", "../abc/config.json", "../../blobs/123", "/etc/passwd", ""):
            with pytest.raises(DataError, match="leads out of the folder"):
                within(folder, name)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").symlink_to(blob)
    with pytest.raises(DataError, match=r"leads out of the folder .*/own, to .*/123: expected a file in it; copy"):
        within(tmp_path / "own", "config.json")


@pytest.mark.parametrize("depth", [MAX_DEPTH, 500, 100_000])
def test_what_is_nested_beyond_the_limit_is_refused(depth: int) -> None:
    text = "[" * depth + "]" * depth
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1), Any, "it")
    for parse in (lambda: parse_json(f"[{text}]", Any, "it"), lambda: parse_toml(f"a = {text}", "it")):
        with pytest.raises(DataError, match="it is nested too deeply: expected at most 64 levels; flatten it"):
            parse()


@pytest.mark.parametrize("number", ["9" * 40, "-" + "9" * 40, "9" * 5000, "0x" + "f" * 20_000])
def test_a_number_that_no_message_holds_is_refused(number: str) -> None:
    with pytest.raises(DataError, match=r"it has a whole number of|it is not TOML: Exceeds the limit"):
        parse_toml(f"a = {number}", "it")
    with pytest.raises(DataError, match=r"it has a whole number of|it is not a JSON object"):
        parse_json(number.encode(), Any, "it")


PARTS = st.one_of(
    st.text("ab-_1", min_size=1, max_size=3), st.sampled_from(['"a.b"', "'c.\"d'", '""', '"\\""', '"#"', "\"'''\""])
)


@given(st.lists(PARTS, min_size=MAX_DEPTH - 2, max_size=MAX_DEPTH + 2), st.sampled_from([".", " . ", "\t."]))
def test_a_dotted_key_has_so_many_parts_as_tables_can_be_nested(parts: list[str], dot: str) -> None:
    for text in (f"{dot.join(parts)} = 1", f"[ {dot.join(parts)} ]", f"# a.b'\nx = 'y.z' # '''\n[[{dot.join(parts)}]]"):
        if len(parts) > MAX_DEPTH:
            with pytest.raises(DataError, match=f"a key of {len(parts)} parts: expected at most 64; shorten it"):
                parse_toml(text, "it")
        elif len(parts) < MAX_DEPTH - 1:
            assert parse_toml(text, "it") == tomllib.loads(text)


@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_dots_in_a_text_or_a_comment_are_no_key(quote: str) -> None:
    many = ".".join("a" * 500)
    assert parse_toml(f"a = {quote}{many}{quote} # {many}\n", "it") == {"a": many}


@pytest.mark.parametrize(
    "piece", ['"\\', '"', "'", '"""\\', "'''", "a.", "a .", '"a".', "#\n]", "[", "\\", '""" """ "']
)
def test_any_text_is_looked_at_in_linear_time(piece: str) -> None:
    with pytest.raises(DataError):
        parse_toml(piece * (MAX_BYTES // 4 // len(piece)), "it")


@given(st.binary(max_size=40) | st.text("[]{}\",:\\ a1.-+e\n#='", max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_a_sentence(content: bytes) -> None:
    for value in (told(parse_json, content, Any, "it"), told(parse_toml, content.decode("utf-8", "replace"), "it")):
        assert not isinstance(value, DataError) or str(value).isprintable()


def told(parse: Callable[..., Any], *arguments: object) -> Any:
    """The value, or the refusal."""
    try:
        return parse(*arguments)
    except DataError as error:
        return error
