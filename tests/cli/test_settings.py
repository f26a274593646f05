"""`asyncrl config` on the command line."""

import pytest

from asyncrl.cli.settings import WIDTH, explanation
from asyncrl.config.meanings import meanings, section_meanings
from asyncrl.errors import ConfigError
from tests.cli.invoke import asyncrl


def test_explain_prints_a_setting_and_refuses_what_is_none() -> None:
    found = asyncrl("config", "explain", "run.steps")
    assert (found.exit_code, found.output.splitlines()[0]) == (0, "run.steps = 60")
    refused = asyncrl("config", "explain", "run.step")
    assert (refused.exit_code, refused.stderr) == (
        78,
        "asyncrl: unknown key 'run.step': did you mean 'run.steps'?\n",
    )


def test_help_of_run_set_and_config_leads_to_explain() -> None:
    for command in (["run"], ["set"], ["config"]):
        assert "explain" in asyncrl(*command, "--help").output


def test_config_show_names_the_origin_of_each_value(config):
    result = asyncrl("config", "show", config, "--set", "seed=5")
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines()}
    assert lines["run.seed"] == ["5", "--set"]
    assert lines["run.steps"] == ["3", "toy.toml"]
    assert lines["trainer.lr"] == ["1e-06", "default"]
    assert lines["schedule.max_staleness"] == ["unset", "default"]


def test_epochs_are_shown_as_steps(config):
    settings = ("--set", "run.epochs=5")
    shown = asyncrl("config", "show", config, *settings).output.splitlines()
    lines = {line.split()[0]: line.split()[1:] for line in shown}
    assert (lines["run.steps"], lines["run.epochs"]) == (["10", "run.epochs"], ["5.0", "--set"])
    dry = asyncrl("run", config, "--dry-run", *settings).output
    assert "run.epochs = 5 is 10 steps with the rows of data.train" in dry
    assert "10 steps of 2 groups of 4 trajectories" in dry


def test_epochs_of_data_that_is_not_here_are_shown_without_steps(config):
    result = asyncrl("config", "show", config, "--set", "run.epochs=5", "--set", "data.train=nowhere.parquet")
    assert result.exit_code == 0
    assert not [line for line in result.stdout.splitlines() if line.startswith("run.steps ")]
    assert "note: run.steps follows from run.epochs and data.train: " in result.stderr
    assert "nowhere.parquet" in result.stderr


def test_config_show_notes_settings_that_hardly_anybody_wants(config):
    assert "note:" not in asyncrl("config", "show", config).output
    result = asyncrl("config", "show", config, "--set", "algorithm.loss=reinforce", "--set", "schedule.staleness=2")
    assert result.exit_code == 0
    assert "note: algorithm.loss is 'reinforce' with no importance weights" in result.stderr


def test_config_show_refuses_a_misspelt_key(config):
    result = asyncrl("config", "show", config, "--set", "schedule.stalenes=1")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: unknown key 'schedule.stalenes': did you mean 'schedule.staleness'?\n"


# ── test explain ──────────────────────────────────────────────────────────────────────────────
# What settings mean, as lines for a terminal.


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
