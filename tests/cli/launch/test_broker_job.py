"""The broker's job: its run directory, its address, and a run that is complete already."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncrl.cli.launch.broker_job import broker_job
from asyncrl.config.run_file import load_config
from asyncrl.errors import ConfigError, LinkError
from asyncrl.node.broker import broker
from asyncrl.node.process import traces
from asyncrl.node.process.process import Job, Stopping
from asyncrl.observe.run_directory import RunDirectory


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\npath = "{tmp_path}"\n[data]\ntrain = "{tmp_path}/train.jsonl"\n')
    return path


def job_of(run_file: Path | None, run_dir: Path | None = None, address: str | None = None) -> Job:
    return broker_job(
        config_path=run_file, overrides=(), address=address, run_dir=run_dir, secret_file=None, key_folder=None
    )


def test_a_run_file_is_needed() -> None:
    with pytest.raises(ConfigError, match="--config FILE is missing: the broker needs the run's configuration"):
        job_of(None)


def test_epochs_are_counted_before_the_run_is_recorded(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_broker(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    run_file.write_text(run_file.read_text() + "[run]\nepochs = 32\n")
    asyncio.run(_run(job_of(run_file, tmp_path / "run")))
    assert load_config(tmp_path / "run" / "config.toml").run.steps == 2


def test_an_address_that_cannot_be_bound_is_refused(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--broker is '127\.0\.0\.1': expected tcp://HOST:PORT"):
        job_of(run_file, address="127.0.0.1")


def test_a_broker_that_cannot_listen_leaves_no_run_behind(run_file: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(LinkError, match=f"cannot bind {address}: the port is in use"):
            asyncio.run(_run(job_of(run_file, tmp_path / "run", address)))
    with pytest.raises(ConfigError, match="its connections need keys; give --keys DIR"):
        asyncio.run(_run(job_of(run_file, tmp_path / "run", "tcp://*:0")))
    assert not (tmp_path / "run").exists()


def test_its_address_is_in_the_run_directory_while_it_listens(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binds: list[list[str]] = []

    async def run_broker(
        _config: object, directory: RunDirectory, *, bind: list[str], listening: Callable[[list[str]], None], **_: Any
    ) -> None:
        binds.append(bind)
        listening(["tcp://127.0.0.1:5577"])
        assert directory.address.read_text() == "tcp://127.0.0.1:5577\n"

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for _ in range(2):
        job = job_of(run_file, tmp_path / "run", "tcp://127.0.0.1:0")
        asyncio.run(_run(job))
    assert binds == [["tcp://127.0.0.1:0"], ["tcp://127.0.0.1:5577"]], "started again, it listens where nodes look"


def test_a_traced_broker_sends_the_spans_of_its_run_until_it_ends(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    @asynccontextmanager
    async def spans_sent(run: str) -> AsyncIterator[Callable[[object], None]]:
        told.append(f"{run} begins")
        yield told.append
        told.append("ended")

    async def run_broker(*_: object, send_spans: Callable[[object], None] | None, **__: object) -> None:
        if send_spans:
            send_spans("a span")

    monkeypatch.setattr(broker, "run_broker", run_broker)
    monkeypatch.setattr(broker, "raise_gc_threshold", lambda: None)
    monkeypatch.setattr(traces, "spans_sent", spans_sent)
    for is_traced in (False, True):
        job = broker_job(
            config_path=run_file,
            overrides=(),
            address=None,
            run_dir=tmp_path / "mine",
            secret_file=None,
            key_folder=None,
            is_traced=is_traced,
        )
        asyncio.run(_run(job))
    assert told == ["mine begins", "a span", "ended"]


def test_traces_without_their_package_end_the_broker_before_it_starts(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncrl.observe.traces.exporter", None)
    with pytest.raises(ConfigError, match="--traces needs opentelemetry: pip install"):
        broker_job(
            config_path=run_file,
            overrides=(),
            address=None,
            run_dir=None,
            secret_file=None,
            key_folder=None,
            is_traced=True,
        )


async def _run(job: Job) -> None:
    await job(Stopping())
