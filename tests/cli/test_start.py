"""`asyncrl example` and `asyncrl init` on the command line."""

from pathlib import Path

from click.testing import CliRunner, Result

from asyncrl.cli.main import main


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_example_lists_what_there_is() -> None:
    listed = asyncrl("example").output.splitlines()
    assert any(line.startswith("  quickstart  ") for line in listed)
    assert "services and monitoring" in listed


def test_example_copies_a_run_file_and_prints_the_next_commands(tmp_path: Path) -> None:
    result = asyncrl("example", "quickstart", "--to", tmp_path)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        str(tmp_path / "conf/quickstart.toml"),
        "next:",
        "  asyncrl toy step-sums cache/step-sums",
        "  asyncrl run conf/quickstart.toml",
    ]


def test_example_says_which_files_were_there_already(tmp_path: Path) -> None:
    asyncrl("example", "quickstart", "--to", tmp_path)
    again = asyncrl("example", "quickstart", "--to", tmp_path)
    assert again.output.splitlines()[0] == (f"{tmp_path}/conf/quickstart.toml, which is there already, was left alone")
