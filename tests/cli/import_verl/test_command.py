"""`asyncrl import-verl` refuses what it cannot read, and exits with 1 if the run cannot work."""

import tomllib
from pathlib import Path

import pytest

from tests.cli.import_verl.options import NEEDED
from tests.cli.invoke import asyncrl


def test_an_output_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = asyncrl("import-verl", *NEEDED, "-o", str(tmp_path / "file" / "run.toml"))
    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: cannot write ")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("trainer.val_only=True", *NEEDED), "cannot: "),
        (("algorithm.adv_estimator=grpo",), "missing: model.path is missing"),
        ((*NEEDED, "actor_rollout_ref.rollout.n=1"), "note: the run file does not pass the check"),
    ],
)
def test_a_run_that_cannot_work_is_still_printed_and_exits_with_1(options: tuple[str, ...], sentence: str) -> None:
    result = asyncrl("import-verl", *options)
    assert result.exit_code == 1
    assert tomllib.loads(result.stdout)
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.sh",), "the script nowhere.sh cannot be read: No such file or directory"),
        (("a.b=1", "nonsense"), "'nonsense' is no option: expected KEY=VALUE"),
        ((__file__, "--env", "1=2"), "--env '1=2': expected NAME=VALUE"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = asyncrl("import-verl", *arguments)
    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: ")
    assert sentence in result.stderr
