"""An advantage estimator is tried on groups whose best trajectory is known."""

from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.plug_ins.advantage import (
    GROUPS,
    LENGTHS,
    AdvantageResult,
    examine,
    problems,
    step,
    table,
)


def examined(tmp_path: Path, body: str, *overrides: str) -> list[AdvantageResult]:
    file = tmp_path / "my.py"
    file.write_text(f"import numpy as np\ndef advantage(outcomes, *, scale=1.0):\n    return {body}\n")
    return examine(f"{file}:advantage", overrides)


def test_the_built_in_one_is_equal_to_itself_and_equal_rewards_teach_nothing() -> None:
    results = examine("grpo")
    assert len(results) == len(GROUPS) * len(LENGTHS)
    assert all(one.advantage == one.grpo for one in results)
    assert [one.advantage for one in results if one.group == "all equal"] == [0.0] * 4
    assert problems(results) == []


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "reinforce_plus_plus", "remax", "opo", "optimal_token_baseline"])
def test_built_in_ones_can_be_tried(name: str) -> None:
    assert problems(examine(name)) == []


def test_options_reach_the_function(tmp_path: Path) -> None:
    body = "[np.full(one.length, scale * one.reward) for one in outcomes]"
    once, thrice = (examined(tmp_path, body, f"algorithm.advantage_options.scale={scale}") for scale in (1.0, 3.0))
    assert [one.advantage for one in thrice] == pytest.approx([3 * one.advantage for one in once])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[np.full(one.length, -one.reward) for one in outcomes]", "better trajectories should become likelier"),
        ("[np.zeros(one.length) for one in outcomes]", "every advantage is 0: nothing is trained"),
    ],
)
def test_one_that_cannot_be_trained_with_is_told(tmp_path: Path, body: str, said: str) -> None:
    assert said in problems(examined(tmp_path, body))[0]


def test_a_wrong_shape_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"returned an array of shape \[1\] for trajectory 0, expected \[3\]"):
        examined(tmp_path, "[np.zeros(1) for _ in outcomes]")


def test_the_table_has_a_row_for_each_trajectory() -> None:
    rows = table(examine("grpo"))
    assert len(rows) == 1 + len(step())
    assert rows[4] == ["one right", "1", "31", "+1.500", "+1.500"]
