"""The trainer between a scripted broker and a scripted spool, around a learner that the test can block."""

import array
import asyncio
import threading
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.config.run_file import decode
from asyncrl.errors import LinkError, LinkRefused, LinkReset, RankDied, RunFailed, TransferError
from asyncrl.files.checkpoints import FileEntry
from asyncrl.messages.codec import Message
from asyncrl.messages.session import Bye, Drain, Draining, Ready, Reject, Stop, StoreValue
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.messages.trainer import (
    Batch,
    Commit,
    DamagedCheckpoint,
    Refusal,
    Resumed,
    ScoredTrajectory,
    StepFailed,
    Stepped,
    Take,
    Work,
)
from asyncrl.messages.trajectory import Span, Trajectory, TrajectorySummary, Unit
from asyncrl.messages.weights import (
    Abort,
    Member,
    Published,
    Publishing,
    Transfer,
    Transferred,
    Uploaded,
)
from asyncrl.records.metrics import METRICS
from asyncrl.trainer.actor import Start, TrainerActor
from asyncrl.trainer.checkpoints import writer
from asyncrl.trainer.checkpoints import writer as checkpoint_writer
from asyncrl.trainer.loop import fetching
from asyncrl.trainer.packing.step import TrainingStep, TrajectoryInfo
from asyncrl.trainer.ranks.rank_hub import NoOtherRanks
from asyncrl.wire.handshake import Connection, Identity
from asyncrl.wire.memory import MemoryHub
from tests.wire.only_spool import only

M = TypeVar("M", bound=Message)
PEER = "trainer-0.1"


class FakeLearner:
    """Counts its steps; each one waits for `may_train`."""

    lr = 0.0

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.may_train = threading.Event()
        self.may_train.set()
        self.num_computed = 0
        self.batches: list[list[Any]] = []
        self.versions: list[int | None] = []
        self.rates: list[float] = []
        self.error: Exception | None = None

    def assign_ranks(self, infos: list[TrajectoryInfo]) -> list[int]:
        return [0] * len(infos)

    def train(self, step: TrainingStep, policy_version: int | None) -> dict[str, float]:
        self.versions.append(policy_version)
        self.rates.append(self.lr)
        self.may_train.wait(10)
        if self.error:
            raise self.error
        self._log.append(f"train {len(self.batches)}")
        self.batches.append(list(step.trajectories.values()))
        return {"num_tokens": 6.0, "loss": 0.5}

    def named_weights(self) -> list[tuple[str, str]]:
        return [("w", f"after {len(self.batches)} steps")]

    def snapshot(self, _folder: Path) -> str:
        return f"after {len(self.batches)} steps"


class FakePublisher:
    """Remembers what was staged; each copy takes ``takes_s``."""

    def __init__(self, log: list[str], advance: Callable[[float], None]) -> None:
        self._log = log
        self._advance = advance
        self.takes_s = 0.0
        self.delivered: list[StoreValue] = []
        self.aborted: list[Abort] = []
        self.num_buckets = 0
        self.error: TransferError | None = None

    def stage(self, policy_version: int, weights: list[tuple[str, str]]) -> None:
        self._log.append(f"stage {policy_version}: {dict(weights)['w']}")
        self._advance(self.takes_s)

    async def transfer(self, transfer: Transfer) -> Transferred:
        if self.error:
            raise self.error
        return Transferred(transfer.transfer_group, transfer.policy_version, 0.125, 99)

    def deliver(self, value: StoreValue) -> None:
        self.delivered.append(value)

    def abort(self, abort: Abort) -> None:
        self.aborted.append(abort)


class FakeUploader:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def upload(self, policy_version: int) -> Uploaded:
        self.calls.append(f"upload {policy_version}")
        return Uploaded(policy_version, 0.5, 77)

    async def upload_anchor(self) -> None:
        self.calls.append("anchor")


