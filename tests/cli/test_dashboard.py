import os
import signal
import threading
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

from asyncrl.tools.dashboard import app as start
from tests.cli.invoke import asyncrl


def test_the_address_is_printed_and_served_until_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, said = [], []

    def visit(url: str) -> None:
        with urllib.request.urlopen(f"{url}api/runs", timeout=10) as answer:
            statuses.append(answer.status)
        os.kill(os.getpid(), signal.SIGTERM)

    def echo(url: str) -> None:
        said.append(url)
        threading.Thread(target=visit, args=(url,)).start()

    monkeypatch.setattr(start, "echo", echo)
    monkeypatch.setattr(start, "configure_logging", lambda name: None)
    start.show([tmp_path], "127.0.0.1", 0)
    assert (statuses, len(said)) == ([200], 1)


def test_a_run_that_is_not_there_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    result = asyncrl("dashboard", tmp_path / "none", "--port", "0")
    assert (result.exit_code, "not a run directory" in result.output) == (78, True)


def test_an_address_that_others_reach_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(start.TOKEN, raising=False)
    result = asyncrl("dashboard", tmp_path, "--host", "0.0.0.0")
    assert (result.exit_code, "ASYNCRL_DASHBOARD_TOKEN" in result.output) == (78, True)
