"""`asyncrl config` on the command line."""

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


def test_config_show_notes_settings_that_hardly_anybody_wants(config):
    assert "note:" not in asyncrl("config", "show", config).output
    result = asyncrl("config", "show", config, "--set", "algorithm.loss=reinforce", "--set", "schedule.staleness=2")
    assert result.exit_code == 0
    assert "note: algorithm.loss is 'reinforce' with no importance weights" in result.stderr


def test_config_show_refuses_a_misspelt_key(config):
    result = asyncrl("config", "show", config, "--set", "schedule.stalenes=1")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: unknown key 'schedule.stalenes': did you mean 'schedule.staleness'?\n"