class FakeCheckpoints:
    """Stands in for the module `checkpoint`; the end of each write waits for `may_write`."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.has_begun = threading.Event()
        self.written: list[dict[str, Any]] = []
        self.pruned: list[int] = []

    def begin(self, _folder: Path, step: int) -> None:
        """The folder of the parts is not looked at."""

    def take(self, folder: Path, _step: int, snapshot: Callable[[Path], object]) -> object:
        return snapshot(folder)

    def write_part(self, _folder: Path, _step: int, snapshot: object) -> dict[str, FileEntry]:
        return {str(snapshot): FileEntry(1, "")}

    def finish(self, folder: Path, **contents: Any) -> Path:
        self.has_begun.set()
        self.may_write.wait(10)
        self.written.append(contents)
        return folder / f"step_{contents['step']:06d}"

    def prune(self, _folder: Path, keep: int, _spared: list[Path]) -> None:
        self.pruned.append(keep)


class Stage:
    """Everything around one actor. ``serving`` answers the usual messages by itself, as a broker and a spool would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start: Start, sections: dict[str, Any], others: Any) -> None:
        base = {"model": {"path": "unused"}, "data": {"train": "unused"}}
        self._monkeypatch = monkeypatch
        self.log: list[str] = []
        self.broker, self.spool = MemoryHub(), MemoryHub()
        self.now_s = 0.0
        self.learner, self.publisher = FakeLearner(self.log), FakePublisher(self.log, self.advance)
        self.uploader = FakeUploader()
        self.checkpoints = FakeCheckpoints()
        for module in (checkpoint_writer, writer):
            monkeypatch.setattr(module, "checkpoint", self.checkpoints)
        learner: Any = self.learner
        publisher: Any = self.publisher
        tokenizer: Any = "tokenizer"
        self.actor = TrainerActor(
            decode(base | sections),
            learner,
            publisher,
            Connection(Identity("trainer", "trainer-0", "1"), self.broker.connect(PEER), only(self.spool, PEER)),
            tokenizer=tokenizer,
            layout_hash="plan",
            checkpoints=Path("checkpoints"),
            start=start,
            uploader=self.uploader,
            others=others,
            clock=lambda: self.now_s,
        )

    def advance(self, seconds: float) -> None:
        """Nothing else moves the actor's clock."""
        self.now_s += seconds

    def waits_for_a_version(self) -> asyncio.Event:
        """Set once the actor waits for one to be live."""
        waits, went_live = asyncio.Event(), self.actor._publications._went_live.wait

        async def watched() -> bool:
            waits.set()
            return await went_live()

        self._monkeypatch.setattr(self.actor._publications._went_live, "wait", watched)
        return waits

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10.0):
            while not condition():
                await asyncio.sleep(0.001)

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.broker.send(PEER, message)

    async def hear(self, kind: type[M]) -> M:
        """The next message, which must be of this kind."""
        message = (await self.broker.receive())[1]
        assert isinstance(message, kind), message
        return message

    async def hear_at_last(self, kind: type[M]) -> M:
        """The next message of this kind."""
        while not isinstance(message := (await self.broker.receive())[1], kind):
            pass
        return message

    async def rest(self) -> list[Message]:
        """Everything that was said and not heard, of an actor that has ended."""
        self.broker.deliver(PEER, Bye("the end"))
        heard: list[Message] = []
        while not isinstance(message := (await self.broker.receive())[1], Bye):
            heard.append(message)
        return heard

    async def fetch(self) -> Fetch:
        message = (await self.spool.receive())[1]
        assert isinstance(message, Fetch)
        return message

    def answer(self, fetch: Fetch) -> None:
        self.spool.send(PEER, Fetched(fetch.request_id, [payload(ref.offset) for ref in fetch.refs]))

    async def give(self, step: int) -> None:
        """Answer one Take, and the Fetch that follows."""
        assert await self.hear(Take) == Take(step)
        self.say(Batch(step, [scored(step)]))
        self.answer(await self.fetch())

    async def begin(self) -> None:
        """Up to the first batch; version 0 is live."""
        assert (await self.hear(Ready)).layout_hash == "plan"
        assert await self.hear(Publishing) == Publishing(0, 0)
        self.say(Published(0))


