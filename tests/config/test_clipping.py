"""The default of clip_high: wide for old trajectories alone."""

from typing import Any

import pytest

from asyncrl.config.correction import WIDE, with_clip_high
from asyncrl.config.run_file import decode


def clip_high(staleness: float | str, **algorithm: Any) -> float | None:
    plain = {"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"staleness": staleness}}
    return with_clip_high(decode(plain | {"algorithm": algorithm})).clip_high


@pytest.mark.parametrize(
    ("staleness", "expected"), [(0, None), (1, None), (3.5, None), (4, WIDE), (16, WIDE), ("auto", WIDE)]
)
def test_it_is_wide_from_a_staleness_on(staleness: float | str, expected: float | None) -> None:
    assert clip_high(staleness) == clip_high(staleness, loss="vanilla") == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"clip_high": 0.28}, 0.28),
        ({"correction": {"mode": "decoupled"}}, None),
        ({"loss": "gspo"}, None),
        ({"loss": "mine.py:loss"}, None),
        ({"correction": {"preset": "bypass_ppo_clip_mask"}}, WIDE),
    ],
    ids=["set", "ratio to the policy before the step", "another loss", "a custom loss", "preset"],
)
def test_it_is_left_alone_where_it_is_set_or_bounds_something_else(
    algorithm: dict[str, Any], expected: float | None
) -> None:
    assert clip_high(16, **algorithm) == expected
