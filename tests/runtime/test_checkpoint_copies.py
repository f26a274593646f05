"""A trainer copies its checkpoints if, and only if, its machine does not see the run directory."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.broker.ledger.ledger import Ledger
from asyncrl.config.config import to_json
from asyncrl.config.run_file import decode
from asyncrl.files.checkpoints import step_folders
from asyncrl.messages.session import Welcome
from asyncrl.messages.spool import SpoolAddress, SpoolSet
from asyncrl.messages.wire import CODEC
from asyncrl.runtime.trainer_machines import checkpoint_folder, checkpoint_sender, fetch_checkpoint
from asyncrl.spool.actor import SpoolActor
from asyncrl.spool.checkpoints import CheckpointStore, FileServer
from asyncrl.spool.segments import Segments
from asyncrl.wire.handshake import identity
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.run_address import RunAddress
from asyncrl.wire.zmq_hub import ZmqHub
from tests.files.test_checkpoints import write_checkpoint

RUN = RunAddress("ipc:///nowhere")
WHO = identity("trainer", "trainer-0")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's own state."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def welcome(run_dir: Path, spool: str = "", run_id: str = "r", *, copies: bool = True) -> Welcome:
    settings = {"model": {"path": "m"}, "data": {"train": "t"}, "checkpoint": {"copy_to_broker": copies}}
    spools = SpoolSet([SpoolAddress("spool", spool)] if spool else [])
    return Welcome(1, str(run_dir), to_json(decode(settings)), spools, 1.0, run_id)


def beside_a_spool(tmp_path: Path, scene: Callable[[Welcome], Awaitable[None]]) -> Path:
    """Run ``scene`` on another machine than that of the spool; returns the folder of checkpoints there."""
    there = tmp_path / "there" / "checkpoints"

    async def main() -> None:
        hub, broker = ZmqHub("ipc://*", CODEC), MemoryHub()
        segments = Segments(tmp_path / "spool")
        # A machine sees another one's folder under no path; here, the same folder has two.
        (tmp_path / "theirs").symlink_to(tmp_path / "there")
        files = FileServer({}, tmp_path / "digests.json", tmp_path / "theirs" / "checkpoints")
        store = CheckpointStore(there)
        actor = SpoolActor("spool", segments, hub, broker.connect("spool"), files=files, checkpoints=store)
        serving = asyncio.create_task(actor.run())
        try:
            async with asyncio.timeout(30):
                await scene(welcome(tmp_path / "theirs", hub.address))
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await hub.aclose()
            segments.close()

    asyncio.run(main())
    return there


def test_a_checkpoint_is_copied_there_and_fetched_by_an_empty_machine(tmp_path: Path, state: Path) -> None:
    async def scene(welcome: Welcome) -> None:
        here = checkpoint_folder(welcome)
        assert here.is_relative_to(state)
        write_checkpoint(here, 20)
        sender = checkpoint_sender(here, welcome, RUN, WHO)
        assert sender is not None
        await sender.send()
        (state / "asyncrl").rename(state / "of the machine before")
        await fetch_checkpoint(welcome, RUN, WHO)
        assert (here / "step_000020" / "model").read_bytes() == b"weights"

    assert list(step_folders(beside_a_spool(tmp_path, scene))) == [20]


def test_a_trainer_that_sees_the_run_directory_copies_nothing(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        here = welcome(tmp_path, "ipc:///nowhere", ledger.run_id)
    assert checkpoint_sender(checkpoint_folder(here), here, RUN, WHO) is None
    asyncio.run(fetch_checkpoint(here, RUN, WHO))


def test_copies_can_be_turned_off(tmp_path: Path) -> None:
    there = welcome(tmp_path, "ipc:///nowhere", copies=False)
    assert checkpoint_sender(checkpoint_folder(there), there, RUN, WHO) is None


def test_without_a_spool_at_the_broker_it_is_said_that_checkpoints_stay(tmp_path: Path) -> None:
    with capture_logs() as logs:
        there = welcome(tmp_path)
        assert checkpoint_sender(checkpoint_folder(there), there, RUN, WHO) is None
    assert [(line["event"], line["cause"]) for line in logs] == [
        ("checkpoint.stays", "broker.spool is false: no spool takes a copy of it")
    ]
    asyncio.run(fetch_checkpoint(welcome(tmp_path), RUN, WHO))