def payload(step: int) -> memoryview:
    trajectory = Trajectory(
        unit=Unit(step, 0),
        prompt_ids=memoryview(array.array("i", [1, 2])).cast("B"),
        completion_ids=memoryview(array.array("i", [3, 4, 5])).cast("B"),
        behavior_logprobs=memoryview(array.array("f", [-0.5, -1.0, -1.5])).cast("B"),
        spans=[Span(0, 0, 3)],
        finish_reason="stop",
        text="",
    )
    return memoryview(msgspec.msgpack.encode(trajectory))


def scored(step: int) -> ScoredTrajectory:
    raw = payload(step)
    ref = SpoolRef("spool", 0, step, len(raw), zlib.crc32(raw))
    return ScoredTrajectory(Unit(step, 0), ref, float(step), {}, TrajectorySummary(3, 2, 0, 0, 1, "stop"))


def transfer(policy_version: int, transfer_group: int = 1) -> Transfer:
    members = [Member("trainer-0", "1"), Member("r-0", "1")]
    return Transfer(transfer_group, policy_version, members, keep=True, deadline_s=5.0)


def own_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("trainer-")]


Play = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def scene(monkeypatch):
    """Run the actor beside a play, then stop it; neither task nor thread may be left behind."""

    def run(play: Play, *, start: Start = Start(), others: Any = None, **sections: Any) -> Stage:  # noqa: B008  immutable
        return asyncio.run(_scene(Stage(monkeypatch, start, sections, others or NoOtherRanks()), play))

    async def _scene(stage: Stage, play: Play) -> Stage:
        running = asyncio.create_task(stage.actor.run())
        playing = asyncio.ensure_future(play(stage))
        await asyncio.wait([running, playing], return_when=asyncio.FIRST_COMPLETED)
        stage.learner.may_train.set()
        stage.checkpoints.may_write.set()
        if not playing.done():
            playing.cancel()
            running.result()
            raise AssertionError("the actor ended too early")
        playing.result()
        stage.say(Stop("the run is complete"))
        await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not own_threads()
        return stage

    return run


def test_the_starting_weights_are_version_0(scene):
    async def play(stage):
        await stage.begin()
        assert stage.log == ["stage 0: after 0 steps"]

    scene(play)


