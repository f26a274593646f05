"""`asyncrl plan` writes pages, and refuses options that nothing would read."""

import pytest

from tests.cli.invoke import asyncrl


def test_the_page_is_written_to_the_given_file(toy, tmp_path):
    result = asyncrl("plan", toy, "--no-search", "--picture", tmp_path / "toy.html")
    assert result.exit_code == 0
    assert "<svg" in (tmp_path / "toy.html").read_text()
    assert result.stderr == f"simulating\n{tmp_path / 'toy.html'}\n"


def test_a_contradictory_plan_is_refused_in_one_sentence(toy):
    result = asyncrl("plan", toy, "--set", "rollout.devices=2")
    assert result.exit_code == 78
    assert result.stderr == "asyncrl: rollout.devices is 2 of 2 devices: at least one has to be left to train\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "--memory", "--picture", "x.html"], "--picture and --no-search are not for --memory; remove them"),
        (["plan", "--device-memory", "80GB"], "--device-memory is for --memory; add it, or remove both"),
        (
            ["run", "--device-memory", "80GB"],
            "--device-memory is for --dry-run, which checks that the run fits into it",
        ),
        (
            ["plan", "--memory", "--device-memory", "80"],
            "--device-memory is '80': expected a number of bytes with a unit",
        ),
    ],
)
def test_options_that_nothing_would_read_are_refused(run_file, arguments, sentence):
    result = asyncrl(*arguments, run_file)
    assert result.exit_code == 78
    assert sentence in result.stderr
