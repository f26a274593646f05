"""verl's names are those that the configuration says they are, and lead to what there is."""

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import pytest

from asyncrl.config import sections as config
from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config, Section
from asyncrl.config.toml import put, split_override
from asyncrl.config.verl_names import NAMES, ours
from asyncrl.errors import ConfigError

OTHERS = {("device", "trainer.device"), ("ratio_cap", "clip_ratio_c")}
"""Settings with verl's own name, or which share one with another that people mean more often."""


def keys(section: type[Section] = Config, where: str = "") -> set[str]:
    """Every setting and section of ours."""
    found = set()
    for key, kind in get_type_hints(section).items():
        found.add(where + key)
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= keys(kind, f"{where}{key}.")
    return found


def documented() -> set[tuple[str, str]]:
    """Our setting's last name, and verl's, as the docstrings of the configuration have them in brackets."""
    found = set()
    for section in ast.walk(ast.parse(Path(config.__file__).read_text())):
        if not isinstance(section, ast.ClassDef):
            continue
        for field, said in pairwise(section.body):
            if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
                brackets = re.search(r"\[([\w., ]+)\]\.?\s*$", str(said.value.value))
                names = brackets.group(1).split(", ") if brackets else []
                found |= {(ast.unparse(field.target), name) for name in names}
    return found


def test_every_name_leads_to_a_setting_of_ours_and_is_none_itself() -> None:
    assert set(NAMES.values()) <= keys()
    assert not [name for name in NAMES if name in {key.rpartition(".")[2] for key in keys()}]


def test_what_the_configuration_calls_verls_name_leads_to_that_setting() -> None:
    told = {(key, name) for key, name in documented() if re.fullmatch(r"[\w.]+", name)} - OTHERS
    assert len(told) > 40
    assert {(key, name) for key, name in told if (ours(name) or "").rpartition(".")[2] != key} == set()


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ("actor_rollout_ref.rollout.n=8", "schedule.group_size"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=32", "schedule.groups_per_step"),
        ("algorithm.adv_estimator=grpo", "algorithm.advantage"),
        ("reward.custom_reward_function.path=reward.py", "reward.function"),
        ("algorithm.rollout_correction.rollout_is=token", "algorithm.correction.importance"),
        ("data.train_files=a.parquet", "data.train"),
        ("max_response_length=512", "sampling.max_tokens"),
    ],
)
def test_whoever_types_verls_name_is_told_ours(override: str, setting: str) -> None:
    raw: dict[str, object] = {"model": {"path": "m"}, "data": {"train": "t"}}
    key, value = split_override(override, {})
    put(raw, key, value, "--set")
    with pytest.raises(ConfigError) as raised:
        decode(raw)
    assert str(raised.value) == f"unknown key {key!r}: that is verl's name; here it is {setting!r}"


def test_a_name_of_nobody_is_no_name_of_verls() -> None:
    assert ours("n") is ours("learning.rate") is None
