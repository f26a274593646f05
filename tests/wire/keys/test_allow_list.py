from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from asyncrl.errors import ConfigError
from asyncrl.wire.keys.allow_list import (
    LAST_S,
    AllowedKey,
    AllowList,
    from_text,
    owns,
    read_allow_list,
    to_text,
    utc_date,
    utc_time,
    write_allow_list,
)
from asyncrl.wire.keys.key import ROLES

NOW_S = 1_790_000_000.0
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def entry(name: str = "gpu1", public: bytes = A, **fields: Any) -> AllowedKey:
    return structs.replace(AllowedKey(name, ("rollout",), public, date(2026, 9, 21)), **fields)


def owner(allowed: AllowList, public: bytes, now_s: float = NOW_S) -> str | None:
    found = allowed.owner_of(public, now_s)
    return found.name if found else None


@pytest.mark.parametrize("node", ["rollout-a", "rollout-a-0", "rollout-a-1-x", "rollout-a-"])
def test_a_key_serves_the_nodes_of_its_machine(node: str) -> None:
    assert owns("rollout-a", node)


@pytest.mark.parametrize("node", ["", "rollout", "rollout-", "rollout-b", "rollout-ab", "Rollout-a", " rollout-a"])
def test_a_key_serves_no_other_node(node: str) -> None:
    assert not owns("rollout-a", node)


def test_dates_and_times_are_utc() -> None:
    assert utc_date(NOW_S) == date(2026, 9, 21)
    assert utc_time(NOW_S) == "2026-09-21 14:13:20 UTC"


def test_an_empty_list_allows_nobody() -> None:
    assert owner(AllowList(), A) is None
    assert owner(AllowList([entry()]), b"") is None


def test_an_added_key_has_an_owner_and_a_revoked_one_has_none() -> None:
    allowed = AllowList().add(entry("gpu1", A)).add(entry("gpu2", B))
    assert (owner(allowed, A), owner(allowed, B), owner(allowed, C)) == ("gpu1", "gpu2", None)
    fewer = allowed.revoke("gpu1")
    assert (owner(fewer, A), owner(fewer, B)) == (None, "gpu2")
    assert owner(allowed, A) == "gpu1", "a change returns another list"


def test_a_name_and_a_key_are_in_the_list_once() -> None:
    allowed = AllowList([entry("gpu1", A, previous=B, previous_until=1)])
    with pytest.raises(ConfigError, match="there is a key named 'gpu1' already: rotate it, or revoke it first"):
        allowed.add(entry("gpu1", C))
    for public in (A, B):
        with pytest.raises(
            ConfigError, match=f"the key {public.hex()[:16]} belongs to 'gpu1' already: make another pair"
        ):
            allowed.add(entry("gpu2", public))
    with pytest.raises(ConfigError, match="belongs to 'gpu1' already"):
        AllowList([entry("gpu1", A, previous=A)])


@pytest.mark.parametrize("names", [("gpu", "gpu-1"), ("gpu-1-x", "gpu"), ("a-b", "a-b-c-d")])
def test_a_node_name_belongs_to_at_most_one_key(names: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"a node '.*' could use the key '.*' as well as the key '.*': choose names"):
        AllowList([entry(names[0], A), entry(names[1], B)])


def test_names_that_share_no_node_stand_side_by_side() -> None:
    assert len(AllowList([entry("gpu-1", A), entry("gpu-11", B), entry("gp", C)])) == 3


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"name": "a/b"}, "'a/b' cannot name a key"),
        ({"name": "broker"}, "'broker' is the name of the broker's own key"),
        ({"roles": ()}, "gpu1 has no role; give it at least one"),
        ({"roles": ("rollouts",)}, "unknown role 'rollouts'"),
        ({"public": b""}, "public: expected 32 bytes, got 0"),
        ({"previous": b"x"}, "previous: expected 32 bytes, got 1"),
        ({"previous_until": -1}, "previous_until: expected 0 to 253402300799 seconds, got -1"),
        ({"previous_until": 253402300800}, "previous_until: expected 0 to"),
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(fields: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        entry(**fields)


def test_a_rotation_replaces_a_key_at_once() -> None:
    allowed = AllowList([entry("gpu1", A), entry("gpu2", B)]).rotate("gpu1", C, NOW_S)
    assert (owner(allowed, A), owner(allowed, C)) == (None, "gpu1")
    assert allowed.named("gpu1") == entry("gpu1", C, added=utc_date(NOW_S))
    assert [key.name for key in allowed] == ["gpu1", "gpu2"]


def test_both_keys_are_accepted_until_the_overlap_ends() -> None:
    allowed = AllowList([entry("gpu1", A)]).rotate("gpu1", B, NOW_S, overlap_s=60.0)
    assert set(allowed.accepted(NOW_S)) == {A, B}
    assert (owner(allowed, A, NOW_S + 59.9), owner(allowed, A, NOW_S + 60.0)) == ("gpu1", None)
    assert owner(allowed, B, NOW_S + 60.0) == "gpu1"
    assert set(allowed.accepted(NOW_S + 60.0)) == {B}


def test_a_second_rotation_refuses_the_oldest_key_at_once() -> None:
    allowed = AllowList([entry("gpu1", A)]).rotate("gpu1", B, NOW_S, 60.0).rotate("gpu1", C, NOW_S, 60.0)
    assert (owner(allowed, A), owner(allowed, B), owner(allowed, C)) == (None, "gpu1", "gpu1")


def test_a_revoked_key_takes_its_previous_one_along() -> None:
    allowed = AllowList([entry("gpu1", A)]).rotate("gpu1", B, NOW_S, 60.0).revoke("gpu1")
    assert (owner(allowed, A), owner(allowed, B), len(allowed)) == (None, None, 0)


def test_a_rotation_to_a_known_key_is_refused() -> None:
    allowed = AllowList([entry("gpu1", A), entry("gpu2", B)])
    for public, of in ((A, "gpu1"), (B, "gpu2")):
        with pytest.raises(ConfigError, match=f"belongs to '{of}' already"):
            allowed.rotate("gpu1", public, NOW_S)


def test_an_unknown_name_is_answered_with_those_that_are_meant() -> None:
    allowed = AllowList([entry("gpu1", A), entry("trainer", B)])
    with pytest.raises(ConfigError, match=r"there is no key named 'trainr': did you mean 'trainer'\?"):
        allowed.revoke("trainr")
    with pytest.raises(ConfigError, match="there is no key named 'zzz': there are: gpu1, trainer"):
        allowed.rotate("zzz", C, NOW_S)
    with pytest.raises(ConfigError, match="there are: none"):
        AllowList().named("gpu1")


# ── test allow list file ──────────────────────────────────────────────────────────────────────

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
