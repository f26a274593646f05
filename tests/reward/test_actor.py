"""The reward role with real workers, between a scripted broker and spool."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from asyncrl.config.sections.reward import Reward
from asyncrl.errors import LinkClosed, LinkError, LinkRefused, LinkReset
from asyncrl.messages.codec import Message
from asyncrl.messages.reward import Grade, GradeItem, Scored, ScoredItem
from asyncrl.messages.rollout import Failed, Offer
from asyncrl.messages.session import Reject, Stop
from asyncrl.messages.spool import Fetch, Fetched, SpoolRef, Spools, SpoolSet
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.messages.trajectory import (
    FROM_PROMPT,
    Image,
    Prompt,
    Span,
    Trajectory,
    TrajectoryLimits,
    TrajectorySummary,
    Turn,
    Unit,
)
from asyncrl.messages.words import Activity
from asyncrl.records.metrics import METRICS
from asyncrl.reward.actor import MAX_OPEN, RewardActor, input_of, most_open
from asyncrl.reward.workers.pool import WorkerPool
from asyncrl.wire.files import CHUNK_BYTES, verdict_bytes
from asyncrl.wire.handshake import Connection, identity
from tests.broker.driver import a_config
from tests.reward.scripted import ScriptedLink
from tests.wire.only_spool import over


def trajectory(unit: Unit, text: str) -> Trajectory:
    return Trajectory(
        unit=unit,
        prompt_ids=memoryview(bytes(8)),
        completion_ids=memoryview(bytes(12)),
        behavior_logprobs=memoryview(bytes(12)),
        spans=[Span(3, 0, 3)],
        finish_reason="stop",
        text=text,
    )


def with_image(unit: Unit) -> Trajectory:
    return replace(trajectory(unit, "#### 4"), images=[Image(bytes(32), 8, 8, 3)], grids=[(1, 2, 2)])


class World:
    """A broker and a spool, played by the test, around one actor."""

    def __init__(self, pool: WorkerPool, max_open: int) -> None:
        self.broker = ScriptedLink()
        self.spool = ScriptedLink()
        self.connection = Connection(identity("reward", "reward-0"), self.broker, over(lambda: self.spool, "spool-0"))
        self.actor = RewardActor(pool=pool, connection=self.connection, max_open=max_open)
        self._stored: dict[int, bytes] = {}

    def grade(self, index: int, payload: bytes, *, crc32: int | None = None) -> Grade:
        """Store a payload, and make a `Grade` for it."""
        self._stored[index] = payload
        ref = SpoolRef("spool-0", 0, index, len(payload), zlib.crc32(payload) if crc32 is None else crc32)
        return Grade(Prompt(text="2 + 2?", answer="4"), [GradeItem(Unit(0, index), 70 + index, ref)])

    def completion(self, index: int, text: str) -> Grade:
        """Store a trajectory, and make a `Grade` for it."""
        return self.grade(index, msgspec.msgpack.encode(trajectory(Unit(0, index), text)))

    async def serve_spool(self) -> None:
        """Answer every `Fetch`, for ever."""
        while True:
            request = await self.spool.hear()
            assert isinstance(request, Fetch)
            payloads = [memoryview(self._stored[ref.offset]) for ref in request.refs]
            self.spool.say(Fetched(request.request_id, payloads))


async def hear_scored(world: World, count: int) -> list[Message]:
    """Messages to the broker up to the one that completes this many scored items."""
    heard: list[Message] = []
    while len(scored_items(heard)) < count:
        heard.append(await world.broker.hear())
    return heard


def scored_items(heard: Iterable[Message]) -> list[ScoredItem]:
    """Items of all `Scored`, in the order of their units."""
    return sorted((item for scored in heard if isinstance(scored, Scored) for item in scored.items), key=by_unit)


def by_unit(item: ScoredItem) -> Unit:
    return item.unit


Play = Callable[[World], Awaitable[list[Message]]]


def played(play: Play, *, function: str = "gsm8k", group: str = "", max_open: int = 8) -> list[Message]:
    """Run an actor until the play is over and the actor has stopped."""

    async def run() -> list[Message]:
        async with WorkerPool(Reward(function=function, group=group, timeout_s=0.3)) as pool:
            world = World(pool, max_open)
            running = asyncio.create_task(world.actor.run())
            spool = asyncio.create_task(world.serve_spool())
            found = await play(world)
            world.broker.say(Stop("done"))
            await running
            spool.cancel()
            return found

    return asyncio.run(run())


def test_a_node_whose_place_is_taken_is_refused() -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(Reject("another process has joined as reward-0"))
        return []

    with pytest.raises(LinkRefused, match="another process has joined as reward-0"):
        played(play)


def test_each_grade_is_answered_with_its_reward() -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(world.completion(0, "#### 4"), world.completion(1, "#### 5"))
        return [await world.broker.hear(), *await hear_scored(world, 2)]

    offer, *scored = played(play)

    assert offer == Offer(8)
    assert scored_items(scored) == [
        ScoredItem(Unit(0, 0), 1.0, {"correct": 1.0}, 70, "4"),
        ScoredItem(Unit(0, 1), 0.0, {"correct": 0.0}, 71, "5"),
    ]


def test_its_stacks_are_an_answer_of_its_own_event_loop() -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(StacksWanted("reward-0"))
        return [await world.broker.hear(), await world.broker.hear()]

    _, told = played(play)

    assert isinstance(told, Stacks)
    assert told.node == "reward-0"
    assert "in serve_spool\n" in told.text


def test_each_trajectory_of_a_grade_is_judged_by_itself() -> None:
    async def play(world: World) -> list[Message]:
        good, bad = world.completion(0, "#### 4"), world.grade(1, b"")
        world.broker.say(Grade(good.prompt, [*good.items, *bad.items]))
        return [message for message in [await world.broker.hear() for _ in range(3)] if not isinstance(message, Offer)]

    failed, scored = sorted(played(play), key=lambda message: type(message).__name__)

    assert isinstance(failed, Failed)
    assert failed.unit == Unit(0, 1)
    assert scored == Scored([ScoredItem(Unit(0, 0), 1.0, {"correct": 1.0}, 70, "4")])


def test_credits_are_a_running_total_offered_again_by_quarters() -> None:
    async def play(world: World) -> list[Message]:
        found: list[Message] = []
        for index in range(8):  # one after the other: rewards that are ready together are sent together
            world.broker.say(world.completion(index, "#### 4"))
            found += await hear_scored(world, 1)
        found.append(await world.broker.hear())
        assert world.broker.unheard == 0
        return [message for message in found if isinstance(message, Offer)]

    assert played(play, max_open=8) == [Offer(8), Offer(10), Offer(12), Offer(14), Offer(16)]


def test_one_credit_is_offered_again_each_time() -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(world.completion(0, "#### 4"))
        return [await world.broker.hear() for _ in range(3)]

    scored = Scored([ScoredItem(Unit(0, 0), 1.0, {"correct": 1.0}, 70, "4")])
    assert played(play, max_open=1) == [Offer(1), scored, Offer(2)]


@pytest.mark.parametrize(
    ("payload", "crc32", "said"),
    [
        (b"", 0, "no longer has the payload at spool-0, segment 0, offset 0"),
        (b"\x91\x00", 1, "damaged: expected checksum"),
        (b"\x91\x00", None, "is not a trajectory"),
        (msgspec.msgpack.encode(trajectory(Unit(9, 9), "#### 4")), None, "payload of another unit: train 9/9"),
        (msgspec.msgpack.encode(with_image(Unit(0, 0))), None, "other pictures than the prompt's: 000000000000"),
    ],
    ids=["lost", "checksum", "bytes", "unit", "picture"],
)
def test_a_payload_that_cannot_be_read_is_a_failure_of_the_payload_and_never_a_reward(
    payload: bytes, crc32: int | None, said: str
) -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(world.grade(0, payload, crc32=crc32))
        assert await world.broker.hear() == Offer(8)
        return [await world.broker.hear()]

    (failed,) = played(play)

    assert isinstance(failed, Failed)
    assert (failed.unit, failed.lease_id, failed.stage, failed.retryable) == (Unit(0, 0), 70, "payload", True)
    assert said in failed.reason


def test_its_metrics_count_rewards_and_failures_by_stage() -> None:
    found: dict[tuple[str, ...], float] = {}

    async def play(world: World) -> list[Message]:
        world.broker.say(world.completion(0, "#### 4"), world.grade(1, b""))
        heard = [await world.broker.hear() for _ in range(3)]
        while world.actor.status() != "2 trajectories graded, 0 in hand":
            await asyncio.sleep(0)
        found.update(
            {(s.name.removeprefix("asyncrl_reward_"), *s.labels.values()): s.value for s in world.actor.metrics()}
        )
        return heard

    played(play)
    assert {name for name, *_ in found} == {
        name.removeprefix("asyncrl_reward_") for name, metric in METRICS.items() if metric.owner == "reward"
    }
    assert (found["graded_total",], found["workers",], found["trajectories_in_hand",]) == (2, 1, 0)
    assert (found["failures_total", "payload"], found["failures_total", "reward"]) == (1, 0)


def test_a_payload_whose_spool_is_away_is_no_failure_of_its_trajectory() -> None:
    async def play(world: World) -> list[Message]:
        world.broker.say(Spools(SpoolSet()), world.completion(0, "#### 4"))
        return [await world.broker.hear() for _ in range(2)]

    (failed,) = [message for message in played(play) if isinstance(message, Failed)]
    assert (failed.stage, failed.is_unreachable, failed.reason) == ("payload", True, "the spool spool-0 is away")


def test_a_payload_is_compared_with_the_summary_and_the_limits_of_its_grade_before_it_is_judged() -> None:
    async def play(world: World) -> list[Message]:
        sound = world.completion(0, "#### 4")
        summary = TrajectorySummary(3, 2, 3, 3, 1, "stop")
        items = [replace(sound.items[0], summary=summary)]
        world.broker.say(replace(sound, items=items, limits=TrajectoryLimits(100, 3, 2, 3)))
        await hear_scored(world, 1)
        world.broker.say(replace(sound, items=[replace(sound.items[0], summary=replace(summary, num_spans=2))]))
        world.broker.say(replace(sound, limits=TrajectoryLimits(newest_version=2)))
        heard = [await world.broker.hear() for _ in range(3)]
        failures: list[Any] = [one for one in heard if isinstance(one, Failed)]
        failures.sort(key=lambda failed: failed.reason)
        return failures

    version, summary = played(play)

    assert isinstance(version, Failed)
    assert version.reason == "impossible policy version: 3 in tokens 0 .. 3, expected 0 .. 2"
    assert isinstance(summary, Failed)
    assert summary.reason.startswith("summary that differs from the payload: num_spans 2 in the summary, 1 in the")


def test_a_function_that_hangs_is_a_failure_and_the_next_grade_is_judged(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\ndef score(sample):\n    time.sleep(3600 * (sample.completion == 'hang'))\n    return 1\n"
    )

    async def play(world: World) -> list[Message]:
        world.broker.say(world.completion(0, "hang"), world.completion(1, "fine"))
        return [await world.broker.hear() for _ in range(3)][1:]

    failed, scored = played(play, function=f"{tmp_path}/slow.py:score")

    assert isinstance(failed, Failed)
    assert failed.retryable
    assert "hung" in failed.reason
    assert scored == Scored([ScoredItem(Unit(0, 1), 1.0, {"correct": 1.0}, 71)])


def test_verdicts_with_many_metrics_are_sent_in_messages_of_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(
        "def score(sample):\n    return {'score': 1.0} | {f'rubric/{name}': 0.5 for name in range(60)}\n"
    )
    num = 200

    async def play(world: World) -> list[Message]:
        items = [item for index in range(num) for item in world.completion(index, "x").items]
        world.broker.say(Grade(Prompt(text="2 + 2?", answer="4"), items))
        return await hear_scored(world, num)

    scored = played(play, function=f"{tmp_path}/many.py:score", max_open=num)
    assert [len(item.metrics) for item in scored_items(scored)] == [61] * num
    assert (
        max(sum(map(verdict_bytes, message.items)) for message in scored if isinstance(message, Scored)) <= CHUNK_BYTES
    )


def test_stop_drops_open_items(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import asyncio\nasync def score(sample):\n    await asyncio.sleep(3600)\n")

    async def play(world: World) -> list[Message]:
        world.broker.say(world.completion(0, "x"))
        return [await world.broker.hear()]

    assert played(play, function=f"{tmp_path}/slow.py:score") == [Offer(8)]


def end_of(broker: LinkError) -> None:
    """Run an actor whose link to the broker breaks."""

    async def run() -> None:
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            world = World(pool, max_open=1)
            world.broker.say(broker)
            await world.actor.run()

    asyncio.run(run())


def test_a_closed_link_to_the_broker_ends_the_run_quietly() -> None:
    end_of(broker=LinkClosed("closed"))


def test_a_reset_link_is_raised_as_it_is() -> None:
    with pytest.raises(LinkReset, match="restarted"):
        end_of(broker=LinkReset("restarted"))


def test_cancelling_ends_the_run() -> None:
    async def cancel() -> bool:
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            world = World(pool, max_open=1)
            running = asyncio.create_task(world.actor.run())
            await world.broker.hear()
            running.cancel()
            await asyncio.wait([running])
            return running.cancelled()

    assert asyncio.run(cancel())


def test_busy_time_is_the_time_with_open_items() -> None:
    now_s = 0.0

    async def run() -> dict[Activity, float]:
        nonlocal now_s
        async with WorkerPool(Reward(function="gsm8k")) as pool:
            world = World(pool, max_open=1)
            actor = RewardActor(pool=pool, connection=world.connection, max_open=1, clock=lambda: now_s)
            running = asyncio.create_task(actor.run())
            await world.broker.hear()
            now_s = 2.0
            world.broker.say(world.completion(0, "#### 4"))
            request = await world.spool.hear()
            now_s = 5.0
            assert isinstance(request, Fetch)
            world.spool.say(Fetched(request.request_id, [memoryview(b"")]))
            await world.broker.hear()
            now_s = 6.0
            beat = actor.heartbeat(0.0)
            found = beat.seconds
            await world.broker.aclose()
            await running
            return found

    assert asyncio.run(run()) == {"grading": 3.0, "idle": 3.0}


def test_a_verifier_sees_prompt_completion_and_length() -> None:
    chat = [{"role": "user", "content": "2 + 2?"}]
    stored = trajectory(Unit(0, 0), "four")

    inputs = input_of(Prompt(chat=chat, answer="4", data_source="sums", extra={"level": 1}), stored)

    assert inputs.prompt == chat
    assert (inputs.completion, inputs.answer, inputs.data_source, inputs.extra) == ("four", "4", "sums", {"level": 1})
    assert (inputs.finish_reason, inputs.num_tokens) == ("stop", 3)
    assert input_of(Prompt(text="2 + 2?"), stored).prompt == "2 + 2?"


def test_a_verifier_sees_the_turns_of_an_episode_and_what_its_environment_says() -> None:
    turns = [Turn(FROM_PROMPT, 0, 1, text="look"), Turn(0, 2, 2, reward=0.5, observation="left 2", text="four")]
    stored = replace(trajectory(Unit(0, 0), "four"), turns=turns, scores={"moves": 2.0})

    inputs = input_of(Prompt(text="2 + 2?"), stored)

    assert [(turn.observation, turn.text) for turn in inputs.turns] == [("", "look"), ("left 2", "four")]
    assert (inputs.episode_reward, inputs.scores) == (0.5, {"moves": 2.0})


# ── groups that are judged together ───────────────────────────────────────────────────────────

TOURNAMENT = """
def rank(members):
    if any(member.completion == "raise" for member in members):
        raise RuntimeError("no idea")
    return [{"score": sum(member.reward > other.reward for other in members)} for member in members]