def test_a_step_fetches_its_batch_and_trains_on_it(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        await stage.hear(Take)
        assert await stage.hear(Publishing) == Publishing(1, 1)
        stepped = await stage.hear(Stepped)
        assert (stepped.step, stepped.policy_version) == (0, 0)
        assert stepped.metrics["loss"] == 0.5
        assert {"train_s", "wait_s", "stage_s", "publish_s"} <= set(stepped.metrics)
        ((trained,),) = stage.learner.batches
        assert (trained.group_id, trained.reward) == (0, 0.0)
        assert trained.prompt_ids.tolist() == [1, 2]
        assert trained.completion_ids.tolist() == [3, 4, 5]
        assert trained.behavior_logprobs.tolist() == [-0.5, -1.0, -1.5]
        assert trained.spans == [Span(0, 0, 3)]
        assert stage.actor.heartbeat(0.0).tokens == 6

    scene(play)


def test_a_step_tells_how_long_it_waited_for_its_batch(scene):
    async def play(stage):
        stage.publisher.takes_s = 1.0
        await stage.begin()
        assert await stage.hear(Take) == Take(0)
        stage.advance(3.0)
        stage.say(Batch(0, [scored(0)]))
        stage.answer(await stage.fetch())
        metrics = (await stage.hear_at_last(Stepped)).metrics
        assert (metrics["wait_s"], metrics["train_s"] + metrics["stage_s"]) == (3.0, 1.0)

    scene(play)


def damaged_payload(step: int) -> memoryview:
    trajectory = msgspec.msgpack.decode(payload(step), type=Trajectory)
    nan = memoryview(array.array("f", [-0.5, float("nan"), -1.5])).cast("B")
    return memoryview(msgspec.msgpack.encode(replace(trajectory, behavior_logprobs=nan)))


def test_its_metrics_are_those_of_its_steps(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        assert await stage.hear(Take) == Take(1)
        assert await stage.hear(Publishing) == Publishing(1, 1)
        stepped = await stage.hear(Stepped)
        found = {(s.name.removeprefix("asyncrl_trainer_"), *s.labels.values()): s.value for s in stage.actor.metrics()}
        assert (found["steps_total",], found["loss",], found["policy_version",]) == (1, 0.5, 0)
        assert found["seconds_total", "training"] == stepped.metrics["train_s"]
        assert all(sample.name in METRICS for sample in stage.actor.metrics())

    scene(play)


def test_a_damaged_trajectory_is_left_out_with_its_group_and_named(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        raw = damaged_payload(1)
        damaged = replace(scored(1), ref=replace(scored(1).ref, crc32=zlib.crc32(raw)))
        stage.say(Batch(0, [scored(0), damaged]))
        stage.spool.send(PEER, Fetched((await stage.fetch()).request_id, [payload(0), raw]))
        stepped = await stage.hear_at_last(Stepped)
        assert stepped.refused == [Refusal(Unit(1, 0), "impossible log-prob: nan at position 1, expected -1000 .. 0")]
        ((trained,),) = stage.learner.batches
        assert trained.group_id == 0

    scene(play)


def test_a_trajectory_that_the_spool_lost_is_left_out_with_its_group_and_held_against_the_spool(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        stage.say(Batch(0, [scored(0), scored(1)]))
        stage.spool.send(PEER, Fetched((await stage.fetch()).request_id, [payload(0), memoryview(b"")]))
        (refusal,) = (await stage.hear_at_last(Stepped)).refused
        assert (refusal.unit, refusal.at_fault) == (Unit(1, 0), "spool")
        ((trained,),) = stage.learner.batches
        assert trained.group_id == 0

    scene(play)


def test_a_step_of_which_nothing_is_left_counts_and_the_run_goes_on(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        raw = damaged_payload(0)
        stage.say(Batch(0, [replace(scored(0), ref=replace(scored(0).ref, crc32=zlib.crc32(raw)))]))
        stage.spool.send(PEER, Fetched((await stage.fetch()).request_id, [raw]))
        await stage.give(1)
        assert [refusal.unit for refusal in (await stage.hear_at_last(Stepped)).refused] == [Unit(0, 0)]
        assert (await stage.hear_at_last(Stepped)).refused == []
        assert [len(batch) for batch in stage.learner.batches] == [0, 1]

    scene(play)


class OneOther:
    """Further ranks that share a row, and refuse one trajectory of every step."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    def broadcast(self, message: Message) -> None:
        self.told.append(message)

    async def refused(self, step: int) -> list[Refusal]:
        return [Refusal(Unit(step, 0), "NaN")] * 2

    async def written(self, step: int) -> dict[str, FileEntry]:
        return {f"theirs of {step}": FileEntry(2, "")}


def test_what_another_rank_refuses_is_left_out_by_all(scene):
    other = OneOther()

    async def play(stage):
        await stage.begin()
        await stage.give(0)
        stepped = await stage.hear_at_last(Stepped)
        assert stepped.refused == [Refusal(Unit(0, 0), "NaN")]
        assert stage.learner.batches == [[]]
        (work,) = [one for one in other.told if isinstance(one, Work) and one.kind == "train"]
        assert work.left_out == [0]

    scene(play, others=other)


def test_the_next_batch_is_asked_and_fetched_while_this_one_trains(scene):
    async def play(stage):
        stage.learner.may_train.clear()
        await stage.begin()
        await stage.give(0)
        await stage.give(1)
        assert stage.learner.batches == []

    scene(play)


def test_a_step_is_trained_with_the_learning_rate_of_its_batch(scene):
    async def play(stage: Stage) -> None:
        await stage.begin()
        for step, lr in ((0, None), (1, 0.5)):
            assert await stage.hear_at_last(Take) == Take(step)
            stage.say(Batch(step, [scored(step)], lr))
            stage.answer(await stage.fetch())
        await stage.until(lambda: len(stage.learner.rates) == 2)
        assert stage.learner.rates == [0.25, 0.5]

    scene(play, run={"steps": 9}, trainer={"lr": 0.25})


def test_the_last_step_asks_for_no_further_batch(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        assert await stage.hear(Publishing) == Publishing(1, 1)
        await stage.hear(Stepped)
        assert await stage.hear(Commit) == Commit(0, "checkpoints/step_000001")

    scene(play, run={"steps": 1})


def test_a_version_is_staged_while_the_one_before_travels_and_the_next_waits(scene):
    """A slow rollout: version 1 is not live for as long as it takes. That costs step 1 nothing, and step 2 the wait."""

    async def play(stage):
        waits = stage.waits_for_a_version()
        stage.publisher.takes_s = 0.25
        await stage.begin()
        await stage.give(0)
        await stage.give(1)
        assert await stage.hear(Publishing) == Publishing(1, 1)
        assert (await stage.hear(Stepped)).metrics["stage_s"] == 0.25
        await stage.give(2)
        assert await stage.hear(Publishing) == Publishing(2, 2)
        assert (await stage.hear(Stepped)).metrics["stage_s"] == 0.25
        await stage.give(3)
        await waits.wait()
        assert stage.log[-1] == "train 2"
        stage.advance(8.0)
        stage.say(Published(0))
        stage.say(Published(1))
        assert await stage.hear(Publishing) == Publishing(3, 3)
        assert (await stage.hear(Stepped)).metrics["stage_s"] == 8.25
        assert [line for line in stage.log if not line.startswith("train")] == [
            "stage 0: after 0 steps",
            "stage 1: after 1 steps",
            "stage 2: after 2 steps",
            "stage 3: after 3 steps",
        ]

    scene(play)


def test_steps_per_publish_steps_make_one_version_and_the_last_step_always_does(scene):
    async def play(stage):
        heard: list[Message] = []
        while not (heard and isinstance(heard[-1], Commit)):
            match (await stage.broker.receive())[1]:
                case Take(step=step):
                    stage.say(Batch(step, [scored(step)]))
                    stage.answer(await stage.fetch())
                case Stepped(step=step, policy_version=version):
                    heard.append(Stepped(step, version, {}))
                case message:
                    heard.append(message)
                    if isinstance(message, Publishing):
                        stage.say(Published(message.policy_version))
        assert heard == [
            Ready("plan"),
            Publishing(0, 0),
            Stepped(0, 0, {}),
            Publishing(1, 2),
            Stepped(1, 0, {}),
            Publishing(2, 3),
            Stepped(2, 1, {}),
            Commit(2, "checkpoints/step_000003"),
        ]

    stage = scene(play, run={"steps": 3}, schedule={"steps_per_publish": 2})
    assert stage.learner.versions == [0, None, 1], "between two publishes the weights are of no version"
    assert [line for line in stage.log if line.startswith("stage")] == [
        "stage 0: after 0 steps",
        "stage 1: after 2 steps",
        "stage 2: after 3 steps",
    ]


def test_checkpoints_are_written_at_their_interval_with_step_and_version(scene):
    async def play(stage):
        await stage.begin()
        stage.say(Published(1))
        await stage.give(0)
        await stage.give(1)
        assert await stage.hear_at_last(Commit) == Commit(0, "checkpoints/step_000001")

    stage = scene(play, checkpoint={"every_steps": 1, "keep": 3})
    first = stage.checkpoints.written[0]
    assert (first["step"], first["policy_version"], first["frontier"]) == (1, 1, {"next_step": 1})
    assert (first["snapshot"], first["tokenizer"]) == ("after 1 steps", "tokenizer")
    assert [stepped.step for stepped in first["stepped"]] == [0]
    assert stage.checkpoints.pruned[0] == 3


def test_a_checkpoint_has_the_files_of_all_ranks(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        await stage.hear_at_last(Commit)

    stage = scene(play, others=OneOther(), checkpoint={"every_steps": 1})
    assert stage.checkpoints.written[0]["parts"].keys() == {"after 1 steps", "theirs of 0"}


def test_a_checkpoint_is_written_while_the_next_step_trains_and_the_one_after_it_waits(scene):
    async def play(stage):
        stage.checkpoints.may_write.clear()
        await stage.begin()
        for version in (0, 1, 2, 3):
            stage.say(Published(version))
        await stage.give(0)
        await stage.give(1)
        assert await stage.hear(Publishing) == Publishing(1, 1)
        assert (await stage.hear(Stepped)).step == 0
        await stage.give(2)
        assert await stage.hear(Publishing) == Publishing(2, 2)
        assert (await stage.hear(Stepped)).step == 1, "trained although no checkpoint is written yet"
        assert stage.checkpoints.written == []
        assert stage.log[-1] == "stage 2: after 2 steps"
        stage.checkpoints.may_write.set()
        assert await stage.hear_at_last(Commit) == Commit(0, "checkpoints/step_000001")
        assert await stage.hear_at_last(Commit) == Commit(1, "checkpoints/step_000002")

    stage = scene(play, checkpoint={"every_steps": 1})
    assert [contents["snapshot"] for contents in stage.checkpoints.written[:2]] == ["after 1 steps", "after 2 steps"]


def test_a_checkpoint_in_progress_at_the_end_is_completed(scene):
    async def play(stage):
        stage.checkpoints.may_write.clear()
        await stage.begin()
        stage.say(Published(1))
        await stage.give(0)
        await stage.give(1)
        await stage.hear(Publishing)
        await stage.hear(Stepped)
        await asyncio.to_thread(stage.checkpoints.has_begun.wait, 10)

    stage = scene(play, checkpoint={"every_steps": 1})
    assert stage.checkpoints.written[0]["step"] == 1


def test_a_disk_that_takes_no_checkpoint_ends_it(scene, monkeypatch):
    async def play(stage):
        monkeypatch.setattr(stage.checkpoints, "write_part", full)
        await stage.begin()
        stage.say(Published(1))
        await stage.give(0)
        await asyncio.Event().wait()

    def full(*_arguments, **_contents):
        raise RunFailed("cannot write step_000001: No space left on device")

    with pytest.raises(RunFailed, match="No space left on device"):
        scene(play, checkpoint={"every_steps": 1})


def test_its_stacks_are_told_also_while_it_trains(scene):
    async def play(stage):
        stage.learner.may_train.clear()
        await stage.begin()
        await stage.give(0)
        await stage.until(lambda: bool(stage.learner.versions))
        stage.say(StacksWanted("trainer-0"))
        told = await stage.hear_at_last(Stacks)
        assert "in train\n    self.may_train.wait(10)" in told.text
        stage.learner.may_train.set()

    scene(play)


def test_answers_of_the_rendezvous_reach_the_publisher(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        stage.say(StoreValue("1", "key", b"value"), transfer(0))
        await stage.hear(Transferred)
        assert stage.publisher.delivered == [StoreValue("1", "key", b"value")]

    scene(play)


def test_an_abort_reaches_the_publisher_while_it_sends(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        stage.say(Abort(1, "r-0 was silent"), transfer(0))
        await stage.hear(Transferred)
        assert stage.publisher.aborted == [Abort(1, "r-0 was silent")]

    scene(play)


def test_beats_tell_how_much_of_a_version_was_sent(scene):
    async def play(stage):
        await stage.begin()
        stage.publisher.num_buckets = 7
        assert stage.actor.heartbeat(0.0).buckets == 7

    scene(play)


def test_a_batch_that_comes_twice_is_trained_on_once(scene):
    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        stage.say(Batch(0, [scored(0)]), Batch(0, [scored(0)]))
        stage.answer(await stage.fetch())
        await stage.hear(Take)
        await stage.hear(Publishing)
        await stage.hear(Stepped)
        assert len(stage.learner.batches) == 1

    scene(play)


def test_after_the_last_step_it_still_brings_joiners_up_to_date(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        await stage.hear(Publishing)
        await stage.hear(Stepped)
        await stage.hear(Commit)
        stage.say(transfer(1, transfer_group=9))
        assert (await stage.hear(Transferred)).transfer_group == 9

    scene(play, run={"steps": 1})


def test_a_resumed_trainer_publishes_what_it_has_and_goes_on_with_the_next_step(scene):
    async def play(stage):
        await stage.hear(Ready)
        assert await stage.hear(Resumed) == Resumed(2, "checkpoints/step_000002")
        assert await stage.hear(Publishing) == Publishing(2, 2)
        assert await stage.hear(Stepped) == Stepped(1, 1, {"loss": 0.25})
        assert await stage.hear(Commit) == Commit(1, "checkpoints/step_000002")
        stage.say(Published(4))  # Live before the trainer died.
        await stage.give(2)
        assert await stage.hear(Take) == Take(3)
        assert await stage.hear(Publishing) == Publishing(3, 3)
        assert (await stage.hear(Stepped)).step == 2

    heard_by_nobody = [Stepped(1, 1, {"loss": 0.25})]
    scene(play, start=Start(2, 2, "checkpoints/step_000002", heard_by_nobody), run={"steps": 4})


@pytest.mark.parametrize(("step", "folder"), [(2, "checkpoints/step_000002"), (0, "")])
def test_a_trainer_that_passed_over_a_damaged_checkpoint_says_so(scene, step, folder):
    damaged = [DamagedCheckpoint("checkpoints/step_000004", "model.safetensors is missing")]

    async def play(stage):
        await stage.hear(Ready)
        assert await stage.hear(Resumed) == Resumed(step, folder, damaged)

    scene(play, start=Start(step, step, folder, damaged=damaged), run={"steps": 4})


def test_a_trainer_resumed_after_the_last_step_says_so_and_serves_joiners(scene):
    async def play(stage):
        await stage.hear(Ready)
        await stage.hear(Resumed)
        assert await stage.hear(Publishing) == Publishing(2, 2)
        assert await stage.hear(Commit) == Commit(1, "checkpoints/step_000002")
        stage.say(Published(2), transfer(2, transfer_group=9))
        assert (await stage.hear(Transferred)).transfer_group == 9

    scene(play, start=Start(2, 2, "checkpoints/step_000002"), run={"steps": 2})


def test_before_another_machine_of_the_trainer_leaves_the_steps_done_are_saved(scene):
    async def play(stage):
        await stage.begin()
        await stage.give(0)
        assert (await stage.hear_at_last(Stepped)).step == 0
        stage.say(Drain("trainer-1"))
        assert await stage.hear(Commit) == Commit(0, "checkpoints/step_000001")
        assert await stage.hear(Draining) == Draining()

    scene(play, checkpoint={"every_steps": 100})


# ── a step that fails ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("no tokens"), [StepFailed(0, "ValueError: no tokens")]),
        (RankDied("rank 1 was killed by SIGKILL"), []),
        (LinkReset("the broker has restarted"), []),
    ],
    ids=["its own error", "a rank is gone", "the broker is gone"],
)
def test_a_step_that_fails_says_why_before_the_trainer_ends(monkeypatch, error, told):
    async def play() -> None:
        stage = Stage(monkeypatch, Start(), {}, NoOtherRanks())
        stage.learner.error = error
        running = asyncio.create_task(stage.actor.run())
        await stage.begin()
        await stage.give(0)
        with pytest.raises(type(error), match=str(error)):
            await running
        assert [message for message in await stage.rest() if isinstance(message, StepFailed)] == told

    asyncio.run(play())


def test_a_checkpoint_that_is_being_written_is_complete_before_a_later_step_is_said_to_have_failed(monkeypatch):
    async def play() -> None:
        stage = Stage(monkeypatch, Start(), {"checkpoint": {"every_steps": 1}}, NoOtherRanks())
        stage.checkpoints.may_write.clear()
        running = asyncio.create_task(stage.actor.run())
        await stage.begin()
        stage.say(Published(1))
        await stage.give(0)
        await asyncio.to_thread(stage.checkpoints.has_begun.wait, 10)
        stage.learner.error = ValueError("no tokens")
        await stage.give(1)
        await stage.until(lambda: len(stage.learner.versions) == 2)
        stage.checkpoints.may_write.set()
        with pytest.raises(ValueError, match="no tokens"):
            await running
        assert [message for message in await stage.rest() if isinstance(message, Commit | StepFailed)] == [
            Commit(0, "checkpoints/step_000001"),
            StepFailed(1, "ValueError: no tokens"),
        ]

    asyncio.run(play())


def test_a_batch_that_cannot_be_assigned_costs_nothing_of_the_step_before_it(monkeypatch):
    def assign_ranks(infos: list[TrajectoryInfo]) -> list[int]:
        if infos[0].outcome.group_id == 1:
            raise ValueError("advantages are not finite")
        return [0] * len(infos)

    async def play() -> None:
        stage = Stage(monkeypatch, Start(), {}, NoOtherRanks())
        stage.learner.may_train.clear()
        monkeypatch.setattr(stage.learner, "assign_ranks", assign_ranks)
        running = asyncio.create_task(stage.actor.run())
        await stage.begin()
        stage.say(Published(1))
        await stage.give(0)
        assert await stage.hear(Take) == Take(1)
        stage.say(Batch(1, [scored(1)]))
        await asyncio.wait([stage.actor._batches.upcoming], timeout=10)
        stage.learner.may_train.set()
        with pytest.raises(ValueError, match="advantages are not finite"):
            await running
        told = [message for message in await stage.rest() if isinstance(message, Stepped | StepFailed)]
        assert [type(message) for message in told] == [Stepped, StepFailed]
        assert told[1] == StepFailed(1, "ValueError: advantages are not finite")

    asyncio.run(play())


def test_a_batch_that_cannot_be_assigned_is_a_failure_of_its_step_told_once(monkeypatch):
    def assign_ranks(_: list[TrajectoryInfo]) -> list[int]:
        raise ValueError("advantages are not finite")

    async def play() -> None:
        stage = Stage(monkeypatch, Start(), {}, NoOtherRanks())
        monkeypatch.setattr(stage.learner, "assign_ranks", assign_ranks)
        running = asyncio.create_task(stage.actor.run())
        await stage.begin()
        await stage.hear(Take)
        stage.say(Batch(0, [scored(0)]))
        with pytest.raises(ValueError, match="advantages are not finite"):
            await running
        assert await stage.rest() == [StepFailed(0, "ValueError: advantages are not finite")]

    asyncio.run(play())


# ── the end ─────────────────────────────────────────────────────────────────────────────────


def test_stop_ends_it_in_the_middle_of_a_step(scene):
    async def play(stage):
        stage.learner.may_train.clear()
        await stage.begin()
        await stage.give(0)
        await stage.hear(Take)

    scene(play)


def test_a_spool_that_does_not_answer_ends_it(scene, monkeypatch):
    monkeypatch.setattr(fetching, "FETCH_S", 0.0)

    async def play(stage):
        await stage.begin()
        await stage.hear(Take)
        stage.say(Batch(0, [scored(0)]))
        await asyncio.Event().wait()

    with pytest.raises(LinkError, match=r"the spools did not send the batch of step 1 within 0.01 s"):
        scene(play, broker={"spool_ttl_s": 0.01})


def test_a_rejected_trainer_says_why(scene):
    async def play(stage):
        stage.say(Reject("this run has a trainer already"))
        await asyncio.Event().wait()

    with pytest.raises(LinkRefused, match="has a trainer already"):
        scene(play)


def test_a_learner_that_fails_ends_it_with_its_error(scene):
    async def play(stage):
        def broken(_step, _policy_version):
            raise ArithmeticError("no finite gradient")

        stage.learner.train = broken
        await stage.begin()
        await stage.give(0)
        await asyncio.Event().wait()

    with pytest.raises(ArithmeticError, match="no finite gradient"):
        scene(play)


def test_cancelling_it_leaves_neither_task_nor_thread(monkeypatch):
    async def main():
        stage = Stage(monkeypatch, Start(), {}, NoOtherRanks())
        running = asyncio.create_task(stage.actor.run())
        await stage.begin()
        await stage.hear(Take)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not own_threads()

    asyncio.run(main())
