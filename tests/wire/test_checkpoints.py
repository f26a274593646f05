"""The broker's machine gets every checkpoint, and a machine without one gets the newest from there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from asyncrl.errors import LinkClosed, LinkError, RunFailed
from asyncrl.files.checkpoints import BEST, step_folders
from asyncrl.messages.codec import Message
from asyncrl.messages.files import (
    FetchPart,
    FileDigest,
    FileList,
    FilePart,
    ListFiles,
    OfferCheckpoint,
    PutCheckpointPart,
)
from asyncrl.spool.checkpoints import CheckpointStore, FileServer
from asyncrl.wire import files as module
from asyncrl.wire.files import CheckpointSender, fetch_newest
from asyncrl.wire.link import Link
from asyncrl.wire.memory import MemoryHub
from tests.files.test_checkpoints import write_checkpoint

CONTENT = bytes(range(256)) * 4


class Spool:
    """The broker's spool, with its real store and server, behind links that ``break_after`` some messages each."""

    def __init__(self, directory: Path, break_after: int = 1_000_000) -> None:
        self.directory = directory
        self.hub = MemoryHub()
        self.parts: list[PutCheckpointPart] = []
        self._store = CheckpointStore(directory)
        self._server = FileServer({}, directory / "digests.json", directory)
        self._break_after = break_after
        self._links = 0

    def connect(self) -> Link:
        self._links += 1
        return Fragile(self.hub.connect(f"trainer.{self._links}"), self._break_after)

    async def serve(self) -> None:
        while True:
            peer, message = await self.hub.receive()
            self.hub.send(peer, self._answer(message))

    def _answer(self, message: Message) -> Message:
        match message:
            case PutCheckpointPart():
                self.parts.append(message)
                return self._store.answer(message)
            case OfferCheckpoint():
                return self._store.answer(message)
            case ListFiles(folder=folder):
                return FileList(list(self._server.list(folder)))
            case FetchPart(sha256=sha256, offset=offset, length=length):
                return FilePart(sha256, offset, memoryview(self._server.read(sha256, offset, length)))
        raise AssertionError(message)


class Fragile:
    """A link that is lost after so many answers."""

    def __init__(self, link: Link, answers: int) -> None:
        self._link = link
        self._left = answers
        self.send, self.aclose = link.send, link.aclose

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            yield await self.receive()

    async def receive(self) -> Message:
        self._left -= 1
        if self._left < 0:
            raise LinkClosed("cut")
        return await self._link.receive()


async def no_sleep(_: float) -> None:
    pass


def during(spool: Spool, scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        serving = asyncio.create_task(spool.serve())
        try:
            async with asyncio.timeout(30):
                await scene()
        finally:
            serving.cancel()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 100)


def send(spool: Spool, directory: Path, *, times: int = 1) -> None:
    async def scene() -> None:
        sender = CheckpointSender(directory, spool.connect, sleep=no_sleep)
        for _ in range(times):
            await sender.send()

    during(spool, scene)


def fetch(spool: Spool, directory: Path) -> Path | None:
    found: list[Path | None] = []

    async def scene() -> None:
        found.append(await fetch_newest(spool.connect(), str(spool.directory), directory))

    during(spool, scene)
    return found[0]


def same(one: Path, other: Path) -> bool:
    names = [{path.relative_to(folder) for path in folder.rglob("*")} for folder in (one, other)]
    return names[0] == names[1] and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names[0] if (one / name).is_file()
    )


def test_the_newest_checkpoint_is_copied_once(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there")
    write_checkpoint(here, 10, CONTENT)
    write_checkpoint(here, 20, CONTENT)
    (here / BEST).write_text('{"step": 10}')
    send(spool, here, times=2)
    assert same(here / "step_000020", spool.directory / "step_000020")
    assert list(step_folders(spool.directory)) == [20]
    assert (spool.directory / BEST).read_text() == '{"step": 10}'
    assert [part.offset for part in spool.parts] == list(range(0, len(CONTENT), 100))


def test_a_copy_goes_on_whenever_the_link_is_lost(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there", break_after=2)
    write_checkpoint(here, 20, CONTENT)
    send(spool, here)
    assert same(here / "step_000020", spool.directory / "step_000020")
    assert len({part.offset for part in spool.parts}) == 11


def test_a_copy_that_gets_no_further_is_given_up(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there", break_after=0)
    folder = write_checkpoint(here, 20, CONTENT)
    with pytest.raises(LinkError, match=f"{folder} could not be copied to the broker's machine: cut"):
        send(spool, here)


def test_a_machine_that_cannot_store_it_is_named_with_the_cause(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "here", 20, CONTENT)
    (tmp_path / "there").write_text("a file")
    with pytest.raises(RunFailed, match="the broker's machine cannot store the checkpoint of step 20: cannot write"):
        send(Spool(tmp_path / "there"), tmp_path / "here")


def test_without_a_checkpoint_nothing_is_sent(tmp_path: Path) -> None:
    send(Spool(tmp_path / "there"), tmp_path / "here")
    assert not list(tmp_path.iterdir())


def test_an_empty_machine_gets_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there")
    for step in (10, 20, 30):
        write_checkpoint(spool.directory, step, CONTENT)
    (spool.directory / "step_000030" / "model").write_bytes(b"cut off")
    assert fetch(spool, here) == here / "step_000020"
    assert same(here / "step_000020", spool.directory / "step_000020")
    assert [path.name for path in here.iterdir()] == ["step_000020"]


@pytest.mark.parametrize("own_step", [20, 30])
def test_a_machine_that_has_one_as_new_keeps_it(tmp_path: Path, own_step: int) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there")
    write_checkpoint(spool.directory, 20, CONTENT)
    write_checkpoint(here, own_step, b"own")
    assert fetch(spool, here) is None
    assert list(step_folders(here)) == [own_step]


def test_an_older_one_is_no_reason_not_to_fetch(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there")
    write_checkpoint(spool.directory, 20, CONTENT)
    write_checkpoint(here, 10, b"own")
    assert fetch(spool, here) == here / "step_000020"


def test_a_run_without_checkpoints_has_none_to_fetch(tmp_path: Path) -> None:
    assert fetch(Spool(tmp_path / "there"), tmp_path / "here") is None


def test_an_interrupted_fetch_goes_on_where_it_was(tmp_path: Path) -> None:
    here, spool = tmp_path / "here", Spool(tmp_path / "there", break_after=2)
    write_checkpoint(spool.directory, 20, CONTENT)
    with pytest.raises(LinkError, match="cut"):
        fetch(spool, here)
    assert not step_folders(here)
    spool._break_after = 1_000
    assert fetch(spool, here) == here / "step_000020"


def test_a_listed_file_outside_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    class Forged(Spool):
        def _answer(self, message: Message) -> Message:
            names = ("step_000020/manifest.json", "step_000020/../../x")
            return FileList([FileDigest(name, 1, b"0" * 32) for name in names][::-1])

    with pytest.raises(LinkError, match=r"lists step_000020/\.\./\.\./x, which is no file of step_000020"):
        fetch(Forged(tmp_path / "there"), tmp_path / "here")
