"""config.toml against the configuration in the ledger."""

from msgspec.structs import replace

from asyncrl.broker.audit.config_rules import config_problems, recorded_config
from asyncrl.config.config import to_json
from tests.broker.driver import a_config

CONFIG = a_config(run={"steps": 3})


def test_a_configuration_that_is_the_recorded_one() -> None:
    recorded = recorded_config(to_json(CONFIG).decode())

    assert recorded == CONFIG
    assert list(config_problems(CONFIG, CONFIG, is_over=True)) == []


def test_a_ledger_may_have_none_or_one_of_another_asyncrl() -> None:
    assert recorded_config("") is None
    assert recorded_config('{"run": {"strides": 3}}') is None


def test_what_may_change_may_differ_only_before_a_run_goes_on() -> None:
    longer = replace(CONFIG, run=replace(CONFIG.run, steps=5, seed=9))

    assert list(config_problems(CONFIG, longer, is_over=False)) == [
        "config.toml: run.seed is 9: expected 0, as in the ledger"
    ]
    assert list(config_problems(CONFIG, longer, is_over=True)) == [
        "config.toml: run.steps is 5: expected 3, as in the ledger",
        "config.toml: run.seed is 9: expected 0, as in the ledger",
    ]
