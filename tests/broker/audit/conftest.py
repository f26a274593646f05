"""A real finished run of the toy, once; each test plants its lies in a copy."""

import asyncio
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from asyncrl.broker.ledger.audit import Audit
from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import AnyRecord, encode, unique_key
from asyncrl.cli.recorded.inspect import read_audit
from asyncrl.config.run_file import load_config, to_toml
from asyncrl.data.prompts import held_out_stream, train_stream
from asyncrl.node.broker.broker import _require_same_data
from asyncrl.observe.run_directory import RunDirectory
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

    def replace(self, change: Callable[[AnyRecord], AnyRecord | None]) -> None:
        """Replace each record by what ``change`` makes of it; None removes it."""
        self.rewrite(new for record in self.records if (new := change(record)) is not None)

    def rewrite(self, records: Iterable[AnyRecord]) -> None:
        """Write a ledger of these records, with valid checksums, without the columns that refuse a second one."""
        rows = []
        for seq, record in enumerate(list(records), start=1):
            body = encode(record)
            rows.append((seq, type(record).__name__, unique_key(record), body, zlib.crc32(body)))
        with sqlite3.connect(self.directory.ledger) as connection:
            connection.execute("DROP TABLE records")
            connection.execute("CREATE TABLE records (seq INTEGER PRIMARY KEY, kind, key, body, crc32)")
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        connection.close()


@pytest.fixture(scope="session")
def finished_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run whose early payloads are trimmed."""
    folder = tmp_path_factory.mktemp("audited")
    settings = [*SETTINGS, f"run.dir={folder}"]
    directory = RunDirectory(asyncio.run(load_example("loop").main(toy / "toy.toml", *settings)))
    config = load_config(toy / "toy.toml", settings)
    directory.write_config(to_toml(config))
    ledger = Ledger(directory.ledger)  # The process of a broker records the digests.
    prompts = train_stream(config.data, config.run.seed)
    held_out = held_out_stream(config.data, config.evaluation.max_prompts)
    _require_same_data(config.data, ledger, {"train": prompts, "held_out": held_out})
    ledger.close()
    return directory.path


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> RunCopy:
    return RunCopy(Path(shutil.copytree(finished_run, tmp_path / "run")))
