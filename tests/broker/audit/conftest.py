"""A real finished run of the toy, once; each test plants its lies in a copy."""

import asyncio
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.database import CONFIG, meta_digest, write_meta
from asyncrl.broker.ledger.reader import Chain, read_ledger_meta, read_records
from asyncrl.broker.ledger.records import AnyRecord, Started, encode, ended_groups, unique_key
from asyncrl.cli.inspect import read_audit
from asyncrl.config.config import Config, to_json
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.records.run_directory import RunDirectory
from tests.examples.conftest import load_example

STEPS = 6
SETTINGS = [
    f"run.steps={STEPS}",
    "schedule.groups_per_step=2",
    "schedule.group_size=2",
    "sampling.max_tokens=16",
    "trainer.warmup_steps=0",
    "evaluation.every_versions=2",
    "checkpoint.every_steps=2",
    "broker.segment_bytes=2000",
]


class RunCopy:
    """A copy of the finished run, to plant lies in."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.config = load_config(self.directory.config)

    @property
    def records(self) -> list[AnyRecord]:
        return list(read_records(self.directory.ledger))

    def audit(self) -> Audit:
        return read_audit(self.directory.path)

    def reconfigure(self, config: Config) -> None:
        """Change the configuration, in config.toml and in the ledger."""
        self.directory.write_config(to_toml(config))
        with sqlite3.connect(self.directory.ledger, isolation_level=None) as connection:
            write_meta(connection, CONFIG, to_json(config).decode())
            meta = meta_digest(connection)
        connection.close()
        self.replace(lambda record: replace(record, meta=meta) if isinstance(record, Started) else record)

    def replace(self, change: Callable[[AnyRecord], AnyRecord | None]) -> None:
        """Replace each record by what ``change`` makes of it; None removes it."""
        self.rewrite(new for record in self.records if (new := change(record)) is not None)

    def rewrite(self, records: Iterable[AnyRecord]) -> None:
        """
        Write a ledger of these records, as somebody who knows all about it would: with valid checksums and digests,
        without the columns that refuse a second one.
        """
        rows, chain, ends = [], Chain(read_ledger_meta(self.directory.ledger).run_id), dict[int, str]()
        for seq, record in enumerate(list(records), start=1):
            body = encode(record)
            chain.add(body)
            head = bytes.fromhex(chain.head.digest)
            rows.append((seq, type(record).__name__, unique_key(record), body, zlib.crc32(body), head))
            ends |= {group_id: unique_key(record) or "dropped" for group_id in ended_groups(record)}
        with sqlite3.connect(self.directory.ledger) as connection:
            connection.execute("DROP TABLE records")
            connection.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY, kind, key, body, crc32, head)")
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", rows)
            connection.execute("DELETE FROM retired")
            connection.executemany("INSERT INTO retired VALUES (?, ?)", ends.items())
        connection.close()


@pytest.fixture(scope="session")
def finished_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run whose early payloads are trimmed."""
    folder = tmp_path_factory.mktemp("audited")
    settings = [*SETTINGS, f"run.dir={folder}"]
    directory = RunDirectory(asyncio.run(load_example("loop").main(toy / "toy.toml", *settings)))
    return directory.path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> RunCopy:
    return RunCopy(Path(shutil.copytree(finished_run, tmp_path / "run")))
