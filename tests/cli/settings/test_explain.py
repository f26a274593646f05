"""What settings mean, as lines for a terminal."""

import pytest

from asyncrl.cli.settings.explain import WIDTH, explanation
from asyncrl.config.meanings import meanings, section_meanings
from asyncrl.errors import ConfigError


def test_a_setting_has_default_type_meaning_and_verls_name() -> None:
    assert explanation("schedule.group_size") == [
        "schedule.group_size = 8",
        "  integer ≥ 1",
        "  n, trajectories per prompt; most advantages compare them with each other.",
        "  verl: rollout.n",
    ]
    assert explanation("trainer.lr")[:2] == ["trainer.lr = 1e-06", "  number > 0; live"]
    assert explanation("model.path")[0] == "model.path, required"


def test_a_section_has_its_settings_and_names_its_subsections() -> None:
    lines = explanation("rollout")
    assert lines[0] == "[rollout]"
    assert "rollout.slots = 64" in lines
    assert lines[-1] == "see also: asyncrl config explain rollout.vllm"
    assert "rollout.vllm.enforce_eager = false" in explanation("rollout.vllm")
    assert "reward.parts.weight = 1.0" in explanation("reward.parts")


def test_without_a_name_every_section_is_listed() -> None:
    listed = {line.split()[0] for line in explanation("") if line.startswith("[")}
    assert listed >= {f"[{section}]" for section in section_meanings()}


def test_no_line_is_longer_than_a_terminal() -> None:
    names = ["", *section_meanings(), *meanings()]
    assert [line for name in names for line in explanation(name) if len(line) > WIDTH] == []


def test_a_name_that_is_no_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'lr': did you mean 'trainer\.lr'\?"):
        explanation("lr")
