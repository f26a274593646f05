import subprocess
import sys
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest

from asyncrl.cli.launch.checks.own_process import answer, check_apart
from asyncrl.config.config import Config, to_json
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError


@pytest.fixture
def config() -> Config:
    return decode({"model": {"path": "m"}, "data": {"train": "t"}})


def test_a_check_that_hangs_is_one_sentence(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, timeout: float, **__: Any) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(ConfigError, match="it took too long"):
        check_apart("any", config, limit_s=3.0, too_slow="it took too long")


def test_a_check_that_crashes_is_one_sentence(config: Config) -> None:
    with pytest.raises(ConfigError, match="No module named asyncrl_there_is_none"):
        check_apart("asyncrl_there_is_none", config, limit_s=60.0, too_slow="")


def test_the_answer_is_a_line_and_an_exit_code(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(got: Config) -> None:
        assert got == config
        raise ConfigError("no")

    checks = ((refuse, 78, "", "asyncrl: no\n"), (lambda _: None, 0, "", ""), (lambda _: b"found", 0, "found", ""))
    for check, code, found, line in checks:
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(to_json(config))))
        assert answer(check) == code
        assert capsys.readouterr() == (found, line)
