"""The writer between a scripted broker and a folder of manifests without contents."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.config.sections.checkpoint import Checkpoint
from asyncrl.errors import ConfigError, RunFailed
from asyncrl.files.checkpoints import BEST, MANIFEST, FileEntry
from asyncrl.messages.supervisor import Evaluated
from asyncrl.messages.trainer import Commit, Evaluating, Stepped
from asyncrl.trainer.checkpoints import checkpoint
from asyncrl.trainer.checkpoints import writer as module
from asyncrl.trainer.checkpoints.checkpoint import Manifest
from asyncrl.trainer.checkpoints.writer import CheckpointWriter

PEER = "trainer-0.1"


class Disk:
    """Stands in for the functions of `checkpoint` that write; each waits for `may_write`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_full = False
        self.frontiers: list[dict[str, int]] = []
        self.parts: list[str] = []
        monkeypatch.setattr(checkpoint, "begin", lambda _directory, _step: None)
        monkeypatch.setattr(checkpoint, "write_part", lambda _directory, _step, _snapshot: {"own": FileEntry(1, "")})
        monkeypatch.setattr(checkpoint, "finish", self.finish)

    def finish(
        self,
        directory: Path,
        *,
        step: int,
        policy_version: int,
        frontier: dict[str, int],
        parts: dict[str, FileEntry],
        **_: Any,
    ) -> Path:
        self.may_write.wait(10)
        self.parts = sorted(parts)
        if self.is_full:
            raise RunFailed("cannot write: No space left on device")
        self.frontiers.append(frontier)
        folder = directory / f"step_{step:06d}"
        folder.mkdir()
        manifest = Manifest(step=step, policy_version=policy_version, random_state=b"", files={})
        (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        return folder


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def steps(directory: Path) -> list[int]:
    return sorted(int(folder.name.removeprefix("step_")) for folder in directory.glob("step_*"))


async def files_of_others() -> dict[str, FileEntry]:
    return {"theirs": FileEntry(2, "")}


async def begin(writer: CheckpointWriter, tasks: asyncio.TaskGroup, step: int) -> None:
    snapshot: Any = None
    await writer.begin(step)
    writer.write(
        tasks,
        step=step,
        policy_version=step,
        stepped=[Stepped(step - 1, step - 1, {})],
        snapshot=snapshot,
        others=files_of_others,
    )


def play(directory: Path, script: Callable[..., Awaitable[None]], *, sender: Any = None, **settings: Any) -> None:
    """``script(writer, tasks, broker)``; no thread may be left behind."""

    async def run() -> None:
        broker = MemoryHub()
        tokenizer: Any = None
        link = broker.connect(PEER)
        config = Checkpoint(**settings)
        with CheckpointWriter(directory, config, tokenizer=tokenizer, link=link, sender=sender) as writer:
            async with asyncio.TaskGroup() as tasks:
                await script(writer, tasks, broker)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("trainer-checkpoint")]

    asyncio.run(run())


def test_the_broker_hears_of_a_checkpoint_once_it_is_whole(tmp_path, disk):
    async def script(writer, tasks, broker):
        disk.may_write.clear()
        await begin(writer, tasks, 4)
        await asyncio.sleep(0)
        assert list(tmp_path.iterdir()) == []
        disk.may_write.set()
        assert (await broker.receive())[1] == Commit(3, str(tmp_path / "step_000004"))
        assert (tmp_path / "step_000004").is_dir()
        assert disk.frontiers == [{"next_step": 4}]
        assert disk.parts == ["own", "theirs"]

    play(tmp_path, script)


def test_wait_idle_waits_for_the_checkpoint_in_progress(tmp_path, disk):
    async def script(writer, tasks, broker):
        await writer.wait_idle()
        disk.may_write.clear()
        await begin(writer, tasks, 1)
        waiting = asyncio.ensure_future(writer.wait_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.may_write.set()
        await waiting
        assert (tmp_path / "step_000001").is_dir()

    play(tmp_path, script)


def test_all_but_the_newest_go(tmp_path, disk):
    async def script(writer, tasks, broker):
        for step in (1, 2, 3):
            await begin(writer, tasks, step)
            await writer.wait_idle()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]

    play(tmp_path, script, keep=2)


