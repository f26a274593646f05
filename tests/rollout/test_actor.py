"""One rollout actor between a scripted broker, a scripted spool and a scripted engine."""

import array
import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from asyncrl.engine import Completion
from asyncrl.episodes.record import SampledTrajectory
from asyncrl.errors import EngineDied, EngineError, LinkRefused, LinkReset, TransferError
from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Cancelled, Failed, Hold, Lease, Leased, Offer, Release, ResumePoint, Settled
from asyncrl.messages.session import Drain, Draining, Held, Ready, Reject, Stop, StoreValue
from asyncrl.messages.spool import Fetch, Fetched, Put, SpoolAddress, SpoolRef, Spools, SpoolSet
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.messages.trajectory import Prompt, Sampling, Span, Trajectory, Unit
from asyncrl.messages.weights import Abort, Live, Member, Transfer, TransferFailed, Transferred
from asyncrl.records.metrics import METRICS
from asyncrl.rollout import actor as rollout
from asyncrl.rollout import results
from asyncrl.rollout.actor import RolloutActor, RolloutOptions
from asyncrl.rollout.generations import Generations
from asyncrl.rollout.results import to_put_item
from asyncrl.testing import FakeEngine
from asyncrl.wire import spools
from asyncrl.wire.files import CHUNK_BYTES
from asyncrl.wire.handshake import Connection, Identity
from asyncrl.wire.memory import MemoryHub
from tests.wire.only_spool import only

M = TypeVar("M", bound=Message)
PEER = "r-0.1"
SLOTS, GROUP_SIZE = 4, 2
CAPACITY = SLOTS + 2 * GROUP_SIZE


class FakeReceiver:
    """Transfers end when ``may_arrive`` is set."""

    def __init__(self) -> None:
        self.may_arrive = asyncio.Event()
        self.may_arrive.set()
        self.error: TransferError | None = None
        self.delivered: list[StoreValue] = []
        self.aborted: list[Abort] = []

    async def transfer(self, transfer: Transfer) -> float:
        await self.may_arrive.wait()
        if self.error:
            raise self.error
        return 0.25

    def weights(self) -> dict[str, Any]:
        if self.error:
            raise self.error
        return {"w": "tensor"}

    def deliver(self, value: StoreValue) -> None:
        self.delivered.append(value)

    def abort(self, abort: Abort) -> None:
        self.aborted.append(abort)


class Stage:
    """An actor, and the other ends of its links."""

    def __init__(self, engine: FakeEngine | None = None, *, options: dict[str, Any] | None = None, **kw: Any) -> None:
        self.broker, self.spool = MemoryHub(), MemoryHub()
        self.engine, self.receiver = engine or FakeEngine(), FakeReceiver()
        connection = Connection(Identity("rollout", "r-0", "1"), self.broker.connect(PEER), only(self.spool, PEER))
        common: dict[str, Any] = {"slots": SLOTS, "group_size": GROUP_SIZE, "layout_hash": "layout"}
        self.actor = RolloutActor(
            self.engine, connection, RolloutOptions(**common | (options or {})), **{"receiver": self.receiver} | kw
        )

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.broker.send(PEER, message)

    async def hear(self, kind: type[M]) -> M:
        """The next message of this kind to the broker; others are skipped."""
        while not isinstance(message := (await self.broker.receive())[1], kind):
            pass
        return message

    async def asked(self, kind: type[M]) -> M:
        """The next message to the spool, which must be of this kind."""
        message = (await self.spool.receive())[1]
        assert isinstance(message, kind)
        return message

    async def put(self) -> Put:
        return await self.asked(Put)


class Ticks:
    """A `sleep` whose sleeps of one length end in `advance`; all others take their real time."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._sleepers: list[asyncio.Future[None]] = []

    async def sleep(self, delay_s: float) -> None:
        if delay_s != self._every_s:
            return await asyncio.sleep(delay_s)
        self._sleepers.append(asyncio.get_running_loop().create_future())
        return await self._sleepers[-1]

    async def advance(self) -> None:
        """End the sleep, and return once the next one begins."""
        while not self._sleepers:
            await asyncio.sleep(0)
        self._sleepers.pop().set_result(None)
        while not self._sleepers:
            await asyncio.sleep(0)


def scene(play: Callable[[Stage], Awaitable[None]], **kw: Any) -> None:
    """Run the actor beside ``play``, then stop it; no task may be left."""

    async def main() -> None:
        stage = Stage(**kw)
        running = asyncio.create_task(stage.actor.run())
        playing = asyncio.ensure_future(play(stage))
        await asyncio.wait([running, playing], return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            running.result()
            raise AssertionError("the actor ended too early")
        playing.result()
        stage.say(Stop("the run is complete"))
        await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def turns(count: int = 10) -> None:
    """Let every task run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def lease(lease_id: int = 1, group_id: int = 0, indices: tuple[int, ...] = (0, 1), text: str = "how many") -> Lease:
    return Lease(
        lease_id=lease_id,
        group_id=group_id,
        indices=list(indices),
        split="train",
        prompt=Prompt(text=text),
        sampling=Sampling(max_tokens=100_000),
        seed=100,
        max_prompt_tokens=4,
        expires_in_s=60.0,
    )


