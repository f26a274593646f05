from datetime import date
from typing import Any

import pytest
from msgspec import structs

from asyncrl.errors import ConfigError
from asyncrl.keys.allow_list import AllowedKey, AllowList, owns, utc_date, utc_time

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