def test_the_best_is_named_as_soon_as_its_result_is_heard(tmp_path, disk):
    async def script(writer, tasks, broker):
        await begin(writer, tasks, 1)
        await writer.wait_idle()
        await writer.handle_evaluation(Evaluating(1))
        for step in (2, 3, 4):
            await begin(writer, tasks, step)
            await writer.wait_idle()
        await writer.handle_evaluation(Evaluated(1, 0.5, 8))
        assert b'"step": 1' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [1, 3, 4]
        await writer.handle_evaluation(Evaluated(3, 0.75, 8))
        assert b'"step": 3' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [3, 4], "the last result of a run comes after its last checkpoint"

    play(tmp_path, script, keep=2, keep_best=True)


def test_a_result_removes_nothing_before_this_process_has_written_a_checkpoint(tmp_path, disk):
    async def script(writer, tasks, broker):
        for step in (1, 2, 3):
            disk.finish(tmp_path, step=step, policy_version=step, frontier={}, parts={})
        await writer.handle_evaluation(Evaluated(3, 0.5, 8))
        assert b'"step": 3' in (tmp_path / BEST).read_bytes()
        assert steps(tmp_path) == [1, 2, 3]

    play(tmp_path, script, keep=2, keep_best=True)


def test_a_disk_that_takes_no_checkpoint_fails_the_group(tmp_path, disk):
    async def script(writer, tasks, broker):
        disk.is_full = True
        await begin(writer, tasks, 1)
        await writer.wait_idle()

    with pytest.raises(ExceptionGroup) as failed:
        play(tmp_path, script)
    (cause,) = failed.value.exceptions
    assert isinstance(cause, RunFailed)


def test_a_metric_that_is_not_measured_is_a_mistake_in_the_configuration(tmp_path, disk):
    async def script(writer, tasks, broker):
        await writer.handle_evaluation(Evaluated(0, 0.5, 8))

    with pytest.raises(ExceptionGroup) as failed:
        play(tmp_path, script, keep_best=True, best_metric="pass@4")
    (cause,) = failed.value.exceptions
    assert isinstance(cause, ConfigError)


class Sender:
    """Stands in for `CheckpointSender`: each copy waits for `may_end`."""

    def __init__(self) -> None:
        self.num_begun = self.num_copied = 0
        self.may_end = asyncio.Event()

    async def send(self) -> None:
        self.num_begun += 1
        await self.may_end.wait()
        self.num_copied += 1


def test_the_broker_hears_of_a_checkpoint_once_its_machine_has_a_copy(tmp_path, disk):
    sender = Sender()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 4)
        while not sender.num_begun:
            await asyncio.sleep(0.001)
        receiving = asyncio.ensure_future(broker.receive())
        await asyncio.sleep(0)
        assert not receiving.done()
        sender.may_end.set()
        assert (await receiving)[1] == Commit(3, str(tmp_path / "step_000004"))
        assert sender.num_copied == 1

    play(tmp_path, script, sender=sender)


def test_a_copy_that_does_not_end_with_the_run_is_given_up_and_not_committed(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(module, "LAST_COPY_S", 0.0)
    sender = Sender()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 4)
        while not sender.num_begun:
            await asyncio.sleep(0.001)
        writer.end_copies()
        await writer.wait_idle()
        assert (tmp_path / "step_000004").is_dir()
        receiving = asyncio.ensure_future(broker.receive())
        await asyncio.sleep(0)
        assert not receiving.done()
        receiving.cancel()

    play(tmp_path, script, sender=sender)
    assert sender.num_copied == 0


def test_the_name_of_the_best_is_copied_after_an_evaluation(tmp_path, disk):
    sender = Sender()
    sender.may_end.set()

    async def script(writer, tasks, broker):
        await begin(writer, tasks, 1)
        await writer.wait_idle()
        await writer.handle_evaluation(Evaluated(1, 0.5, 8))
        assert sender.num_copied == 2

    play(tmp_path, script, sender=sender, keep_best=True)
