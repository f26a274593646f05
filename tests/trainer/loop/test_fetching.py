"""The next batch: requested once, fetched in the background, refused by any rank."""

import array
import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.config.sections.trainer import Trainer
from asyncrl.errors import BrokenInvariant, DecodeError
from asyncrl.messages.codec import Message
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trainer import Batch, Refusal, ScoredTrajectory, Take
from asyncrl.messages.trajectory import Image, Span, Trajectory, TrajectoryLimits, TrajectorySummary, Turn, Unit
from asyncrl.messages.words import Activity
from asyncrl.trainer.loop import fetching as module
from asyncrl.trainer.loop.fetching import FETCH_S, Batches, FetchedStep, fetch_step, limits_of
from asyncrl.trainer.packing.step import UNASSIGNED, TrainingStep, TrajectoryInfo, TrajectorySize
from asyncrl.wire.occupancy import Occupancy

NAN, LOST = Refusal(Unit(0, 0), "NaN"), Refusal(Unit(1, 0), "the spool is lost")


class Everything:
    """Link and other ranks of a trainer. Its own part of each step is ``fetched``."""

    def __init__(self) -> None:
        self.happened: list[Any] = []
        self.others_refuse: list[Refusal] = []
        self.fetched: Any = FetchedStep(None, [])  # type: ignore[arg-type]
        both: Any = self
        config = decode({"model": {"path": "m"}, "data": {"train": "d"}})
        self.batches = Batches(
            both,
            both,
            both,
            learner=both,
            token_ids=TokenIds(8),
            config=config,
            others=both,
            occupancy=Occupancy[Activity](("fetching",)),
        )

    async def send(self, message: Message) -> None:
        self.happened.append(message)

    def broadcast(self, batch: Batch) -> None:
        self.happened.append(batch)

    async def refused(self, _step: int) -> list[Refusal]:
        return self.others_refuse

    async def fetch_step(self, *_arguments: Any, **_options: Any) -> FetchedStep:
        return self.fetched


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Everything:
    made = Everything()
    monkeypatch.setattr(module, "fetch_step", made.fetch_step)
    return made


