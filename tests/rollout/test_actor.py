"""One rollout between a scripted broker and a scripted spool, around an engine that writes when it is told to."""

import array
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import EngineError, LinkRefused, LinkReset, TransferError
from asyncrl.messages import (
    Cancelled,
    Draining,
    Failed,
    Hold,
    Lease,
    Live,
    Member,
    Message,
    Offer,
    Prompt,
    Put,
    Ready,
    Reject,
    Release,
    Sampling,
    Settled,
    Span,
    Stop,
    StoreValue,
    Trajectory,
    Transfer,
    TransferFailed,
    Transferred,
    Unit,
)
from asyncrl.rollout import actor as rollout
from asyncrl.rollout.actor import RolloutActor
from asyncrl.testing import FakeEngine

M = TypeVar("M", bound=Message)
PEER = "r-0.1"
SLOTS, GROUP_SIZE = 4, 2
CAPACITY = SLOTS + 2 * GROUP_SIZE


class FakeReceiver:
    """Weights that arrive when the test says so."""

    def __init__(self) -> None:
        self.may_arrive = asyncio.Event()
        self.may_arrive.set()
        self.error: TransferError | None = None
        self.delivered: list[StoreValue] = []

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


class Stage:
    """Everything around one actor."""

    def __init__(self, **options: Any) -> None:
        self.broker, self.spool = MemoryHub(), MemoryHub()
        self.engine, self.receiver = FakeEngine(), FakeReceiver()
        self.actor = RolloutActor(
            self.engine,
            self.broker.connect(PEER),
            self.spool.connect(PEER),
            **{
                "node": "r-0",
                "incarnation": "1",
                "slots": SLOTS,
                "group_size": GROUP_SIZE,
                "receiver": self.receiver,
                "plan_hash": "plan",
                **options,
            },
        )

    def say(self, *messages: Message) -> None:
        for message in messages:
            self.broker.send(PEER, message)

    async def hear(self, kind: type[M]) -> M:
        """The next message of this kind the broker hears."""
        while not isinstance(message := (await self.broker.receive())[1], kind):
            pass
        return message

    async def put(self) -> Put:
        message = (await self.spool.receive())[1]
        assert isinstance(message, Put)
        return message


