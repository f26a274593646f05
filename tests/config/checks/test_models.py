"""A model that nobody asks, or that nobody can wait for, is answered with one sentence."""

from typing import Any

import pytest

from asyncrl.config.run_file import changes, decode, overridden, to_toml
from asyncrl.config.toml import read
from asyncrl.errors import ConfigError
from tests.config.configs import made, refused

JUDGE = {"url": "http://10.0.0.5:8000/v1"}
TILL = {"environment": {"function": "till.py:Till"}}
OWN = {"reward": {"function": "judge.py:score", "timeout_s": 60}}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"models": {"judge": JUDGE}},
            "models.judge: an [environment] or a reward function of your own asks models, and there is neither; remove "
            "it, or set environment.function, tools or command, or reward.function = 'file.py:name'",
        ),
        (
            {"models": {"judge": {"url": "10.0.0.5:8000"}}, **OWN},
            "models.judge.url is '10.0.0.5:8000', no address: expected http://HOST:PORT/v1 or https://...",
        ),
        (
            {"models": {"judge": {"url": "http://me:secret@h/v1"}}, **OWN},
            "models.judge.url is 'http://me:secret@h/v1', with a user in it, who belongs in no run file: expected "
            "http://HOST:PORT/v1 or https://...",
        ),
        (
            {"models": {"judge": {"url": "http://h/v1?key=3"}}, **OWN},
            "models.judge.url is 'http://h/v1?key=3', with a query or a fragment: expected http://HOST:PORT/v1 or "
            "https://...",
        ),
        (
            {"models": {"my judge": JUDGE}, **OWN},
            "models.my judge: expected a name of letters, digits, - and _, at most 64 in all",
        ),
        (
            {"models": {"judge": JUDGE | {"key_env": "sk-1234"}}, **OWN},
            "models.judge.key_env is no name of an environment variable: name the variable that holds the key, which "
            "itself belongs in no run file",
        ),
        (
            {"models": {"judge": JUDGE | {"timeout_s": 60.0}}, **OWN},
            "models.judge.timeout_s is 60 for one attempt, more than deadline_s = 50 for all; lower it, or raise "
            "deadline_s",
        ),
        (
            {"models": {"judge": JUDGE}, "reward": {"function": "judge.py:score"}},
            "reward.timeout_s is 10 s, but one request to models.judge may take deadline_s = 50 s; raise "
            "reward.timeout_s above that, or lower deadline_s",
        ),
        (
            {"models": {"user": JUDGE | {"deadline_s": 60}}, **TILL},
            "environment.call_s is 60 s, but one request to models.user may take deadline_s = 60 s; raise "
            "environment.call_s above that, or lower deadline_s",
        ),
    ],
)
def test_a_model_that_cannot_work(sections: dict[str, Any], sentence: str) -> None:
    assert refused(**sections) == sentence


def test_a_program_has_no_limit_of_a_call() -> None:
    made(models={"user": JUDGE | {"deadline_s": 600}}, environment={"command": ["agent"]})


def test_each_kind_of_node_has_the_models_that_its_code_may_ask() -> None:
    for_both, for_rewards = made(models={"judge": JUDGE}, **TILL, **OWN), made(models={"judge": JUDGE}, **OWN)
    assert list(for_both.rollout_models) == list(for_both.reward_models) == ["judge"]
    assert (list(for_rewards.rollout_models), list(for_rewards.reward_models)) == ([], ["judge"])
    assert made(models={"judge": JUDGE}, **TILL).reward_models == {}


def test_an_unknown_key_of_a_model_is_answered_with_the_known_one() -> None:
    assert refused(models={"judge": JUDGE | {"urls": 3}}, **OWN) == (
        "unknown key 'models.judge.urls': did you mean 'models.NAME.url'?"
    )
    assert refused(models={"url": "http://h/v1"}, **OWN) == "models.url is a section, got 'http://h/v1'"


def test_a_model_is_set_on_the_command_line_and_read_back(tmp_path: Any) -> None:
    raw = {"model": {"path": "m"}, "data": {"train": "t"}, "run": {"steps": 3}, **OWN}
    config = overridden(raw, ["models.judge.url=http://h/v1", "models.judge.at_once=3"])
    assert [line for line in changes(config) if "models" in line] == [
        'models.judge.url = "http://h/v1"',
        "models.judge.at_once = 3",
    ]
    (tmp_path / "run.toml").write_text(to_toml(config))
    assert decode(read(tmp_path / "run.toml", "config file")) == config
    with pytest.raises(ConfigError, match="expected a finite number"):
        overridden(raw, ["models.judge.url=http://h/v1", "models.judge.requests_per_s=inf"])