def transfer(policy_version: int, transfer_group: int = 1) -> Transfer:
    members = [Member("trainer-0", "1"), Member("r-0", "1")]
    return Transfer(transfer_group, policy_version, members, keep=True, deadline_s=5.0)


# ── from a lease to a settled result ────────────────────────────────────────────────────────


def test_it_says_ready_and_offers_what_it_can_take():
    async def play(stage):
        assert (await stage.hear(Ready)).layout_hash == "layout"
        assert (await stage.hear(Offer)).limit == CAPACITY

    scene(play)


def test_it_says_by_which_way_it_gets_weights():
    async def play(stage):
        assert await stage.hear(Ready) == Ready("layout", 1, 0, "spool")

    scene(play, options={"weights": "spool"})


def test_a_lease_becomes_one_put_for_each_index():
    async def play(stage):
        stage.say(lease(lease_id=9))
        await stage.engine.started(2)
        stage.engine.write(3)
        stage.engine.finish(finish_reason="length")
        put = await stage.put()
        assert (put.node, put.incarnation) == ("r-0", "1")
        (item,) = put.items
        assert (item.unit, item.lease_id) == (Unit(0, 0), 9)
        summary = item.summary
        assert (summary.num_tokens, summary.prompt_tokens, summary.finish_reason) == (3, 2, "length")
        trajectory = msgspec.msgpack.decode(item.payload, type=Trajectory)
        assert array.array("i", bytes(trajectory.prompt_ids)).tolist() == [3, 4], "how many"
        assert array.array("i", bytes(trajectory.completion_ids)).tolist() == [0, 1, 2]
        assert trajectory.spans == [Span(0, 0, 3)]
        assert (trajectory.text, trajectory.node) == ("0 1 2", "r-0")

    scene(play)


def test_index_i_samples_with_the_seed_plus_i():
    async def play(stage):
        stage.say(lease(indices=(1, 3)))
        await stage.engine.started(2)
        assert [request.seed for request in stage.engine.requests] == [101, 103]

    scene(play)


def test_a_lease_without_a_seed_becomes_requests_without_one():
    async def play(stage):
        stage.say(replace(lease(indices=(1, 3)), seed=None))
        await stage.engine.started(2)
        assert [request.seed for request in stage.engine.requests] == [None, None]

    scene(play)


def test_greedy_indices_of_a_lease_are_decoded_greedily():
    async def play(stage):
        stage.say(structs.replace(lease(indices=(0, 1)), greedy=[1]))
        await stage.engine.started(2)
        assert [request.sampling.temperature for request in stage.engine.requests] == [1.0, 0.0]

    scene(play)


def test_settled_gives_the_credit_back_once():
    async def play(stage):
        stage.say(lease())
        await stage.engine.started(2)
        stage.engine.write(1)
        stage.engine.finish()
        await stage.put()
        assert (await stage.hear(Offer)).limit == CAPACITY
        for _ in range(2):
            stage.say(Settled([Leased(Unit(0, 0), 1)]))
            assert (await stage.hear(Offer)).limit == CAPACITY + 1

    scene(play)


