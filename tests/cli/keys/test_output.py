from datetime import date

from asyncrl.cli.keys.output import as_json, table
from asyncrl.keys.allow_list import AllowedKey, AllowList
from asyncrl.keys.key import new_key

BROKER = new_key("broker", ())
NOW_S = 1_790_000_000.0
ROTATED = AllowedKey("gpu1", ("rollout",), b"a" * 32, date(2026, 9, 21), b"b" * 32, 1_790_000_060)


def state(now_s: float) -> object:
    return as_json(BROKER, AllowList([ROTATED]), now_s)["keys"][0]["state"]


def test_a_previous_key_is_part_of_the_state_until_its_overlap_ends() -> None:
    assert state(NOW_S) == "allowed; 6262626262626262 too until 2026-09-21 14:14:20 UTC"
    assert state(NOW_S + 60) == "allowed"


def test_the_columns_of_the_table_are_aligned() -> None:
    other = AllowedKey("trainer", ("trainer", "spool"), b"c" * 32, date(2026, 9, 21))
    lines = table(BROKER, AllowList([ROTATED, other]), NOW_S + 60).splitlines()
    assert lines == [
        f"broker's public key: {BROKER.public.hex()}",
        "",
        "name     roles           fingerprint       added       state",
        "gpu1     rollout         6161616161616161  2026-09-21  allowed",
        "trainer  trainer, spool  6363636363636363  2026-09-21  allowed",
    ]
