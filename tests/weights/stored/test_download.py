"""A rollout fetches what it lacks, continues after a lost link, and never hands over a version that is not exact."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from structlog.testing import capture_logs

from asyncrl.errors import TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.weights import FetchedWeights, FetchWeights, PutWeights, StoredWeights, Transfer, WeightsList
from asyncrl.weights.staging import Staging
from asyncrl.weights.stored import stream
from asyncrl.weights.stored.download import IN_FLIGHT, Downloader
from asyncrl.weights.stored.staged import StagedVersion
from asyncrl.wire import link
from tests.weights.stored.small_spool import About, SmallSpool, small_spool
from tests.weights.stored.versions import LAYOUT, anchor, contents, delta, parts, tensors


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PART_BYTES", 40)


class Stage:
    """A spool, and a rollout that fetches from it."""

    def __init__(self, spool: SmallSpool) -> None:
        self.spool = spool
        self.staged = StagedVersion(LAYOUT)
        self.downloader = self.new_session()

    def new_session(self) -> Downloader:
        self.downloader = Downloader(self.staged, self.spool.connect, sleep=_soon)
        return self.downloader

    def store(self, weights: StoredWeights, new: Staging | None = None, base: Staging | None = None) -> int:
        """Put a file into the spool; returns its number of parts."""
        new = new or contents(weights.policy_version)
        base = None if weights.is_anchor else base or contents(weights.base_version)
        encoded = parts(new, base)
        for number, part in enumerate(encoded):
            is_last = number == len(encoded) - 1
            self.spool.store.put(PutWeights(weights, number, zlib.crc32(part), memoryview(part), is_last))
        return len(encoded)

    async def fetch(self, version: int) -> None:
        await self.downloader.transfer(Transfer(0, version, members=[], keep=False, deadline_s=0.0))

    def holds(self, version: int) -> bool:
        held, expected = self.downloader.weights(), tensors(version)
        return held.keys() == expected.keys() and all(torch.equal(held[name], expected[name]) for name in expected)


async def _soon(_: float) -> None:
    await asyncio.sleep(0)


def scene(folder: Path, play: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0), small_spool(folder) as spool:
            stage = Stage(spool)
            await play(stage)
            await stage.downloader.aclose()

    asyncio.run(main())


def test_a_joiner_reads_the_anchor_and_the_deltas_since(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        num_parts = [stage.store(weights) for weights in (anchor(3), delta(4), delta(5))]
        await stage.fetch(5)
        assert stage.holds(5)
        assert stage.spool.parts_asked == [
            (version, part) for version, num in zip((3, 4, 5), num_parts, strict=True) for part in range(num)
        ]

    scene(tmp_path, play)


def test_a_rollout_that_is_up_to_date_reads_the_next_delta_alone(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.store(anchor(3))
        await stage.fetch(3)
        stage.spool.asked.clear()
        stage.store(delta(4))
        await stage.fetch(4)
        assert stage.holds(4)
        assert {version for version, _ in stage.spool.parts_asked} == {4}

    scene(tmp_path, play)


def test_a_version_that_is_held_is_not_read_again(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.store(anchor(3))
        await stage.fetch(3)
        stage.spool.asked.clear()
        await stage.fetch(3)
        assert stage.holds(3)
        assert stage.spool.parts_asked == []

    scene(tmp_path, play)


def test_a_few_parts_are_requested_at_a_time(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        assert stage.store(anchor(3)) > 3 * IN_FLIGHT
        most = 0

        def count(_peer: str, message: About) -> None:
            nonlocal most
            if isinstance(message, FetchWeights):
                most = max(most, message.part - stage.staged.next_part + 1)

        stage.spool.before = count
        await stage.fetch(3)
        assert 1 < most <= IN_FLIGHT

    scene(tmp_path, play)


def test_a_link_that_is_lost_in_the_middle_goes_on_at_the_part_that_is_missing(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        num_parts = stage.store(anchor(3))
        stage.spool.before = lambda peer, message: _lose(stage.spool, peer) if _is_part(message, 6) else None
        with capture_logs() as logs:
            await stage.fetch(3)
        assert stage.holds(3)
        again = stage.spool.parts_asked[7:]
        assert again[0][1] > 0
        assert again[-1] == (3, num_parts - 1)
        assert "weights.link_lost" in [entry["event"] for entry in logs]
        assert stage.downloader.num_restarts == 0

    scene(tmp_path, play)


def test_a_file_begun_in_one_session_is_continued_in_the_next(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.store(anchor(3))
        reached = asyncio.Event()

        def stop_at(_peer: str, message: About) -> Message | None:
            if _is_part(message, 9):
                reached.set()
            return WeightsList([]) if reached.is_set() and isinstance(message, FetchWeights) else None

        stage.spool.before = stop_at
        fetching = asyncio.create_task(stage.fetch(3))
        await reached.wait()
        fetching.cancel()
        await asyncio.wait([fetching])
        await stage.downloader.aclose()
        stage.spool.before = lambda _peer, _message: None
        done, stage.spool.asked = stage.staged.next_part, []

        stage.new_session()
        await stage.fetch(3)

        assert stage.holds(3)
        assert stage.spool.parts_asked[0] == (3, done)
        assert done > 0

    scene(tmp_path, play)


def test_a_silent_spool_is_asked_again_on_another_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "ANSWER_S", 0.05)

    async def play(stage: Stage) -> None:
        stage.store(anchor(3))
        stage.spool.before = lambda peer, message: _mute(stage.spool, peer) if _is_part(message, 2) else None
        with capture_logs() as logs:
            await stage.fetch(3)
        assert stage.holds(3)
        assert any("did not answer within 0.05 s" in entry.get("cause", "") for entry in logs)

    scene(tmp_path, play)


def test_a_gap_begins_again_at_the_anchor_and_is_counted(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        for weights in (anchor(3), delta(4)):
            stage.store(weights)
        await stage.fetch(3)
        for weights in (anchor(5), anchor(6)):  # The trainer restarted: no delta leads from 3 or 4 to 6.
            stage.store(weights)
        with capture_logs() as logs:
            await stage.fetch(6)
        assert stage.holds(6)
        assert stage.downloader.num_restarts == 1
        restarted = [entry for entry in logs if entry["event"] == "weights.restarted"]
        assert [(entry["policy_version"], entry["restarts"]) for entry in restarted] == [(6, 1)]

    scene(tmp_path, play)


def test_a_delta_that_does_not_give_the_trainers_version_is_thrown_away(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        for weights in (anchor(3), delta(4)):
            stage.store(weights)
        await stage.fetch(4)
        stage.store(delta(5), new=contents(9), base=contents(4))  # Says 5, and makes something else.
        stage.store(anchor(5))
        with capture_logs() as logs:
            await stage.fetch(5)
        assert stage.holds(5)
        assert stage.downloader.num_restarts == 1
        assert any("version 5 is damaged" in entry.get("cause", "") for entry in logs)

    scene(tmp_path, play)


def test_a_part_that_changed_on_the_way_is_not_decoded(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        for weights in (anchor(3), delta(4), anchor(4)):
            stage.store(weights)

        def change(_peer: str, message: About) -> FetchedWeights | None:
            if not _is_part(message, 1, version=4):
                return None
            stage.spool.before = lambda _peer, _message: None
            return FetchedWeights(1, memoryview(b"x"), 1)

        stage.spool.before = change
        with pytest.raises(TransferError, match=r"part 1 of .* of version 4 is damaged"):
            await stage.fetch(4)
        await stage.fetch(4)
        assert stage.holds(4)

    scene(tmp_path, play)


def test_an_anchor_that_is_damaged_fails_the_transfer_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.store(replace(anchor(3), digest="0" * 64))
        with pytest.raises(TransferError, match="version 3 is damaged"):
            await stage.fetch(3)
        with pytest.raises(TransferError, match="no complete policy version is staged"):
            stage.downloader.weights()
        stage.store(anchor(4))
        await stage.fetch(4)
        assert stage.holds(4)

    scene(tmp_path, play)


def test_a_version_that_the_spool_does_not_have_fails_the_transfer(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.store(anchor(3))
        with pytest.raises(TransferError, match="no files that lead to version 4"):
            await stage.fetch(4)

    scene(tmp_path, play)


def test_a_file_that_is_trimmed_while_it_is_read_is_left_for_the_newest_anchor(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        for weights in (anchor(3), delta(4)):
            stage.store(weights)
        await stage.fetch(3)

        def trim(_peer: str, message: About) -> None:
            if _is_part(message, 2, version=4) and stage.spool.store.files[0].weights == anchor(3):
                for weights in (anchor(4), anchor(5), anchor(4)):
                    stage.store(weights)

        stage.spool.before = trim
        await stage.fetch(4)
        assert stage.holds(4)
        assert stage.downloader.num_restarts >= 1

    scene(tmp_path, play)


def _is_part(message: About, part: int, version: int = 3) -> bool:
    return isinstance(message, FetchWeights) and (message.weights.policy_version, message.part) == (version, part)


def _lose(spool: SmallSpool, peer: str) -> None:
    """Cut a link, once."""
    spool.before = lambda _peer, _message: None
    spool.hub.forget(peer)


def _mute(spool: SmallSpool, peer: str) -> None:
    """Answer a link no longer."""
    spool.before = lambda _peer, _message: None
    spool.muted.add(peer)
