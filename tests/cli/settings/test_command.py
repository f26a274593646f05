"""`asyncrl config` on the command line; tests/cli/test_main.py has `asyncrl config show`."""

from click.testing import CliRunner

from asyncrl.cli.main import main


def test_explain_prints_a_setting_and_refuses_what_is_none() -> None:
    found = CliRunner().invoke(main, ["config", "explain", "run.steps"])
    assert (found.exit_code, found.output.splitlines()[0]) == (0, "run.steps = 60")
    refused = CliRunner().invoke(main, ["config", "explain", "run.step"])
    assert (refused.exit_code, refused.stderr) == (
        78,
        "asyncrl: unknown key 'run.step': did you mean 'run.steps'?\n",
    )


def test_help_of_run_set_and_config_leads_to_explain() -> None:
    for command in (["run"], ["set"], ["config"]):
        assert "explain" in CliRunner().invoke(main, [*command, "--help"]).output