def play(act: Callable[[asyncio.TaskGroup], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
            await act(tasks)

    asyncio.run(main())


def test_a_batch_is_asked_for_and_passed_on_to_the_other_ranks(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        assert trainer.happened == [Take(4)]
        trainer.batches.arrived(Batch(4, [], 0.5))
        assert (await trainer.batches.take()).lr == 0.5
        assert trainer.happened == [Take(4), Batch(4, [], 0.5)]

    play(act)


def test_a_batch_that_comes_twice_or_unasked_changes_nothing(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.arrived(Batch(3, []))
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        for lr in (0.5, 0.7):
            trainer.batches.arrived(Batch(4, [], lr))
        await asyncio.wait([trainer.batches.upcoming])
        trainer.batches.arrived(Batch(4, [], 0.9))
        assert (await trainer.batches.take()).lr == 0.5

    play(act)


def test_what_any_rank_refuses_is_refused_once(trainer: Everything) -> None:
    trainer.fetched = FetchedStep(None, [NAN])  # type: ignore[arg-type]
    trainer.others_refuse = [LOST, NAN]

    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(0, tasks)
        await asyncio.sleep(0)
        trainer.batches.arrived(Batch(0, []))
        assert (await trainer.batches.take()).refused == [NAN, LOST]

    play(act)


def test_a_step_that_begins_before_its_request_is_a_mistake(trainer: Everything) -> None:
    with pytest.raises(BrokenInvariant, match="before its batch was requested"):
        trainer.batches.upcoming  # noqa: B018


def test_a_step_is_taken_once_and_not_kept(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.request(4, tasks)
        await asyncio.sleep(0)
        trainer.batches.arrived(Batch(4, [], 0.5))
        assert (await trainer.batches.take()).lr == 0.5
        with pytest.raises(BrokenInvariant):
            trainer.batches.upcoming  # noqa: B018

    play(act)


def test_a_request_can_be_cancelled(trainer: Everything) -> None:
    async def act(tasks: asyncio.TaskGroup) -> None:
        trainer.batches.cancel()
        trainer.batches.request(0, tasks)
        await asyncio.sleep(0)
        trainer.batches.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trainer.batches.upcoming

    play(act)


# ── test fetching ─────────────────────────────────────────────────────────────────────────────
# A batch of two prompts, three trajectories of each and one greedy answer, before a scripted spool.

GROUP_SIZE = 3
RED, UNKNOWN = Image(bytes(32), 8, 8, 3), Image(bytes(31) + b"?", 8, 8, 3)
CONFIG = decode({"model": {"path": "m"}, "data": {"train": "d"}, "schedule": {"group_size": GROUP_SIZE}})
SHARING = msgspec.structs.replace(CONFIG, trainer=Trainer(ranks=4, sequence_parallel=2))


class Spool:
    """Answers at once, as a `PayloadClient` would, and remembers what it was asked."""

    def __init__(self, *, lost: Sequence[tuple[int, int]] = (), **damaged: bytes) -> None:
        self.asked: list[tuple[int, int]] = []
        self.deadline_s = 0.0
        self._lost = lost
        """Payloads of a spool that was given up, by group and index."""
        self._damaged = damaged
        """Payloads in place of the sound ones, by ``_group_index``."""

    async def fetch_payloads(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[memoryview | None]:
        self.deadline_s = deadline_s
        self.asked += [(ref.segment, ref.offset) for ref in refs]
        return [None if (ref.segment, ref.offset) in self._lost else self._stored(ref) for ref in refs]

    def _stored(self, ref: SpoolRef) -> memoryview:
        return memoryview(self._damaged.get(f"_{ref.segment}_{ref.offset}", payload(ref.segment, ref.offset)))


class Images:
    """An `ImageCache` that has `RED`."""

    async def fetch(self, images: Sequence[Image], deadline_s: float) -> list[bytes]:
        if any(image != RED for image in images):
            raise DecodeError("the picture is not among those of the run's prompts")
        return [b"red"] * len(images)


class Owning:
    """Learner with a fixed assignment."""

    def __init__(self, *owner: int) -> None:
        self.owners = list(owner)
        self.infos: Sequence[TrajectoryInfo] = ()

    def assign_ranks(self, infos: Sequence[TrajectoryInfo]) -> list[int]:
        self.infos = infos
        return self.owners


def trajectory(group_id: int, index: int) -> Trajectory:
    """Has ``index + 1`` completion tokens, of which the first identifies it."""
    ids = array.array("i", [10 * group_id + index, *range(index)])
    logprobs = array.array("f", [-0.5] * len(ids))
    prompt = array.array("i", [group_id] * 4)
    tokens = [memoryview(part).cast("B") for part in (prompt, ids, logprobs)]
    return Trajectory(Unit(group_id, index), tokens[0], tokens[1], tokens[2], [Span(5, 0, len(ids))], "stop", "")


def payload(group_id: int, index: int) -> bytes:
    return msgspec.msgpack.encode(trajectory(group_id, index))


def scored(group_id: int, index: int) -> ScoredTrajectory:
    """Its reward identifies it: group before the point, index after it."""
    ref = SpoolRef("spool", group_id, index, 1, zlib.crc32(payload(group_id, index)))
    reward = group_id + index / 10
    return ScoredTrajectory(
        Unit(group_id, index), ref, reward, {"form": reward / 2}, TrajectorySummary(index + 1, 4, 5, 5, 1, "stop")
    )


def batch(*group_ids: int, greedy: bool = True) -> Batch:
    return Batch(8, [scored(group, index) for group in group_ids for index in range(GROUP_SIZE + greedy)])


LIMITS = TrajectoryLimits(100, 4, 8, 6)


def fetch(
    batch: Batch,
    learner: Owning,
    spool: Spool,
    *,
    rank: int = 0,
    config: Config = CONFIG,
    limits: TrajectoryLimits = LIMITS,
) -> TrainingStep:
    fetched = fetched_by(batch, learner, spool, rank=rank, config=config, limits=limits)
    assert fetched.refused == []
    return fetched.step


def fetched_by(
    batch: Batch,
    learner: Owning,
    spool: Spool,
    *,
    rank: int = 0,
    config: Config = CONFIG,
    limits: TrajectoryLimits = LIMITS,
) -> FetchedStep:
    fakes: Any = learner, spool
    images: Any = Images()
    return asyncio.run(fetch_step(batch, *fakes, images=images, rank=rank, config=config, limits=limits))


def with_payload(whole: Batch, place: int, payload: bytes) -> Batch:
    """The batch, where the spool's intact payload at ``place`` is this one."""
    ref = msgspec.structs.replace(whole.trajectories[place].ref, crc32=zlib.crc32(payload))
    whole.trajectories[place] = msgspec.structs.replace(whole.trajectories[place], ref=ref)
    return whole


def test_every_rank_has_the_metadata_of_all_trajectories() -> None:
    learner = Owning(0, 1, 1, 1, 1, 0)
    step = fetch(batch(7, 2), learner, Spool(), rank=1)

    names = [(7, 0), (7, 1), (7, 2), (2, 0), (2, 1), (2, 2)]
    assert [(one.outcome.group_id, one.index) for one in step.infos] == names
    assert [(one.prompt_length, one.outcome.length) for one in step.infos] == [(4, 1), (4, 2), (4, 3)] * 2
    assert [one.reward for one in step.outcomes] == [7.0, 7.1, 7.2, 2.0, 2.1, 2.2]
    assert step.outcomes[1].metrics == {"form": 3.55}
    assert learner.infos is step.infos
    assert step.owners == learner.owners


def test_ranks_that_share_their_rows_fetch_the_same_trajectories() -> None:
    steps = [fetch(batch(7, 2), Owning(0, 2, 2, 2, 0, 2), Spool(), rank=rank, config=SHARING) for rank in range(4)]
    assert [[*step.trajectories] for step in steps] == [[0, 4], [0, 4], [1, 2, 3, 5], [1, 2, 3, 5]]


def test_a_greedy_answer_is_the_baseline_of_its_own_prompt_and_takes_no_place() -> None:
    step = fetch(batch(7, 2), Owning(0, 0, 0, 0, 0, 0), Spool())
    assert [one.baseline for one in step.outcomes] == [7.3] * 3 + [2.3] * 3
    assert sorted(step.trajectories) == [0, 1, 2, 3, 4, 5]


def test_a_prompt_that_was_not_answered_greedily_has_no_baseline() -> None:
    both = Batch(8, [*batch(7).trajectories, *batch(2, greedy=False).trajectories])
    step = fetch(both, Owning(0, 0, 0, 0, 0, 0), Spool())
    assert [one.baseline for one in step.outcomes] == [7.3] * 3 + [None] * 3


def test_a_rank_asks_for_its_own_and_finds_each_in_its_place() -> None:
    spool = Spool()
    step = fetch(batch(7, 2), Owning(1, 0, 1, UNASSIGNED, 1, 0), spool, rank=1)

    assert spool.asked == [(7, 0), (7, 2), (2, 1)]
    assert spool.deadline_s == FETCH_S + CONFIG.broker.spool_ttl_s
    assert {place: one.completion_ids.tolist() for place, one in step.trajectories.items()} == {
        0: [70],
        2: [72, 0, 1],
        4: [21, 0],
    }


def test_a_trajectory_has_the_tokens_of_the_spool_and_the_verdict_of_the_broker() -> None:
    found = fetch(batch(7), Owning(UNASSIGNED, UNASSIGNED, 0), Spool()).trajectories[2]

    assert (found.group_id, found.index, found.reward, found.metrics) == (7, 2, 7.2, {"form": 3.6})
    assert found.prompt_ids.tolist() == [7, 7, 7, 7]
    assert found.behavior_logprobs.tolist() == [-0.5, -0.5, -0.5]
    assert found.spans == [Span(5, 0, 3)]


def test_an_episode_has_its_turns_and_what_was_read_between_them() -> None:
    whole, plain = batch(7, greedy=False), trajectory(7, 2)
    turns = [Turn(-1, 2, 1, reward=0.5), Turn(0, 1, 2, is_trained=False)]
    context = memoryview(array.array("i", [4, 5, 6])).cast("B")
    made = msgspec.structs.replace(plain, turns=turns, context_ids=context)
    summary = msgspec.structs.replace(whole.trajectories[2].summary, num_turns=2, context_tokens=3)
    whole.trajectories[2] = msgspec.structs.replace(whole.trajectories[2], summary=summary)
    encoded, learner = msgspec.msgpack.encode(made), Owning(0, 0, 0)
    limits = TrajectoryLimits(100, 8, 8, 6)  # of a run whose turns are unknown: the others have none
    step = fetch(with_payload(whole, 2, encoded), learner, Spool(_7_2=encoded), limits=limits)

    assert step.trajectories[2].turns == turns
    assert step.trajectories[2].context_ids.tolist() == [4, 5, 6]
    assert [info.size for info in learner.infos] == [
        TrajectorySize(7, 4, 1),
        TrajectorySize(7, 4, 2),
        TrajectorySize(7, 4, 3 + 3),
    ]
    assert step.infos[2].outcome.length == 3, "of the policy alone"


def test_a_damaged_trajectory_is_refused_and_the_others_are_fetched() -> None:
    sound = trajectory(7, 1)
    damaged = msgspec.msgpack.encode(
        msgspec.structs.replace(sound, completion_ids=memoryview(array.array("i", [71, 100])).cast("B"))
    )
    found = fetched_by(with_payload(batch(7, greedy=False), 1, damaged), Owning(0, 0, 0), Spool(_7_1=damaged))

    reason = "token id outside the vocabulary: completion id 100 at position 1, expected 0 .. 99"
    assert found.refused == [Refusal(Unit(7, 1), reason)]
    assert sorted(found.step.trajectories) == [0, 2]
    assert found.step.without([7]).infos == []


def test_bytes_that_are_no_trajectory_are_refused_too() -> None:
    found = fetched_by(with_payload(batch(7, greedy=False), 1, b"?"), Owning(0, 0, 0), Spool(_7_1=b"?"))
    assert [refusal.unit for refusal in found.refused] == [Unit(7, 1)]
    assert "is not a trajectory" in found.refused[0].reason


def with_image(image: Image) -> bytes:
    return msgspec.msgpack.encode(
        msgspec.structs.replace(trajectory(7, 1), images=[image], grids=[(1, 2, 2)], processor="p 1")
    )


def test_a_trajectory_of_a_picture_has_its_file_and_the_grid_of_the_sampler() -> None:
    whole = with_payload(batch(7, greedy=False), 1, with_image(RED))
    (image,) = fetch(whole, Owning(0, 0, 0), Spool(_7_1=with_image(RED))).trajectories[1].images
    assert image.processor == "p 1"
    assert (image.digest, image.content, image.grid) == (RED.digest, b"red", (1, 2, 2))


def test_a_picture_that_the_run_does_not_have_costs_its_group_alone() -> None:
    whole = with_payload(batch(7, greedy=False), 1, with_image(UNKNOWN))
    found = fetched_by(whole, Owning(0, 0, 0), Spool(_7_1=with_image(UNKNOWN)))
    assert found.refused == [Refusal(Unit(7, 1), "the picture is not among those of the run's prompts")]
    assert sorted(found.step.trajectories) == [0, 2]


@pytest.mark.parametrize(("lost", "reason"), [(b"", "no longer has"), (payload(7, 2), "is damaged")])
def test_a_payload_that_the_spool_damaged_or_lost_costs_its_group_and_is_held_against_the_spool(
    lost: bytes, reason: str
) -> None:
    found = fetched_by(batch(7, greedy=False), Owning(0, 0, 0), Spool(_7_1=lost))
    assert [(refusal.unit, refusal.at_fault) for refusal in found.refused] == [(Unit(7, 1), "spool")]
    assert reason in found.refused[0].reason
    assert sorted(found.step.trajectories) == [0, 2]


def test_a_payload_whose_spool_is_lost_costs_its_group_alone() -> None:
    whole = batch(7, 2)
    lost = whole.trajectories[1].ref
    fetched = fetched_by(whole, Owning(0, 0, 0, 0, 0, 0), Spool(lost=[(lost.segment, lost.offset)]))
    assert [(r.unit, r.reason) for r in fetched.refused] == [(Unit(7, 1), f"the spool {lost.spool} is lost")]
    assert sorted(fetched.step.trajectories) == [0, 2, 3, 4, 5]


def test_a_trajectory_that_was_refused_before_is_refused_again_and_not_fetched() -> None:
    whole = batch(7, 2)
    whole.trajectories[0] = msgspec.structs.replace(whole.trajectories[0], refused="the spool s is lost")
    spool = Spool()
    fetched = fetched_by(whole, Owning(0, 0, 0), spool)
    assert fetched.refused == [Refusal(Unit(7, 0), "the spool s is lost")]
    assert {group_id for group_id, _ in spool.asked} == {2}


def test_the_newest_version_that_may_have_written_a_token_is_the_one_that_the_step_trains() -> None:
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "schedule": {"steps_per_publish": 2}})
    limits = limits_of(config, TokenIds(100, (3, 7)), 5)
    assert limits == TrajectoryLimits(100, 128, 512, 2, max_turns=0, seats=1, never=(3, 7))


def test_a_summary_that_no_trajectory_can_have_costs_its_group_before_anything_is_computed_from_it() -> None:
    whole = batch(7, 2, greedy=False)
    huge = msgspec.structs.replace(whole.trajectories[1].summary, num_tokens=2**31)
    whole.trajectories[1] = msgspec.structs.replace(whole.trajectories[1], summary=huge)
    spool = Spool()
    for rank, units in ((0, [Unit(7, 1)]), (1, [])):
        learner = Owning(0, 0, 0)
        found = fetched_by(whole, learner, spool, rank=rank)
        assert [refusal.unit for refusal in found.refused] == units, "the first rank reports it"
        assert {info.outcome.group_id for info in learner.infos} == {2}
    assert all(group_id == 2 for group_id, _ in spool.asked)
