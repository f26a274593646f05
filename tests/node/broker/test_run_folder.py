from pathlib import Path

import pytest

from asyncrl.config.config import Config
from asyncrl.config.resolve import with_backend
from asyncrl.config.run_file import decode, load_config
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.lock import locked
from asyncrl.files.secret_file import new_secret, write_secret
from asyncrl.node.broker import run_folder
from asyncrl.node.broker.run_folder import held_run


def config(**run: object) -> Config:
    return with_backend(decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "run": run}))


def test_the_same_command_creates_a_run_and_continues_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with held_run(path, config()) as created:
        assert load_config(created.directory.config) == config()
        assert created.directory.secret.stat().st_mode & 0o777 == 0o600
    with held_run(path, config()) as continued:
        assert continued.secret == created.secret


def test_a_run_is_extended_by_its_command(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    with held_run(tmp_path / "a", config(steps=90)) as run:
        assert load_config(run.directory.config).run.steps == 90


def test_a_run_of_another_configuration_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    with (
        pytest.raises(ConfigError, match=r"run\.seed is 8, but this run was created with 0"),
        held_run(tmp_path / "a", config(seed=8)),
    ):
        pass
    assert load_config(tmp_path / "a" / "config.toml") == config()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with (
        pytest.raises(ConfigError, match=r"has files \(thesis.tex\), but no config.toml"),
        held_run(tmp_path, config()),
    ):
        pass


def test_a_broker_that_was_killed_before_it_wrote_anything_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "broker.lock").write_text("7\n")
    write_secret(tmp_path / "secret", new_secret())
    with held_run(tmp_path, config()):
        assert (tmp_path / "config.toml").is_file()


def test_a_second_broker_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_WAIT_S", 0.0)
    with (
        locked(tmp_path / "broker.lock", "held"),
        pytest.raises(LinkError, match=r"another broker serves .* \(process \d+\); stop it, or give another --run-dir"),
        held_run(tmp_path, config()),
    ):
        pass
    assert not (tmp_path / "config.toml").exists()


def test_a_given_secret_is_used_and_not_copied(tmp_path: Path) -> None:
    secret = new_secret()
    write_secret(tmp_path / "given", secret)
    with held_run(tmp_path / "a", config(), tmp_path / "given") as run:
        assert run.secret == secret
    assert not (tmp_path / "a" / "secret").exists()
