"""Every version is stored as a delta from the one before, every K-th as an anchor too; a failure is an answer."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from asyncrl.messages.codec import Message
from asyncrl.messages.weights import FetchWeights, PutWeights, PutWeightsDone, StoredWeights, Uploaded
from asyncrl.weights.exchange import Copies
from asyncrl.weights.stored import stream
from asyncrl.weights.stored.staged import StagedVersion
from asyncrl.weights.stored.upload import IN_FLIGHT, Uploader
from asyncrl.wire import link as link_module
from asyncrl.wire.memory import MemoryLink
from tests.weights.stored.small_spool import About, SmallSpool, small_spool
from tests.weights.stored.versions import LAYOUT, anchor, delta, tensors

ANCHOR_EVERY = 2


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PART_BYTES", 40)


class Stage:
    """A trainer's copies, an uploader, and a spool."""

    def __init__(self, spool: SmallSpool) -> None:
        self.spool = spool
        self.copies = Copies(LAYOUT, torch.device("cpu"), keeps_base=False)
        self.uploader = Uploader(LAYOUT, self.copies, ANCHOR_EVERY, spool.connect)

    def stage(self, version: int) -> None:
        with self.copies.write(version) as staging:
            for name, tensor in tensors(version).items():
                staging.tensors[name].copy_(tensor)

    async def publish(self, *versions: int) -> list[Uploaded]:
        answers = []
        for version in versions:
            self.stage(version)
            answers.append(await self.uploader.upload(version))
            await self.uploader.upload_anchor()
        return answers

    @property
    def stored(self) -> list[StoredWeights]:
        return [file.weights for file in self.spool.store.files]


def scene(folder: Path, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0), small_spool(folder) as spool:
            stage = Stage(spool)
            try:
                await play(stage)
            finally:
                await stage.uploader.aclose()

    asyncio.run(main())


def test_the_first_version_is_an_anchor_and_the_next_ones_are_deltas(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        answers = await stage.publish(3, 4)
        assert stage.stored == [anchor(3), delta(4)]
        assert [(link_module.policy_version, link_module.problem) for link_module in answers] == [(3, ""), (4, "")]
        assert [link_module.num_bytes for link_module in answers] == [
            file.num_bytes for file in stage.spool.store.files
        ]

    scene(tmp_path, play)


def test_an_anchor_is_stored_beside_the_delta_every_few_versions(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.publish(3, 4, 5)
        assert stage.stored == [anchor(3), delta(4), delta(5), anchor(5)]
        await stage.publish(6)
        assert stage.stored[-2:] == [anchor(5), delta(6)]

    scene(tmp_path, play)


def test_what_is_stored_makes_the_staged_version_bit_for_bit(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.publish(3, 4)
        staged = StagedVersion(LAYOUT)
        for file in stage.spool.store.files:
            staged.begin(file.weights)
            for part in range(file.num_parts):
                staged.read(_part(stage, file.weights, part))
            staged.finish()
        assert all(torch.equal(staged.tensors[name], tensor) for name, tensor in tensors(4).items())

    scene(tmp_path, play)


def test_a_version_that_was_skipped_is_part_of_the_next_delta(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.publish(3)
        stage.stage(4)
        await stage.publish(5)
        assert [(weights.policy_version, weights.base_version) for weights in stage.stored] == [(3, -1), (5, 3)]

    scene(tmp_path, play)


def test_a_version_that_is_not_staged_any_more_is_a_problem(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        (link_module,) = await stage.publish(3)
        link_module = await stage.uploader.upload(2)
        assert link_module.problem == "version 2 is not staged any more"
        assert [link_module.problem for link_module in await stage.publish(4)] == [""]
        assert stage.stored == [anchor(3), delta(4)]

    scene(tmp_path, play)


def test_a_few_parts_are_on_their_way_at_a_time(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.stage(3)
        link = stage.spool.connect()
        sent = 0
        most = 0

        async def send(message: Message) -> None:
            nonlocal sent, most
            sent += 1
            num_stored = sum(isinstance(message, PutWeights) for message in stage.spool.asked)
            most = max(most, sent - num_stored)
            await MemoryLink.send(link, message)

        link.send = send  # type: ignore[method-assign]
        uploader = Uploader(LAYOUT, stage.copies, ANCHOR_EVERY, lambda: link)
        assert (await uploader.upload(3)).problem == ""
        await uploader.aclose()
        assert sent > 3 * IN_FLIGHT
        assert most <= IN_FLIGHT

    scene(tmp_path, play)


def test_a_spool_that_cannot_store_is_a_problem_and_the_next_try_stores_the_delta(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.publish(3)

        def full(_peer: str, message: About) -> PutWeightsDone | None:
            is_second = isinstance(message, PutWeights) and message.part == 1
            return PutWeightsDone(1, "No space left on device") if is_second else None

        stage.spool.before = full
        (link_module,) = await stage.publish(4)
        assert link_module.problem == "No space left on device"
        assert stage.stored == [anchor(3)]
        stage.spool.before = lambda _peer, _message: None
        assert (await stage.uploader.upload(4)).problem == ""
        assert stage.stored == [anchor(3), delta(4)]

    scene(tmp_path, play)


def test_a_silent_spool_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "ANSWER_S", 0.05)

    async def play(stage: Stage) -> None:
        stage.spool.before = lambda peer, _message: stage.spool.muted.add(peer)
        (link_module,) = await stage.publish(3)
        assert link_module.problem == "the spool did not answer within 0.05 s"

    scene(tmp_path, play)


def test_a_failed_anchor_is_made_good_after_the_next_version(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        await stage.publish(3, 4)

        def refuse_anchors(_peer: str, message: About) -> PutWeightsDone | None:
            is_anchor = isinstance(message, PutWeights) and message.weights.is_anchor
            return PutWeightsDone(0, "no") if is_anchor else None

        stage.spool.before = refuse_anchors
        with capture_logs() as logs:
            await stage.publish(5)
        assert [entry["event"] for entry in logs] == ["weights.anchor_failed"]
        stage.spool.before = lambda _peer, _message: None
        await stage.publish(6)
        assert stage.stored[-1] == anchor(6)

    scene(tmp_path, play)


def test_the_trainers_copy_is_free_before_the_version_is_encoded(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.stage(3)
        asked = asyncio.Event()
        stage.spool.before = lambda _peer, _message: asked.set()
        uploading = asyncio.create_task(stage.uploader.upload(3))
        await asked.wait()
        for version in (4, 5):  # Version 5 takes the copy of version 3.
            await asyncio.wait_for(asyncio.to_thread(stage.stage, version), 10.0)
        assert (await uploading).problem == ""
        assert stage.stored == [anchor(3)]

    scene(tmp_path, play)


def _part(stage: Stage, weights: StoredWeights, part: int) -> memoryview:
    return stage.spool.store.read(FetchWeights(weights, part)).payload
