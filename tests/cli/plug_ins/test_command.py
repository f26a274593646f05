"""`asyncrl reward try` on the command line."""

from pathlib import Path

from click.testing import CliRunner, Result

from asyncrl.cli.main import main


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_reward_try_exits_with_1_if_a_verdict_fails_and_with_78_if_there_is_no_function(tmp_path: Path) -> None:
    data, file = tmp_path / "rows.jsonl", tmp_path / "my.py"
    data.write_text('{"prompt": "4 + 4", "answer": "8"}\n')
    file.write_text("def score(inputs):\n    return 1 / len(inputs.completion)\n")
    failed = asyncrl("reward", "try", file, data)
    assert failed.exit_code == 1
    assert "ZeroDivisionError in 1 of 5 verdicts" in failed.output
    assert asyncrl("reward", "try", file, data, "--completion", "8").exit_code == 0
    assert asyncrl("reward", "try", "gsmk", data).exit_code == 78
