import pytest

from asyncrl.config.config import Config
from asyncrl.config.live import changed
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError


def config(**sections: dict[str, object]) -> Config:
    return decode({"model": {"path": "m"}, "data": {"train": "t"}, **sections})


def test_the_same_configuration_has_no_changes() -> None:
    assert changed(config(), config()) == {}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "steps", 90),
        ("run", "skip_steps", [3]),
        ("broker", "bind", "tcp://127.0.0.1:5570"),
        ("rollout", "slots", 8),
        ("checkpoint", "every_steps", 3),
        ("trainer", "nodes", 2),
        ("trainer", "ranks", 2),
    ],
)
def test_what_does_not_change_the_meaning_of_the_records_may_change(section: str, key: str, value: object) -> None:
    assert changed(config(), config(**{section: {key: value}})) == {f"{section}.{key}": value}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("run", "seed", 8), ("schedule", "group_size", 4), ("model", "path", "other"), ("trainer", "lr", 1e-3)],
)
def test_a_value_that_the_records_depend_on_is_refused_and_named(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{section}.{key} is .*, but this run was created with .*another --run-dir"):
        changed(config(), config(**{section: {key: value}}))


def test_the_form_of_prompts_may_not_change() -> None:
    with pytest.raises(ConfigError, match=r"data\.as_chat is True, but this run was created with False"):
        changed(config(), config(data={"train": "t", "as_chat": True}))


def test_a_run_is_not_shortened() -> None:
    with pytest.raises(ConfigError, match=r"run\.steps is 30, but this run was created with 60: a run can be extended"):
        changed(config(), config(run={"steps": 30}))