def scene(play: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    """Run the actor beside ``play``, then stop it; nothing may be left behind."""

    async def main() -> None:
        stage = Stage(**options)
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
    """Let everybody who can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def lease(token: int = 1, group_id: int = 0, indices: tuple[int, ...] = (0, 1), text: str = "how many") -> Lease:
    return Lease(
        token=token,
        group_id=group_id,
        indices=list(indices),
        split="train",
        prompt=Prompt(text=text),
        sampling=Sampling(max_tokens=8),
        seed=100,
        max_prompt_tokens=4,
        expires_in_s=60.0,
    )


def transfer(policy_version: int, epoch: int = 1) -> Transfer:
    members = [Member("trainer-0", "1"), Member("r-0", "1")]
    return Transfer(epoch, policy_version, members, keep=True, deadline_s=5.0)


# ── from a lease to a settled result ────────────────────────────────────────────────────────


def test_it_says_ready_and_offers_what_it_can_take():
    async def play(stage):
        assert (await stage.hear(Ready)).plan_hash == "plan"
        assert (await stage.hear(Offer)).limit == CAPACITY

    scene(play)


def test_a_lease_becomes_one_put_for_each_index():
    async def play(stage):
        stage.say(lease(token=9))
        await stage.engine.started(2)
        stage.engine.write(3)
        stage.engine.finish(finish_reason="length")
        put = await stage.put()
        assert (put.node, put.incarnation) == ("r-0", "1")
        (item,) = put.items
        assert (item.unit, item.token) == (Unit(0, 0), 9)
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


def test_settled_gives_the_credit_back_once():
    async def play(stage):
        stage.say(lease())
        await stage.engine.started(2)
        stage.engine.write(1)
        stage.engine.finish()
        await stage.put()
        assert (await stage.hear(Offer)).limit == CAPACITY
        for _ in range(2):
            stage.say(Settled([Unit(0, 0)]))
            assert (await stage.hear(Offer)).limit == CAPACITY + 1

    scene(play)


def test_a_result_is_put_again_until_it_is_settled(monkeypatch):
    monkeypatch.setattr(rollout, "RESEND_S", 0.0)  # the actor looks at once; what is late the clock says
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
        stage.say(Settled([Unit(0, 0)]))
        await turns()
        now_s += 60
        await turns()
        assert not stage.spool._inbox._items

    scene(play, clock=lambda: now_s)


def test_a_unit_leased_again_after_its_lease_expired_is_begun_anew():
    async def play(stage):
        stage.say(lease(token=1, indices=(0,)))
        await stage.engine.started(1)
        assert (await stage.hear(Offer)).limit == CAPACITY
        stage.say(lease(token=2, indices=(0,)))
        while len(stage.engine.requests) < 2:
            await turns()
        assert len(stage.engine.running) == 1, "the first was given up"
        stage.engine.write(1)
        stage.engine.finish()
        assert (await stage.put()).items[0].token == 2
        stage.say(Settled([Unit(0, 0)]))
        assert (await stage.hear(Offer)).limit == CAPACITY + 2, "the broker counted a credit for each lease"

    scene(play)


# ── failures are facts, never results ───────────────────────────────────────────────────────


@pytest.mark.parametrize("retryable", [True, False])
def test_an_engine_error_becomes_failed(retryable):
    async def play(stage):
        stage.say(lease(token=5, indices=(1,)))
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
            "the prompt has 5 tokens, more than data.max_prompt_tokens = 4: raise the limit or remove the row"
        )
        assert not failed.retryable
        assert not stage.engine.requests

    scene(play)


def test_an_engine_that_returns_nothing_has_failed():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.finish()
        assert "0 tokens" in (await stage.hear(Failed)).reason

    scene(play)


def test_a_failed_unit_may_be_leased_again():
    async def play(stage):
        stage.say(lease(token=1, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.fail(EngineError("once"))
        await stage.hear(Failed)
        stage.say(lease(token=2, indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(1)
        stage.engine.finish()
        assert (await stage.put()).items[0].token == 2

    scene(play)


def test_a_cancelled_lease_frees_its_places():
    async def play(stage):
        stage.say(lease(token=1), lease(token=2, group_id=1))
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


def test_a_transfer_is_received_then_swapped_in_while_generation_stands_still():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.engine.write(2)
        stage.say(transfer(policy_version=3, epoch=7))
        assert await stage.hear(Transferred) == Transferred(7, 3, 0.25, 0)
        live = await stage.hear(Live)
        assert (live.policy_version, live.pause_s, live.receive_s) == (3, 1.0, 0.25)
        assert stage.engine.calls == ["pause", "swap 3", "resume"]
        assert stage.engine.weights == {"w": "tensor"}
        stage.engine.write(2)
        stage.engine.finish()
        summary = (await stage.put()).items[0].summary
        assert (summary.oldest_version, summary.newest_version, summary.num_spans) == (0, 3, 2)

    ticks = iter(range(1000))
    scene(play, clock=lambda: float(next(ticks)))


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


def test_a_broken_transfer_is_told_and_the_old_weights_go_on():
    async def play(stage):
        stage.receiver.error = TransferError("trainer-0 is gone")
        stage.say(transfer(policy_version=1, epoch=4))
        assert await stage.hear(TransferFailed) == TransferFailed(4, 1, "trainer-0 is gone")
        assert stage.engine.calls == []
        stage.receiver.error = None
        stage.say(transfer(policy_version=1, epoch=5))
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


def test_a_transfer_that_breaks_takes_what_waited_with_it():
    """The staging buffers are written over: what lay there is neither the old version nor the new one."""

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


def test_without_partial_rollout_a_swap_waits_for_what_is_in_hand():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        stage.say(transfer(1))
        await stage.hear(Transferred)
        stage.say(lease(token=2, group_id=1, indices=(0,)))
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

    scene(play, partial_rollout=False)


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


def test_without_a_receiver_a_transfer_is_refused():
    async def play(stage):
        stage.say(transfer(1), StoreValue("1", "key", b""))
        assert "does not take weights" in (await stage.hear(TransferFailed)).reason

    scene(play, receiver=None)


def test_answers_of_the_rendezvous_reach_the_receiver():
    async def play(stage):
        stage.say(StoreValue("1", "key", b"value"))
        await turns()
        assert stage.receiver.delivered == [StoreValue("1", "key", b"value")]

    scene(play)


# ── the end ─────────────────────────────────────────────────────────────────────────────────


def test_draining_finishes_what_is_in_hand_and_takes_nothing_more():
    async def play(stage):
        stage.say(lease(token=1, indices=(0,)))
        await stage.engine.started(1)
        draining = asyncio.create_task(stage.actor.drain(deadline_s=5))
        await stage.hear(Draining)
        stage.say(lease(token=2, group_id=1))
        await turns()
        assert len(stage.engine.requests) == 1
        stage.engine.write(1)
        stage.engine.finish()
        await stage.put()
        await turns()
        assert not draining.done(), "not before it is on disk"
        stage.say(Settled([Unit(0, 0)]))
        assert await draining

    scene(play)


def test_draining_gives_up_at_its_deadline():
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        assert not await stage.actor.drain(deadline_s=0)

    scene(play)


def test_stop_drops_what_is_in_hand():
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


@pytest.mark.parametrize("which", ["broker", "spool"])
def test_a_peer_that_restarted_ends_it_with_link_reset(which):
    async def play(stage):
        stage.say(lease(indices=(0,)))
        await stage.engine.started(1)
        getattr(stage, which).forget(PEER)
        stage.engine.write(1)
        stage.engine.finish()
        await asyncio.Event().wait()

    with pytest.raises(LinkReset):
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
        beat = stage.actor.beat(0.125)
        assert (beat.lag_s, beat.wait_s, beat.busy_s, beat.tokens) == (0.125, 2.0, 3.0, 4)

    scene(play, clock=lambda: now_s)
