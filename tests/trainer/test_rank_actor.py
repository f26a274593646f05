"""A further rank between a scripted first rank and a scripted spool."""

import array
import asyncio
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import RankDied
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Stop
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.trainer import Batch, Checked, PartWritten, ScoredTrajectory, Work
from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit
from asyncrl.trainer.checkpoints.checkpoint import begin
from asyncrl.trainer.checkpoints.snapshot import CheckpointPart, Snapshot
from asyncrl.trainer.rank_actor import RankActor
from asyncrl.wire.memory import MemoryHub
from tests.wire.only_spool import only

PEER = "trainer-0-rank-1.abc"
NOWHERE = Path("nowhere")


class FakeLearner:
    """Owns every second trajectory, and records what it was asked to do."""

    lr = 0.0

    def __init__(self) -> None:
        self.done: list[object] = []
        self.error: Exception | None = None
        self.checked: list[Any] = []
        self.written: list[Any] = []
        self.parts = 1
        self.num_computed = 0

    def assign_ranks(self, infos):
        self.baselines = [one.outcome.baseline for one in infos]
        return [place % 2 for place in range(len(infos))]

    def train(self, step, policy_version):
        if self.error:
            raise self.error
        self.done.append(("train", sorted(step.trajectories), policy_version))

    def gather_weights(self):
        self.done.append("gather")

    def snapshot(self, _folder):
        self.done.append("snapshot")
        return Snapshot(
            configs=[], part=CheckpointPart(1, self.parts), weights={}, weight_parts={}, tensors={}, random_state=b""
        )


def payload(index: int) -> bytes:
    ids, logprobs = (memoryview(part).cast("B") for part in (array.array("i", [1, 2]), array.array("f", [-1.0, -2.0])))
    unit = Unit(7, index)
    return msgspec.msgpack.encode(Trajectory(unit, ids, ids, logprobs, [Span(0, 0, 2)], "stop", "text"))


def batch(step: int) -> Batch:
    trajectories = []
    for index in range(4):
        body = payload(index)
        ref = SpoolRef("spool", 0, index, len(body), zlib.crc32(body))
        trajectories.append(ScoredTrajectory(Unit(7, index), ref, 1.0, {}, TrajectorySummary(2, 2, 0, 0, 1, "stop")))
    return Batch(step, trajectories)


def config(group_size: int) -> Config:
    return decode({"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"group_size": group_size}})


async def scene(learner: Any, *messages: Message, group_size: int = 4, checkpoints: Path = NOWHERE) -> list[int]:
    """Send these messages, then Stop; return the offsets it fetched."""
    first, spool = MemoryHub(), MemoryHub()
    fetched: list[int] = []
    actor = RankActor(learner, 1, config(group_size), first.connect(PEER), only(spool, PEER), checkpoints=checkpoints)

    async def serve() -> None:
        while True:
            peer, message = await spool.receive()
            if isinstance(message, Fetch):
                fetched.extend(ref.offset for ref in message.refs)
                answer = [memoryview(payload(ref.offset)) for ref in message.refs]
                spool.send(peer, Fetched(message.request_id, answer))

    serving, running = asyncio.create_task(serve()), asyncio.create_task(actor.run())
    for message in messages:
        first.send(PEER, message)
    num_answers = sum(isinstance(one, Batch) or one == Work("snapshot", 0) for one in messages)
    answers = [(await first.receive())[1] for _ in range(num_answers)]
    learner.checked = [answer for answer in answers if isinstance(answer, Checked)]
    learner.written = [answer for answer in answers if isinstance(answer, PartWritten)]
    works = sum(isinstance(message, Work) for message in messages)
    while len(learner.done) < works and not running.done():
        await asyncio.sleep(0)
    first.send(PEER, Stop("over"))
    await running
    serving.cancel()
    return fetched


def test_a_rank_fetches_its_own_trajectories_and_works_in_order() -> None:
    learner = FakeLearner()
    messages = [batch(0), batch(1), Work("gather", 0), Work("train", 0, 5), Work("snapshot", 0), Work("train", 1)]
    fetched = asyncio.run(scene(learner, *messages))

    assert learner.done == ["gather", ("train", [1, 3], 5), "snapshot", ("train", [1, 3], None)]
    assert fetched == [1, 3, 1, 3]
    assert learner.checked == [Checked(0, []), Checked(1, [])]


def test_a_rank_trains_with_the_learning_rate_that_the_first_names() -> None:
    learner = FakeLearner()
    asyncio.run(scene(learner, batch(0), batch(1), Work("train", 0, 5, lr=0.5), Work("train", 1)))
    assert learner.lr == 0.5


def test_a_rank_tells_the_first_what_is_damaged_and_leaves_out_what_that_says() -> None:
    learner = FakeLearner()
    whole = batch(0)
    other = msgspec.structs.replace(whole.trajectories[3].summary, num_tokens=9)
    whole.trajectories[3] = msgspec.structs.replace(whole.trajectories[3], summary=other)
    asyncio.run(scene(learner, whole, Work("train", 0, 5, left_out=[7])))

    (checked,) = learner.checked
    assert [refusal.unit for refusal in checked.refused] == [Unit(7, 3)]
    assert checked.refused[0].reason.startswith("summary that differs from the payload: num_tokens 9")
    assert learner.done == [("train", [], 5)]


def test_a_greedy_trajectory_is_compared_with_and_neither_fetched_nor_trained() -> None:
    learner = FakeLearner()
    fetched = asyncio.run(scene(learner, batch(0), Work("train", 0), group_size=3))

    assert learner.done == [("train", [1], None)]
    assert learner.baselines == [1.0, 1.0, 1.0]
    assert fetched == [1]


def test_a_rank_writes_its_part_of_a_checkpoint_and_says_so(tmp_path) -> None:
    learner = FakeLearner()
    learner.parts = 2
    begin(tmp_path, 1)
    asyncio.run(scene(learner, Work("snapshot", 0), checkpoints=tmp_path))

    (written,) = learner.written
    assert written.files.keys() == {"model-00002-of-00002.safetensors"}
    (path,) = tmp_path.rglob("*.safetensors")
    assert written.files[path.name].size == path.stat().st_size


def test_a_rank_of_another_machine_has_nothing_to_write() -> None:
    learner = FakeLearner()
    asyncio.run(scene(learner, Work("snapshot", 0)))
    assert learner.written == [PartWritten(0, {})]


def test_a_batch_that_is_impossible_is_told_to_the_first_rank_which_ends_all_after_the_step_before_it() -> None:
    class Unable(FakeLearner):
        def assign_ranks(self, infos):
            raise ValueError("advantages are not finite")

    learner = Unable()
    asyncio.run(scene(learner, batch(4)))
    assert learner.checked == [Checked(4, [], "rank 1: ValueError: advantages are not finite")]


def test_it_ends_when_another_rank_is_gone() -> None:
    learner = FakeLearner()
    learner.error = RankDied("a rank of the trainer is gone")
    with pytest.raises(RankDied, match="is gone"):
        asyncio.run(scene(learner, batch(0), Work("train", 0, 5)))
