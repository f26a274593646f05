import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode, load_config, with_backend
from asyncrl.errors import ConfigError, LinkError
from asyncrl.files.access import new_secret, write_secret
from asyncrl.files.lock import locked
from asyncrl.runtime import held_run as held_run_module
from asyncrl.runtime.held_run import held_run


def config(**run: object) -> Config:
    return with_backend(decode({"model": {"path": "/m"}, "data": {"train": "/t"}, "run": run}))


def test_the_same_command_creates_a_run_and_continues_it(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with held_run(path, config()) as created:
        assert load_config(created.directory.config) == config()
        assert created.directory.secret.stat().st_mode & 0o777 == 0o600
    with held_run(path, config()) as continued:
        assert continued.secret == created.secret


def test_a_run_is_its_owners_alone_unless_it_is_shared(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for name, is_shared in (("a", False), ("b", True)):
            with held_run(tmp_path / "runs" / name, config(share_with_group=is_shared)):
                pass
    finally:
        os.umask(before)
    found = [(tmp_path / "runs" / name).stat().st_mode & 0o777 for name in ("", "a", "b")]
    assert found == [0o755, 0o700, 0o750]


def test_a_run_directory_that_others_could_enter_is_closed_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with held_run(path, config()):
        pass
    path.chmod(0o755)
    with capture_logs() as logs, held_run(path, config()):
        assert path.stat().st_mode & 0o777 == 0o700
    assert [line["cause"] for line in logs if line["event"] == "run.was_open"] == [
        f"other users could enter {path} (mode 0755): it is 0700 from now on"
    ]


def test_a_configuration_that_others_could_have_written_is_not_resumed(tmp_path: Path) -> None:
    with held_run(tmp_path / "a", config()):
        pass
    (tmp_path / "a" / "config.toml").chmod(0o666)
    with pytest.raises(ConfigError, match="it may name code of theirs"), held_run(tmp_path / "a", config()):
        pass


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
    monkeypatch.setattr(held_run_module, "LOCK_WAIT_S", 0.0)
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
