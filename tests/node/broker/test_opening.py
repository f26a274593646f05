"""A broker that starts waits for a locked ledger, and hears meanwhile that it is to stop."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.lock_wait import LockWait
from asyncrl.errors import ConfigError
from asyncrl.node.broker import opening
from asyncrl.node.broker.opening import open_ledger


def test_a_ledger_that_nobody_has_locked_is_opened_and_prepared(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = await open_ledger(
            tmp_path / "ledger.sqlite", lambda ledger: ledger.write_meta("a", 7), asyncio.Event()
        )
        assert ledger
        assert ledger.read_meta("a") == 7
        assert not ledger.is_left_locked
        ledger.close()

    asyncio.run(main())


def test_a_locked_ledger_is_told_of_and_left_when_the_broker_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LOCKED_S", 0.0)
    monkeypatch.setattr(opening, "LOOK_S", 0.001)
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()

    async def main() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told_to_stop(_: float) -> None:
            loop.call_soon_threadsafe(stopping.set)

        lock_wait = LockWait(sleep=told_to_stop)
        assert await open_ledger(path, lambda _: None, stopping, lock_wait) is None

    with closing(sqlite3.connect(path, isolation_level=None)) as other, capture_logs() as logs:
        other.execute("BEGIN IMMEDIATE")
        asyncio.run(main())
    assert [line["event"] for line in logs] == ["ledger.locked", "ledger.left_locked"]


def test_a_ledger_that_cannot_be_prepared_is_closed(tmp_path: Path) -> None:
    opened = []

    def prepare(ledger: Ledger) -> None:
        opened.append(ledger)
        raise ConfigError("other data")

    with pytest.raises(ConfigError, match="other data"):
        asyncio.run(open_ledger(tmp_path / "ledger.sqlite", prepare, asyncio.Event()))
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].read_meta("run_id")