def test_a_late_settled_does_not_settle_a_later_lease():
    async def play(stage):
        stage.say(lease(lease_id=1, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        await stage.put()
        stage.say(lease(lease_id=2, indices=(0,)))
        await stage.engine.started(1)
        stage.say(Settled([Leased(Unit(0, 0), 1)]))
        await turns()
        assert len(stage.engine.running) == 1, "the result of the second lease is still to come"

    scene(play)


def test_a_result_is_put_again_until_it_is_settled(monkeypatch):
    monkeypatch.setattr(rollout, "RESEND_S", 0.0)  # no waiting between looks: `clock` decides what is overdue
    now_s = 0.0

    async def play(stage):
        nonlocal now_s
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        first = await stage.put()
        now_s += 60
        assert (await stage.put()).items == first.items
        now_s += 60
        assert (await stage.put()).items == first.items
        stage.say(Settled([Leased(Unit(0, 0), 1)]))
        await turns()
        now_s += 60
        await turns()
        assert not stage.spool._inbox._items

    scene(play, clock=lambda: now_s)


LONG = 66_000
"""Tokens of a trajectory of about half a megabyte."""


def num_bytes(put: Put) -> int:
    return sum(item.payload.nbytes for item in put.items)


async def put_all(stage: Stage, num: int) -> list[Put]:
    """Puts until this many trajectories came."""
    puts: list[Put] = []
    while sum(len(put.items) for put in puts) < num:
        puts.append(await stage.put())
    return puts


def test_many_long_trajectories_are_put_in_messages_of_bounded_size_again_and_again(monkeypatch):
    monkeypatch.setattr(rollout, "RESEND_S", 0.0)
    now_s, num = 0.0, 40

    async def play(stage):
        nonlocal now_s
        stage.say(lease(indices=tuple(range(num))))
        first = await put_all(stage, num)
        now_s += 60
        again = await put_all(stage, num)
        for puts in (first, again):
            assert sorted(item.unit.index for put in puts for item in put.items) == list(range(num))
            assert len(puts) > 1
            assert max(map(num_bytes, puts)) <= CHUNK_BYTES

    scene(play, engine=FakeEngine(num_tokens=LONG), clock=lambda: now_s)


def test_progress_of_many_long_trajectories_is_put_in_messages_of_bounded_size():
    ticks, num = Ticks(7.0), 40

    async def play(stage):
        stage.say(lease(indices=tuple(range(num))))
        await stage.engine.started(num)
        stage.engine.write(LONG)
        await ticks.advance()
        puts = await put_all(stage, num)
        assert {item.summary.finish_reason for put in puts for item in put.items} == {"unfinished"}
        assert max(map(num_bytes, puts)) <= CHUNK_BYTES

    scene(play, options={"progress_every_s": 7.0}, sleep=ticks.sleep)


def test_a_trajectory_too_large_to_be_stored_fails_alone(monkeypatch):
    monkeypatch.setattr(results, "MAX_PAYLOAD_BYTES", 1000)

    async def play(stage):
        stage.say(lease(indices=(0, 1)))
        await stage.engine.started(2)
        stage.engine.running[0].write(200, 0)
        stage.engine.running[1].write(20, 0)
        stage.engine.finish()
        stage.engine.finish()
        assert [item.unit.index for item in (await stage.put()).items] == [1]
        failed = await stage.hear(Failed)
        assert (failed.unit.index, failed.retryable) == (0, False)
        assert "at most 1000 can be stored; lower sampling.max_tokens" in failed.reason

    scene(play)


def test_a_unit_leased_again_after_its_lease_expired_is_sampled_anew():
    async def play(stage):
        stage.say(lease(lease_id=1, indices=(0,)))
        await stage.engine.started(1)
        assert (await stage.hear(Offer)).limit == CAPACITY
        stage.say(lease(lease_id=2, indices=(0,)))
        while len(stage.engine.requests) < 2:
            await turns()
        assert len(stage.engine.running) == 1, "the first was cancelled"
        stage.engine.write(1)
        stage.engine.finish()
        assert (await stage.put()).items[0].lease_id == 2
        stage.say(Settled([Leased(Unit(0, 0), 2)]))
        assert (await stage.hear(Offer)).limit == CAPACITY + 2, "the broker counted a credit for each lease"

    scene(play)


# ── failures ────────────────────────────────────────────────────────────────────────────────


def test_a_failure_under_an_earlier_lease_does_not_end_a_later_one():
    async def play(stage):
        stage.say(lease(lease_id=5, indices=(1,)))
        await stage.engine.started(1)
        stage.engine.fail(EngineError("out of memory"))
        stage.say(lease(lease_id=6, indices=(1,)))
        assert (await stage.hear(Failed)).lease_id == 5
        await stage.engine.started(1)
        stage.engine.write(2)
        stage.engine.finish()
        assert [item.lease_id for item in (await stage.put()).items] == [6]

    scene(play)


@pytest.mark.parametrize("retryable", [True, False])
def test_an_engine_error_becomes_failed(retryable):
    async def play(stage):
        stage.say(lease(lease_id=5, indices=(1,)))
        await stage.engine.started(1)
        stage.engine.fail(EngineError("out of memory", retryable=retryable))
        failed = await stage.hear(Failed)
        assert failed == Failed(Unit(0, 1), 5, "rollout", "out of memory", retryable)
        assert (await stage.hear(Offer)).limit == CAPACITY + 1
        assert not stage.spool._inbox._items

    scene(play)


def test_a_prompt_that_is_too_long_is_refused_with_a_sentence():
    async def play(stage):
        stage.say(lease(text="one two three four five", indices=(0,)))
        failed = await stage.hear(Failed)
        assert failed.reason == (
            "the prompt has 5 tokens, more than data.max_prompt_tokens = 4: raise it, set data.truncation, or remove "
            "the row"
        )
        assert (failed.retryable, failed.is_overlong) == (False, True)
        assert not stage.engine.requests

    scene(play)


def test_a_prompt_that_is_too_long_is_cut_where_the_lease_says_so():
    async def play(stage):
        cut = msgspec.structs.replace(lease(text="one three fiver sixers ?", indices=(0, 1)), truncation="left")
        stage.say(cut)
        await stage.engine.started(2)
        assert [request.prompt_ids for request in stage.engine.requests] == [[5, 5, 6, 1]] * 2

    scene(play)


def test_an_engine_that_returns_nothing_has_failed():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.finish()
        assert "0 completion ids" in (await stage.hear(Failed)).reason

    scene(play)


def test_a_failed_unit_may_be_leased_again():
    async def play(stage):
        stage.say(lease(lease_id=1, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.fail(EngineError("once"))
        await stage.hear(Failed)
        stage.say(lease(lease_id=2, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        assert (await stage.put()).items[0].lease_id == 2

    scene(play)


def test_a_cancelled_lease_frees_its_places():
    async def play(stage):
        stage.say(lease(lease_id=1), lease(lease_id=2, group_id=1))
        await stage.engine.started(4)
        assert (await stage.hear(Offer)).limit == CAPACITY
        stage.say(Cancelled([1]))
        assert (await stage.hear(Offer)).limit == CAPACITY + 2
        while len(stage.engine.running) > 2:
            await turns()
        stage.engine.write(1)
        stage.engine.finish()
        assert (await stage.put()).items[0].unit == Unit(1, 0)

    scene(play)


# ── new weights ─────────────────────────────────────────────────────────────────────────────


def test_a_transfer_is_received_then_swapped_in_while_the_engine_is_paused():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(2)
        stage.say(transfer(policy_version=3, transfer_group=7))
        assert await stage.hear(Transferred) == Transferred(7, 3, 0.25, 0)
        live = await stage.hear(Live)
        assert (live.policy_version, live.pause_s, live.receive_s) == (3, 3.0, 0.25), "a second for each call"
        assert stage.engine.calls == ["pause", "swap 3", "resume"]
        assert stage.engine.weights == {"w": "tensor"}
        stage.engine.write(2)
        stage.engine.finish()
        summary = (await stage.put()).items[0].summary
        assert (summary.oldest_version, summary.newest_version, summary.num_spans) == (0, 3, 2)

    engine = FakeEngine()
    scene(play, engine=engine, clock=lambda: float(len(engine.calls)))


def test_its_metrics_count_tokens_swaps_and_failures():
    async def play(stage):
        stage.say(lease(indices=(0, 1)))
        await stage.engine.started(2)
        before = samples(stage.actor)
        assert (before["requests",], before["trajectories_in_hand",], before["policy_version",]) == (2, 2, -1)
        stage.engine.write(3)
        stage.engine.finish()
        stage.engine.fail(EngineError("out of memory"))
        await stage.hear(Failed)
        stage.say(transfer(policy_version=3))
        await stage.hear(Live)
        after = samples(stage.actor)
        assert (after["tokens_total",], after["policy_version",], after["requests",]) == (3, 3, 0)
        assert (after["failures_total", "rollout"], after["failures_total", "environment"]) == (1, 0)
        swaps = after["swaps_total",], after["pause_seconds_total",], after["receive_seconds_total",]
        assert (swaps[0], swaps[1] > 0, swaps[2]) == (1, True, 0.25)
        owned = {name for name, metric in METRICS.items() if metric.owner == "rollout" and "container" not in name}
        assert {f"asyncrl_rollout_{name}" for name, *_ in after} == owned

    ticks = iter(range(1000))
    scene(play, clock=lambda: float(next(ticks)))


def samples(actor: RolloutActor) -> dict[tuple[str, ...], float]:
    """Values of its metrics, by the end of their names and their labels."""
    return {(s.name.removeprefix("asyncrl_rollout_"), *s.labels.values()): s.value for s in actor.metrics()}


def test_decoding_goes_on_while_weights_arrive():
    async def play(stage):
        stage.receiver.may_arrive.clear()
        stage.say(lease(indices=(0,)), transfer(1))
        await stage.engine.started(1)
        await turns()
        assert stage.engine.calls == []
        stage.engine.write(1)
        stage.receiver.may_arrive.set()
        await stage.hear(Live)

    scene(play)


def test_a_failed_transfer_is_reported_and_the_old_weights_stay():
    async def play(stage):
        stage.receiver.error = TransferError("trainer-0 is gone")
        stage.say(transfer(policy_version=1, transfer_group=4))
        assert await stage.hear(TransferFailed) == TransferFailed(4, 1, "trainer-0 is gone")
        assert stage.engine.calls == []
        stage.receiver.error = None
        stage.say(transfer(policy_version=1, transfer_group=5))
        assert (await stage.hear(Live)).policy_version == 1

    scene(play)


def test_a_held_rollout_swaps_only_when_released():
    async def play(stage):
        stage.say(Hold(0), transfer(1))
        await stage.hear(Transferred)
        await turns()
        assert stage.engine.calls == []
        stage.say(Release())
        assert (await stage.hear(Live)).policy_version == 1
        stage.say(Release())
        await turns()
        assert stage.engine.calls == ["pause", "swap 1", "resume"], "nothing new waits"

    scene(play)


def test_a_transfer_that_fails_discards_the_staged_version():
    """The staging buffers are partly overwritten: they hold neither the old version nor the new one."""

    async def play(stage):
        stage.say(Hold(0), transfer(1))
        await stage.hear(Transferred)
        stage.receiver.error = TransferError("trainer-0 is gone")
        stage.say(transfer(2))
        await stage.hear(TransferFailed)
        stage.say(Release())
        await turns()
        assert stage.engine.calls == []

    scene(play)


def test_without_partial_rollout_a_swap_waits_for_running_completions():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.say(transfer(1))
        await stage.hear(Transferred)
        stage.say(lease(lease_id=2, group_id=1, indices=(0,)))
        await turns()
        assert stage.engine.calls == []
        assert len(stage.engine.requests) == 1, "nothing new begins meanwhile"
        stage.engine.write(2)
        stage.engine.finish()
        before = await stage.put()
        await stage.hear(Live)
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        spans = [item.summary for put in (before, await stage.put()) for item in put.items]
        assert [(summary.oldest_version, summary.num_spans) for summary in spans] == [(0, 1), (1, 1)]

    scene(play, options={"partial_rollout": False})


def test_in_place_weights_arrive_while_the_engine_is_paused():
    async def play(stage):
        stage.receiver.may_arrive.clear()
        stage.say(transfer(1))
        await turns()
        assert stage.engine.calls == ["pause"]
        stage.receiver.may_arrive.set()
        await stage.hear(Transferred)
        assert (await stage.hear(Live)).policy_version == 1
        assert stage.engine.calls == ["pause", "swap 1", "resume"]

    scene(play, options={"is_in_place": True})


def test_a_failed_in_place_transfer_ends_the_rollout_and_leaves_the_engine_paused():
    stages = []

    async def play(stage):
        stages.append(stage)
        stage.receiver.error = TransferError("the trainer was lost")
        stage.say(transfer(1))
        await asyncio.Event().wait()

    with pytest.raises(EngineDied, match="weights were replaced: the trainer was lost"):
        scene(play, options={"is_in_place": True})
    assert stages[0].engine.calls == ["pause"]


def test_an_in_place_transfer_cut_off_by_the_end_of_a_session_ends_the_next_one():
    async def main():
        engine = FakeEngine()
        generations = Generations(engine, "r-0")
        first = Stage(engine, options={"is_in_place": True}, generations=generations)
        first.receiver.may_arrive.clear()
        running = asyncio.create_task(first.actor.run())
        first.say(transfer(1))
        await turns()
        first.say(Stop("as if"))
        await running
        with pytest.raises(EngineDied, match="weights were replaced: the session ended"):
            await Stage(engine, options={"is_in_place": True}, generations=generations).actor.run()

    asyncio.run(main())


def test_an_engine_that_refuses_the_weights_ends_the_rollout_unpaused():
    async def play(stage):
        async def refuse(policy_version, weights):
            raise EngineError("no such parameter", retryable=False)

        stage.engine.swap = refuse
        stage.say(transfer(1))
        try:
            await stage.hear(Live)
        finally:
            assert stage.engine.calls == ["pause", "resume"]

    with pytest.raises(EngineError, match="no such parameter"):
        scene(play)


def test_a_version_that_comes_again_is_swapped_in_again():
    """A trainer that died before its version was live makes it again; a new broker may go back by one version."""

    async def play(stage):
        for version in (3, 3, 2):
            stage.say(transfer(version))
            assert (await stage.hear(Live)).policy_version == version
        assert [call for call in stage.engine.calls if call.startswith("swap")] == ["swap 3", "swap 3", "swap 2"]
        stage.say(Release())
        await turns()
        assert stage.engine.calls[-1] == "resume"
        assert len(stage.engine.calls) == 9, "one swap per version"

    scene(play)


def test_without_a_receiver_a_transfer_is_refused():
    async def play(stage):
        stage.say(transfer(1), StoreValue("1", "key", b""))
        assert "does not take weights" in (await stage.hear(TransferFailed)).reason

    scene(play, receiver=None)


def test_an_abort_reaches_the_receiver_while_it_receives():
    async def play(stage):
        stage.receiver.may_arrive.clear()
        stage.say(transfer(1), Abort(1, "r-1 was silent"))
        await turns()
        assert stage.receiver.aborted == [Abort(1, "r-1 was silent")]
        stage.receiver.may_arrive.set()

    scene(play)


def test_answers_of_the_rendezvous_reach_the_receiver():
    async def play(stage):
        stage.say(StoreValue("1", "key", b"value"))
        await turns()
        assert stage.receiver.delivered == [StoreValue("1", "key", b"value")]

    scene(play)


# ── resuming ────────────────────────────────────────────────────────────────────────────────

REF = SpoolRef("spool", 0, 64, 100, 7)


def stored_prefix(index: int = 0, num_tokens: int = 3) -> memoryview:
    completion = Completion(
        completion_ids=list(range(num_tokens)),
        behavior_logprobs=[-2.0] * num_tokens,
        spans=[Span(4, 0, num_tokens)],
        finish_reason="unfinished",
        generate_s=1.5,
    )
    return to_put_item(
        lease(), Unit(0, index), SampledTrajectory(prompt_ids=[3, 4], completion=completion, text=""), node="r-9"
    ).payload


def resuming_lease(payload: memoryview) -> Lease:
    ref = replace(REF, length=len(payload), crc32=zlib.crc32(payload))
    return replace(lease(lease_id=5), resume_from=[ResumePoint(1, ref)])


def test_a_lease_resumes_from_a_stored_completion():
    async def play(stage):
        payload = stored_prefix(index=1)
        stage.say(resuming_lease(payload))
        fetch = await stage.asked(Fetch)
        stage.spool.send(PEER, Fetched(fetch.request_id, [payload]))
        await stage.engine.started(2)
        fresh, resumed = sorted(stage.engine.requests, key=lambda request: request.seed)
        assert fresh.resume_from is None
        assert resumed.seed == 101, "the draws are those of the uninterrupted completion"
        assert resumed.resume_from.completion_ids == [0, 1, 2]
        assert (resumed.resume_from.behavior_logprobs, resumed.resume_from.spans) == ([-2.0] * 3, [Span(4, 0, 3)])
        stage.engine.write(2)
        stage.engine.finish(index=stage.engine.index_of(resumed))
        (item,) = (await stage.put()).items
        assert (item.unit, item.lease_id, item.summary.num_tokens) == (Unit(0, 1), 5, 5)
        assert (item.summary.oldest_version, item.summary.newest_version) == (0, 4)
        assert stage.actor.heartbeat(0.0).tokens == 2, "tokens of the prefix do not count"

    scene(play)


def test_an_unreadable_prefix_is_a_retryable_failure():
    async def play(stage):
        stage.say(resuming_lease(stored_prefix()))
        fetch = await stage.asked(Fetch)
        stage.spool.send(PEER, Fetched(fetch.request_id, [memoryview(b"")]))
        failed = await stage.hear(Failed)
        assert (failed.unit, failed.lease_id, failed.retryable) == (Unit(0, 1), 5, True)
        assert "the unfinished completion to resume from: the spool no longer has" in failed.reason

    scene(play)


def test_a_completion_that_does_not_extend_its_prefix_is_a_failure():
    async def play(stage):
        payload = stored_prefix(index=1, num_tokens=3)
        stage.say(resuming_lease(payload))
        fetch = await stage.asked(Fetch)
        stage.spool.send(PEER, Fetched(fetch.request_id, [payload]))
        await stage.engine.started(2)
        generation = next(g for g in stage.engine.running if g.request.resume_from)
        generation.done.set_result(replace(written_anew(), completion_ids=[9, 9, 9, 9]))
        failed = await stage.hear(Failed)
        assert failed.reason == "the engine's completion does not begin with the 3 tokens it had to resume from"
        assert failed.retryable

    scene(play)


def written_anew() -> Completion:
    return Completion(
        completion_ids=[0] * 4,
        behavior_logprobs=[-1.0] * 4,
        spans=[Span(0, 0, 4)],
        finish_reason="stop",
        generate_s=1.0,
    )


# ── progress ────────────────────────────────────────────────────────────────────────────────


def test_progress_is_put_as_often_as_asked_and_only_where_there_is_some():
    ticks = Ticks(every_s=30.0)

    async def play(stage):
        stage.say(lease())
        await stage.engine.started(2)
        await ticks.advance()
        stage.engine.write(2)
        await ticks.advance()
        put = await stage.put()
        assert [(item.unit.index, item.summary.num_tokens) for item in put.items] == [(0, 2), (1, 2)]
        assert {item.summary.finish_reason for item in put.items} == {"unfinished"}
        stage.engine.running[0].write(1, 0)
        await ticks.advance()
        assert [(item.unit.index, item.summary.num_tokens) for item in (await stage.put()).items] == [(0, 3)]
        stage.say(Settled([], [Leased(Unit(0, 0), 1)]))
        await turns()
        assert len(stage.engine.running) == 2, "it goes on"

    scene(play, options={"progress_every_s": 30.0}, sleep=ticks.sleep)


def test_settled_progress_does_not_settle_the_finished_completion():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(2)
        stage.engine.finish()
        await stage.put()
        stage.say(Settled([], [Leased(Unit(0, 0), 1)]))
        draining = asyncio.create_task(stage.actor.drain(deadline_s=5))
        await turns()
        assert not draining.done()
        stage.say(Settled([Leased(Unit(0, 0), 1)]))
        assert await draining

    scene(play)


def test_inconsistent_progress_is_skipped():
    ticks = Ticks(every_s=30.0)

    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        written = stage.engine.written
        stage.engine.written = lambda request: replace(written(request), behavior_logprobs=[])
        await ticks.advance()
        stage.engine.written = written
        stage.engine.write(1)
        stage.engine.finish()
        (item,) = (await stage.put()).items
        assert item.summary.num_tokens == 2

    scene(play, options={"progress_every_s": 30.0}, sleep=ticks.sleep)


# ── from one session to the next ────────────────────────────────────────────────────────────


def test_generations_outlive_the_session():
    async def main():
        first = Stage()
        generations = Generations(first.engine, "r-0")
        first = Stage(engine=first.engine, generations=generations)
        serving = asyncio.create_task(first.actor.run())
        first.say(transfer(3), lease(lease_id=7), lease(lease_id=8, group_id=1, indices=(0,)))
        await first.engine.started(3)
        await first.hear(Live)
        first.engine.write(1)
        first.engine.finish(index=2)
        await first.put()
        first.broker.forget(PEER)
        with pytest.raises(LinkReset):
            await serving
        first.engine.write(1)

        held = generations.begin_session()

        assert held == [Held(Unit(0, 0), 7, 3), Held(Unit(0, 1), 7, 3), Held(Unit(1, 0), 8, 3)]
        assert generations.policy_version == 3
        second = Stage(engine=first.engine, generations=generations)
        serving = asyncio.create_task(second.actor.run())
        assert await second.hear(Offer) == Offer(CAPACITY), "the broker counts the held trajectories itself"
        (again,) = (await second.put()).items
        assert again.unit == Unit(1, 0), "whether it was put before or not"
        second.say(Settled([Leased(Unit(1, 0), 8)]), Cancelled([], [Unit(0, 1)]))
        await second.hear(Offer)
        assert await second.hear(Offer) == Offer(CAPACITY + 2)
        await turns()
        (still,) = second.engine.running
        assert still.num_tokens == 2
        second.engine.finish()
        (item,) = (await second.put()).items
        assert (item.unit, item.lease_id, item.summary.num_tokens) == (Unit(0, 0), 7, 2)
        second.say(Stop("the run is complete"))
        await serving
        await generations.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_generations_that_wait_for_a_prefix_are_not_held_by_the_next_session():
    async def main():
        stage = Stage()
        generations = Generations(stage.engine, "r-0")
        stage = Stage(engine=stage.engine, generations=generations)
        serving = asyncio.create_task(stage.actor.run())
        stage.say(resuming_lease(stored_prefix()))
        await stage.asked(Fetch)
        stage.broker.forget(PEER)
        with pytest.raises(LinkReset):
            await serving
        assert [item.unit for item in generations.begin_session()] == [Unit(0, 0)]
        await generations.aclose()

    asyncio.run(main())


def test_an_unexpected_engine_error_ends_the_rollout():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.running[0].done.set_exception(ZeroDivisionError("in the engine"))
        await asyncio.Event().wait()

    with pytest.raises(ZeroDivisionError, match="in the engine"):
        scene(play)


# ── the end ─────────────────────────────────────────────────────────────────────────────────


def test_draining_hands_over_unfinished_completions_and_takes_no_leases():
    async def play(stage):
        stage.say(lease(lease_id=1, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(3)
        draining = asyncio.create_task(stage.actor.drain(deadline_s=5))
        await stage.hear(Draining)
        stage.say(lease(lease_id=2, group_id=1))
        (item,) = (await stage.put()).items
        assert (item.unit, item.lease_id) == (Unit(0, 0), 1)
        assert (item.summary.num_tokens, item.summary.finish_reason) == (3, "unfinished")
        assert stage.engine.running == [], "its slot is free"
        assert stage.engine.calls == ["pause", "resume"], "the engine is the host's, and goes on"
        await turns()
        assert len(stage.engine.requests) == 1
        assert not draining.done(), "not before it is on disk"
        stage.say(Settled([], [Leased(Unit(0, 0), 1)]))
        assert await draining

    scene(play)


def test_draining_waits_for_finished_completions_too():
    async def play(stage):
        stage.say(lease())
        await stage.engine.started(2)
        stage.engine.write(2)
        stage.engine.finish(index=1)
        draining = asyncio.create_task(stage.actor.drain(deadline_s=5))
        items = (await stage.put()).items
        assert {item.unit.index: item.summary.finish_reason for item in items} == {0: "unfinished", 1: "stop"}
        stage.say(Settled([], [Leased(Unit(0, 0), 1)]))
        await turns()
        assert not draining.done()
        stage.say(Settled([Leased(Unit(0, 1), 1)]))
        assert await draining

    scene(play)


def test_the_broker_may_ask_it_to_leave():
    asked: list[str] = []

    async def play(stage):
        stage.say(Drain("r-0"))
        await turns()
        assert asked == ["now"]

    scene(play, on_drain=lambda: asked.append("now"))


def test_its_stacks_are_an_answer_of_its_own_event_loop():
    async def play(stage):
        stage.say(StacksWanted("r-0"))
        told = await stage.hear(Stacks)
        assert told.node == "r-0"
        assert "thread MainThread" in told.text
        assert "task " in told.text

    scene(play)


def test_draining_without_tokens_has_nothing_to_hand_over():
    async def play(stage):
        stage.say(lease())
        await stage.engine.started(2)
        assert await stage.actor.drain(deadline_s=5)

    scene(play)


def test_draining_finishes_a_transfer_of_weights_which_would_fail_for_all_its_members():
    async def play(stage):
        stage.receiver.may_arrive.clear()
        stage.say(transfer(1))
        await turns()
        draining = asyncio.create_task(stage.actor.drain(deadline_s=5))
        await stage.hear(Draining)
        await turns()
        assert not draining.done()
        stage.receiver.may_arrive.set()
        assert await draining
        await stage.hear(Transferred)

    scene(play)


def test_draining_gives_up_at_its_deadline():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        assert not await stage.actor.drain(deadline_s=0)

    scene(play)


def test_stop_drops_running_generations():
    async def play(stage):
        stage.receiver.may_arrive.clear()
        stage.say(lease(), transfer(1))
        await stage.engine.started(2)

    scene(play)


def test_a_closed_link_ends_it_like_stop():
    async def main():
        stage = Stage()
        running = asyncio.create_task(stage.actor.run())
        await stage.hear(Offer)
        await stage.broker.aclose()
        await running

    asyncio.run(main())


def test_a_broker_that_restarted_ends_it_with_link_reset():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.broker.forget(PEER)
        stage.engine.write(1)
        stage.engine.finish()
        await asyncio.Event().wait()

    with pytest.raises(LinkReset):
        scene(play)


def test_a_spool_that_restarted_is_sent_results_over_another_link(monkeypatch):
    monkeypatch.setattr(spools, "RECONNECT_S", 0.0)

    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.spool.forget(PEER)
        stage.engine.write(1)
        stage.engine.finish()
        assert [item.unit for item in (await stage.put()).items] == [Unit(0, 0)]

    scene(play)


def test_results_wait_until_the_broker_names_a_spool():
    async def play(stage):
        stage.say(Spools(SpoolSet([SpoolAddress("spool", "memory")], own="")))
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        await turns()
        stage.say(Spools(SpoolSet([SpoolAddress("spool", "memory")], own="spool")))
        assert [item.unit for item in (await stage.put()).items] == [Unit(0, 0)]

    scene(play)


def test_a_rejected_rollout_says_why():
    async def play(stage):
        stage.say(Reject("another model than trainer-0"))
        await asyncio.Event().wait()

    with pytest.raises(LinkRefused, match="another model"):
        scene(play)


def test_cancelling_it_leaves_no_task_and_a_running_engine():
    async def main():
        stage = Stage()
        running = asyncio.create_task(stage.actor.run())
        stage.say(lease(), transfer(1))
        await stage.engine.started(2)
        await stage.hear(Live)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert stage.engine.running == []
        assert "aclose" not in stage.engine.calls, "the engine is the host's"

    asyncio.run(main())


def test_a_beat_carries_running_totals():
    now_s = 0.0

    async def play(stage):
        nonlocal now_s
        now_s = 2.0
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        now_s = 5.0
        stage.engine.write(4)
        stage.engine.finish()
        await stage.put()
        beat = stage.actor.heartbeat(0.125)
        assert (beat.lag_s, beat.tokens) == (0.125, 4)
        assert (beat.seconds["idle"], beat.seconds["sampling"]) == (2.0, 3.0)

    scene(play, clock=lambda: now_s)