"""


def played_together(tmp_path: Path, *texts: str, missing: int | None = None) -> list[Message]:
    """Messages to the broker about one group, the first `Offer` among them; the payload ``missing`` is damaged."""
    path = tmp_path / "judge.py"
    path.write_text(TOURNAMENT)

    async def play(world: World) -> list[Message]:
        items = [
            (world.grade(index, b"no payload") if index == missing else world.completion(index, text)).items[0]
            for index, text in enumerate(texts)
        ]
        world.broker.say(Grade(Prompt(text="2 + 2?", answer="4"), items, together=True))
        return [await world.broker.hear() for _ in range(3)]

    return played(play, group=f"{path}:rank", max_open=len(texts))


def test_a_group_is_answered_in_one_message(tmp_path: Path) -> None:
    offer, scored, again = played_together(tmp_path, "#### 4", "#### 5", "#### 4")
    assert scored == Scored(
        [
            ScoredItem(Unit(0, 0), 1.0, {"correct": 1.0, "pointwise": 1.0}, 70, "4"),
            ScoredItem(Unit(0, 1), 0.0, {"correct": 0.0, "pointwise": 0.0}, 71, "5"),
            ScoredItem(Unit(0, 2), 1.0, {"correct": 1.0, "pointwise": 1.0}, 72, "4"),
        ]
    )
    assert (offer, again) == (Offer(3), Offer(6))


def test_a_group_without_a_verdict_is_one_failure_that_blames_no_trajectory(tmp_path: Path) -> None:
    _, failed, again = played_together(tmp_path, "#### 4", "raise")
    assert isinstance(failed, Failed)
    assert (failed.unit, failed.lease_id, failed.stage, failed.is_of_group) == (Unit(0, 0), 70, "reward", True)
    assert "the function raised RuntimeError: no idea" in failed.reason
    assert again == Offer(4), "all of its trajectories are settled"


def test_a_damaged_member_is_the_failure_of_its_group_and_its_own(tmp_path: Path) -> None:
    _, failed, again = played_together(tmp_path, "#### 4", "#### 5", missing=1)
    assert isinstance(failed, Failed)
    assert (failed.unit, failed.lease_id, failed.stage, failed.is_of_group) == (Unit(0, 1), 71, "payload", False)
    assert again == Offer(4)


def test_a_node_has_room_for_two_groups() -> None:
    big: dict[str, object] = {"group_size": 400, "groups_per_step": 1}
    assert most_open(a_config(schedule=big)) == MAX_OPEN
    assert most_open(a_config(schedule=big, reward={"group": "judge.py:rank"})) == 800
