from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from asyncrl.errors import ConfigError
from asyncrl.keys.allow_list import LAST_S, AllowedKey, AllowList
from asyncrl.keys.allow_list_file import from_text, read_allow_list, to_text, write_allow_list
from asyncrl.keys.key import ROLES

NOW_S = 1_790_000_000.0
names = st.from_regex(r"[A-Za-z0-9._]{1,64}", fullmatch=True).filter(lambda name: name != "broker")
roles = st.lists(st.sampled_from(ROLES), min_size=1, unique=True).map(tuple)
keys = st.binary(min_size=32, max_size=32)
times = st.integers(0, LAST_S)


@st.composite
def allow_lists(draw: st.DrawFn) -> AllowList:
    chosen = draw(st.lists(names, unique=True, max_size=4))
    publics = iter(draw(st.lists(keys, unique=True, min_size=8, max_size=8)))
    entries = [AllowedKey(name, draw(roles), next(publics), draw(st.dates())) for name in chosen]
    rotated = [structs.replace(key, previous=next(publics), previous_until=draw(times)) for key in entries]
    return AllowList(draw(st.sampled_from(pair)) for pair in zip(entries, rotated, strict=True))


TWO = AllowList(
    [
        AllowedKey("gpu1", ("rollout", "reward"), b"a" * 32, date(2026, 9, 21)),
        AllowedKey("trainer", ("trainer",), b"b" * 32, date(2026, 9, 22), b"c" * 32, 1_790_000_060),
    ]
)
TEXT = f"""\
# Keys that may connect to the broker, written by `asyncrl keys`. A running broker reads this file again within seconds.
version = 1

[[key]]
name = "gpu1"
roles = ["rollout", "reward"]
public = "{"61" * 32}"
added = 2026-09-21

[[key]]
name = "trainer"
roles = ["trainer"]
public = "{"62" * 32}"
added = 2026-09-22
previous = "{"63" * 32}"
previous_until = 1790000060  # 2026-09-21 14:14:20 UTC
"""


@settings(deadline=None)
@given(allow_lists())
def test_every_list_is_read_as_it_was_written(allowed: AllowList) -> None:
    assert list(from_text(to_text(allowed))) == list(allowed)


def test_the_text_is_for_people() -> None:
    assert to_text(TWO) == TEXT


def rights(allowed: AllowList) -> set[tuple[bytes, str, tuple[str, ...]]]:
    return {(public, key.name, key.roles) for public, key in allowed.accepted(NOW_S).items()}


def test_a_file_that_ends_early_opens_no_door() -> None:
    for end in range(len(TEXT)):
        try:
            cut = from_text(TEXT[:end])
        except ConfigError:
            continue
        assert rights(cut) <= rights(TWO), TEXT[:end]


def test_an_emptied_file_is_no_list() -> None:
    with pytest.raises(ConfigError, match="missing key 'version'"):
        from_text("")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("version = 1", "version = 2", "version: expected 1, got 2"),
        ("version = 1", "version = true", "version: expected `int`, got `bool`"),
        ("[[key]]", "[[keys]]", "unknown key 'keys': did you mean 'key'?"),
        ("[[key]]", "[key]", "not TOML: "),
        ("roles", "role", "key 1 (gpu1): unknown key 'role': did you mean 'roles'?"),
        ('"trainer"]', '"trainers"]', "key 2 (trainer): unknown role 'trainers': expected one of"),
        ('["trainer"]', "[]", "key 2 (trainer): trainer has no role; give it at least one"),
        ('["trainer"]', '"trainer"', "key 2 (trainer): roles: expected `array`, got `str`"),
        ("6161", "616", "key 1 (gpu1): public: expected 64 hexadecimal digits, got 63 characters"),
        ("62" * 32, "61" * 32, "the key 6161616161616161 belongs to 'gpu1' already"),
        ("2026-09-22", '"soon"', "key 2 (trainer): added: invalid RFC3339 encoded date"),
        ("1790000060", "inf", "key 2 (trainer): previous_until: expected `int`, got `float`"),
        ('name = "gpu1"', "", "key 1 (without a name): missing key 'name'"),
        ('"gpu1"', '"trainer"', "there is a key named 'trainer' already"),
        ('"gpu1"', '"trainer-1"', "a node 'trainer-1' could use the key 'trainer'"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in TEXT
    path = tmp_path / "allowed.toml"
    path.write_text(TEXT.replace(old, new, 1))
    path.chmod(0o600)
    with pytest.raises(ConfigError) as raised:
        read_allow_list(path)
    assert str(raised.value).startswith(f"{path} is not an allow-list: {error}")


def test_a_written_file_is_private(tmp_path: Path) -> None:
    write_allow_list(tmp_path / "allowed.toml", TWO)
    assert (tmp_path / "allowed.toml").stat().st_mode & 0o777 == 0o600
    assert list(read_allow_list(tmp_path / "allowed.toml")) == list(TWO)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    write_allow_list(tmp_path / "allowed.toml", TWO)
    (tmp_path / "allowed.toml").chmod(mode)
    with pytest.raises(ConfigError, match=f"other users can write .* \\(mode 0{mode:o}\\): chmod 600"):
        read_allow_list(tmp_path / "allowed.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the allow-list .*allowed\.toml: No such file"):
        read_allow_list(tmp_path / "allowed.toml")
