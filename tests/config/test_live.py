"""Settings that may change: while a run goes on, and between two starts."""

import pytest

from asyncrl.config.config import Config
from asyncrl.config.live import assigned, changed, live_keys, schedule_with, with_values
from asyncrl.errors import ConfigError
from tests.broker.driver import a_config
from tests.config.configs import made


def test_the_live_settings_are_these() -> None:
    assert live_keys() == (
        "schedule.staleness", "sampling.max_tokens", "trainer.lr", "evaluation.every_versions"
    )  # fmt: skip


def test_values_are_converted_and_those_that_change_nothing_are_left_out() -> None:
    config = a_config()
    found = assigned(config, config, ["trainer.lr = 1e-4", "staleness=1", "evaluation.every_versions=-1"])
    assert found == {"trainer.lr": 1e-4, "evaluation.every_versions": 0}
    changed = with_values(config, found)
    assert (changed.trainer.lr, changed.evaluation.every_versions) == (1e-4, 0)
    assert (
        with_values(changed, assigned(changed, config, ["trainer.lr=1e-6", "evaluation.every_versions=10"])) == config
    )


@pytest.mark.parametrize(
    ("config", "assignment", "sentence"),
    [
        (a_config(), "run.steps=9", "run.steps cannot be set while the run goes on; these can: schedule.staleness"),
        (a_config(), "run.steps=9", "; `asyncrl resume RUN --steps N` makes a run longer that has ended"),
        (a_config(), "trainer.lrr=2", "unknown key 'trainer.lrr': did you mean 'trainer.lr'"),
        (a_config(), "algorithm.loss_options.a=2", "algorithm.loss_options.a cannot be set while the run goes on"),
        (a_config(), "trainer.lr=-1", "trainer.lr: expected a number > 0, got -1"),
        (a_config(), "trainer.lr=fast", "trainer.lr: expected a number such as 1e-5, got 'fast'"),
        (a_config(), "trainer.lr", "expected section.key=value"),
        (a_config(), "schedule.staleness=inf", "expected a finite number"),
        (a_config(schedule={"groups_per_step": 2, "max_staleness": 1, "order": "completion"}), "staleness=3",
         "schedule.max_staleness is 1, but staleness=3 admits"),
        (a_config(), "sampling.max_tokens=129", "engines made room for 128, with which the run was started"),
        (a_config(schedule={"order": "windowed"}), "staleness=2", "because the reach follows it"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(config: Config, assignment: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        assigned(config, config, [assignment])


def test_a_shorter_length_may_be_set_and_taken_back() -> None:
    start = a_config()
    shorter = with_values(start, assigned(start, start, ["sampling.max_tokens=64"]))
    assert assigned(shorter, start, ["sampling.max_tokens=128"]) == {"sampling.max_tokens": 128}


def test_a_window_of_fixed_reach_may_change() -> None:
    config = a_config(schedule={"order": "windowed", "order_window": 4})
    assert assigned(config, config, ["staleness=2"]) == {"schedule.staleness": 2.0}


def test_a_schedule_takes_its_own_values() -> None:
    schedule = a_config().schedule
    changed = schedule_with(schedule, {"schedule.staleness": 2.0, "trainer.lr": 1.0})
    assert (changed.window, changed.groups_per_step) == (6, schedule.groups_per_step)


def test_the_same_configuration_has_no_changes() -> None:
    assert changed(made(), made()) == {}


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
    assert changed(made(), made(**{section: {key: value}})) == {f"{section}.{key}": value}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("run", "seed", 8), ("schedule", "group_size", 4), ("model", "path", "other"), ("trainer", "lr", 1e-3)],
)
def test_a_value_that_the_records_depend_on_is_refused_and_named(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{section}.{key} is .*, but this run was created with .*another --run-dir"):
        changed(made(), made(**{section: {key: value}}))


def test_the_form_of_prompts_may_not_change() -> None:
    with pytest.raises(ConfigError, match=r"data\.as_chat is True, but this run was created with False"):
        changed(made(), made(data={"train": "t", "as_chat": True}))


def test_a_run_is_not_shortened() -> None:
    with pytest.raises(ConfigError, match=r"run\.steps is 30, but this run has 60 by now: a run can be extended"):
        changed(made(), made(run={"steps": 30}))
