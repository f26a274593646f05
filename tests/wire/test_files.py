"""A folder of the broker's machine arrives whole, or not at all."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from asyncrl.errors import LinkError
from asyncrl.messages.files import FetchPart, FileDigest, FileList, FilePart, ListFiles
from asyncrl.wire import files as module
from asyncrl.wire.files import cache_folder, fetch_folder
from asyncrl.wire.memory import MemoryHub

CONTENTS = {"config.json": b"{}", "weights": bytes(range(256)) * 10, "templates/tools.jinja": b"{{ tools }}"}


class Spool:
    """The broker's spool, with one folder in memory; ``damage`` changes what it sends."""

    def __init__(self, contents: Mapping[str, bytes], damage: Callable[[bytes], bytes] = bytes) -> None:
        self.hub = MemoryHub()
        self.asked: list[tuple[bytes, int]] = []
        self._by_digest = {hashlib.sha256(content).digest(): content for content in contents.values()}
        self._files = [
            FileDigest(name, len(content), hashlib.sha256(content).digest()) for name, content in contents.items()
        ]
        self._damage = damage

    async def serve(self) -> None:
        while True:
            peer, message = await self.hub.receive()
            match message:
                case ListFiles():
                    self.hub.send(peer, FileList(self._files if message.folder == "/model" else []))
                case FetchPart(sha256=sha256, offset=offset, length=length):
                    self.asked.append((sha256, offset))
                    content = self._damage(self._by_digest[sha256][offset : offset + length])
                    self.hub.send(peer, FilePart(sha256, offset, memoryview(content)))


def fetched(spool: Spool, cache: Path, folder: str = "/model") -> Path:
    async def run() -> Path:
        serving = asyncio.create_task(spool.serve())
        try:
            async with asyncio.timeout(30):
                return await fetch_folder(spool.hub.connect("r.1"), folder, cache)
        finally:
            serving.cancel()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 100)


def test_every_file_arrives_under_its_name_and_is_fetched_once(tmp_path: Path) -> None:
    spool = Spool(CONTENTS)
    copy = fetched(spool, tmp_path)
    files = (path for path in copy.rglob("*") if path.is_file())
    assert {str(path.relative_to(copy)): path.read_bytes() for path in files} == CONTENTS
    spool.asked.clear()
    with capture_logs() as logs:
        assert fetched(spool, tmp_path) == copy
    assert (spool.asked, logs) == ([], [])
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_fetch_goes_on_where_it_was(tmp_path: Path) -> None:
    sha256 = hashlib.sha256(CONTENTS["weights"])
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / f"{sha256.hexdigest()}.part").write_bytes(CONTENTS["weights"][:1234])
    spool = Spool(CONTENTS)
    assert (fetched(spool, tmp_path) / "weights").read_bytes() == CONTENTS["weights"]
    assert min(offset for digest, offset in spool.asked if digest == sha256.digest()) == 1234


def test_a_damaged_file_is_refused_and_fetched_again_from_the_beginning(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"weights arrived damaged: expected SHA-256 [0-9a-f]{12}; fetch it again"):
        fetched(Spool({"weights": CONTENTS["weights"]}, lambda part: part[:-1] + b"?"), tmp_path)
    assert (fetched(Spool(CONTENTS), tmp_path) / "weights").read_bytes() == CONTENTS["weights"]


def test_a_file_that_is_gone_ends_the_fetch(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="has changed on the broker's machine while it was fetched"):
        fetched(Spool(CONTENTS, lambda _: b""), tmp_path)


def test_a_folder_that_the_broker_does_not_serve_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="the broker's machine cannot send /other: it has no such folder"):
        fetched(Spool(CONTENTS), tmp_path, "/other")


def test_the_cache_is_where_the_environment_says() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/asyncrl")
    assert cache_folder({}) == Path.home() / ".cache" / "asyncrl"
