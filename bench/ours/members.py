"""
Members of a run for bad_members.py: scripted rollouts and a trainer, and real reward nodes and spools; some with a bug.

    sample NAME PACE BUG   a rollout without an engine: a completion takes `SAMPLE_S`, times ``PACE``
    node ROLE BUG ...      `asyncrl-node`, with one of its methods replaced if ``BUG`` names one
    train STEPS            a trainer without a model; it checks each payload as the real one does
"""

import array
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from ours.durable import PATIENCE_S, _in_loop, _join
from processes import report

from asyncrl.cli import node as node_command
from asyncrl.errors import DecodeError
from asyncrl.messages.codec import Message
from asyncrl.messages.reward import GradeItem, Scored, ScoredItem
from asyncrl.messages.rollout import Cancelled, Failed, Lease, Offer, Settled
from asyncrl.messages.session import Bye, Ready, Stop
from asyncrl.messages.sound import problem_of, summary_of
from asyncrl.messages.spool import Permit, Put, PutItem, Spools
from asyncrl.messages.trainer import Batch, Commit, Refusal, Stepped, Take
from asyncrl.messages.trajectory import Span, Trajectory, TrajectoryLimits, Unit
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, Transferred
from asyncrl.reward.actor import RewardActor
from asyncrl.spool.actor import UNREADABLE, SpoolActor
from asyncrl.wire.handshake import identity
from asyncrl.wire.spools import PayloadClient, SpoolLinks, at_fault, read_trajectory
from asyncrl.wire.zmq_link import ZmqLink

SAMPLE_S, FAILS_S = 0.2, 0.01
CAPACITY = 32
VOCAB = 1000
NUM_TOKENS, MAX_TOKENS = 24, 64
VALUE_OF_BUG = 1e6
"""Reward and metric by which the trainer knows a verdict of the bad member."""
QUICK, SLOW = 0.25, 3.0
"""Time that a bad rollout takes for a completion, in that of the healthy ones."""


# ── what rollouts may do wrong ──────────────────────────────────────────────────────────────────

Damage = Callable[[Trajectory], Trajectory | bytes]
DAMAGE: dict[str, Damage] = {
    "log-probs are NaN": lambda one: replace(one, behavior_logprobs=_floats([float("nan")] * NUM_TOKENS)),
    "log-probs are positive": lambda one: replace(one, behavior_logprobs=_floats([3.0] * NUM_TOKENS)),
    "too few log-probs": lambda one: replace(one, behavior_logprobs=_floats([-1.0] * (NUM_TOKENS - 1))),
    "ids beyond the vocabulary": lambda one: replace(one, completion_ids=_ints([VOCAB] * NUM_TOKENS)),
    "negative ids": lambda one: replace(one, prompt_ids=_ints([-1] * 8)),
    "no prompt": lambda one: replace(one, prompt_ids=_ints([])),
    "no tokens": lambda one: replace(one, completion_ids=_ints([]), behavior_logprobs=_floats([]), spans=[]),
    "spans with a hole": lambda one: replace(one, spans=[Span(one.spans[0].policy_version, 1, NUM_TOKENS)]),
    "versions of the future": lambda one: replace(one, spans=[Span(10**6, 0, NUM_TOKENS)]),
    "another unit in the payload": lambda one: replace(one, unit=Unit(one.unit.group_id + 1, one.unit.index)),
    "more tokens than allowed": lambda one: replace(
        one, completion_ids=_ints([1] * 4096), behavior_logprobs=_floats([-1.0] * 4096), spans=[Span(0, 0, 4096)]
    ),
    "text without end": lambda one: replace(one, text="x" * 1_000_000),
    "endless time": lambda one: replace(one, generate_s=float("inf")),
    "bytes that are no trajectory": lambda _: b"\xc1" * 200,
    "half a trajectory": lambda one: msgspec.msgpack.encode(one)[:100],
    "a list without end": lambda _: b"\x91" * 100_000,
}
"""Payloads in place of sound ones, with a summary that agrees where there can be one."""

Deed = Callable[["Sampler", Lease, Unit], Awaitable[None]]


async def _fails(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    await sampler.fail(lease, unit, retryable=True)


async def _fails_for_good(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    await sampler.fail(lease, unit, retryable=False)


async def _finds_too_long(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    await sampler.fail(lease, unit, retryable=False, is_overlong=True)


async def _never_finishes(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    pass


async def _stores_without_permit(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    item = sampler.item(lease, unit)
    await sampler.put([replace(item, permit=Permit([unit.index], bytes(16)))] * 50)


async def _stores_work_of_others(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    item = sampler.item(lease, unit)
    others = [replace(item, unit=Unit(unit.group_id + 1, index), lease_id=lease.lease_id + 1) for index in range(8)]
    await sampler.put(others)


async def _speaks_for_others(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    verdict = ScoredItem(unit, VALUE_OF_BUG, {}, lease.lease_id)
    for message in (Scored([verdict]), Commit(400, "nowhere"), Stepped(400, 400, {}), Take(400)):
        await sampler.say(message)
    await sampler.fail(lease, unit, retryable=True)


async def _floods(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    for number in range(200):
        await sampler.say(Failed(Unit(number, 0), lease.lease_id, "rollout", "x" * 1000, retryable=False))
    await sampler.fail(lease, unit, retryable=True)


async def _lies_in_summaries(sampler: "Sampler", lease: Lease, unit: Unit) -> None:
    item = sampler.item(lease, unit)
    await sampler.put([replace(item, summary=replace(item.summary, num_tokens=NUM_TOKENS + 1))])


DEEDS: dict[str, Deed] = {
    "fails everything": _fails,
    "fails everything for good": _fails_for_good,
    "finds every prompt too long": _finds_too_long,
    "never finishes": _never_finishes,
    "stores without a permit": _stores_without_permit,
    "stores work of others": _stores_work_of_others,
    "speaks for others": _speaks_for_others,
    "floods with failures of others": _floods,
    "lies in summaries": _lies_in_summaries,
}
ROLLOUT_BUGS = (*DAMAGE, *DEEDS)


class Sampler:
    """A rollout without an engine. Its trajectories bear its name."""

    def __init__(self, name: str, pace: float, bug: str) -> None:
        self._name, self._seconds, self._bug = name, SAMPLE_S * pace, bug
        self._limit, self._version = CAPACITY, 0
        self._tasks: dict[Unit, asyncio.Task[None]] = {}

    async def run(self, address: str) -> None:
        self._link, self._spools, self._who = await _join(address, identity("rollout", self._name))
        await self.say(Ready(), Offer(self._limit))
        async for message in self._link:
            match message:
                case Lease():
                    for index in message.indices:
                        unit = Unit(message.group_id, index, message.split)
                        self._tasks[unit] = asyncio.create_task(self._sample(message, unit))
                case Settled(items=items):
                    await self._gives_back(len(items))
                case Cancelled(lease_ids=lease_ids):
                    await self._gives_back(len(lease_ids))
                case Spools(spools=spools):
                    self._spools.update(spools)
                case Stop():
                    await self.say(Bye("done"))
                    return
                case Transfer(transfer_group=group, policy_version=version):
                    self._version = version
                    await self.say(Transferred(group, version, 0.0, 0), Live(version, 0.0, 0.0))

    async def say(self, *messages: Message) -> None:
        for message in messages:
            await self._link.send(message)

    async def fail(self, lease: Lease, unit: Unit, *, retryable: bool, is_overlong: bool = False) -> None:
        await self.say(Failed(unit, lease.lease_id, "rollout", "out of memory", retryable, is_overlong))
        await self._gives_back(1)

    async def put(self, items: list[PutItem]) -> None:
        await self._spools.put(Put(self._who.node, self._who.incarnation, items))

    def item(self, lease: Lease, unit: Unit) -> PutItem:
        trajectory = self._trajectory(unit)
        damage = DAMAGE.get(self._bug)
        payload = damage(trajectory) if damage else trajectory
        if isinstance(payload, Trajectory):
            summary = summary_of(payload if payload.spans else trajectory)
            payload = msgspec.msgpack.encode(payload)
        else:
            summary = summary_of(trajectory)
        return PutItem(unit, lease.lease_id, summary, memoryview(payload), lease.permit)

    async def _sample(self, lease: Lease, unit: Unit) -> None:
        deed = DEEDS.get(self._bug)
        await asyncio.sleep(FAILS_S if deed else self._seconds)
        if deed:
            await deed(self, lease, unit)
        else:
            await self.put([self.item(lease, unit)])
        self._tasks.pop(unit, None)

    async def _gives_back(self, number: int) -> None:
        self._limit += number
        await self.say(Offer(self._limit))

    def _trajectory(self, unit: Unit) -> Trajectory:
        return Trajectory(
            unit=unit,
            prompt_ids=_ints(range(8)),
            completion_ids=_ints(range(NUM_TOKENS)),
            behavior_logprobs=_floats([-1.0] * NUM_TOKENS),
            spans=[Span(self._version, 0, NUM_TOKENS)],
            finish_reason="stop",
            text=f"#### {unit.index % 2}",
            node=self._name,
            generate_s=self._seconds,
        )


def _ints(values: Any) -> memoryview:
    return memoryview(array.array("i", values)).cast("B") if values else memoryview(b"")


def _floats(values: list[float]) -> memoryview:
    return memoryview(array.array("f", values)).cast("B") if values else memoryview(b"")


# ── what reward nodes and spools may do wrong ───────────────────────────────────────────────────

Verdict = Callable[[GradeItem], ScoredItem | Failed]
VERDICTS: dict[str, Verdict] = {
    "says NaN": lambda item: ScoredItem(item.unit, float("nan"), {}, item.lease_id),
    "says infinity": lambda item: ScoredItem(item.unit, float("inf"), {}, item.lease_id),
    "says NaN in a metric": lambda item: ScoredItem(item.unit, 1.0, {"correct": float("nan")}, item.lease_id),
    "fails everything": lambda item: Failed(item.unit, item.lease_id, "reward", "the verifier raised", True),
    "fails everything for good": lambda item: Failed(item.unit, item.lease_id, "reward", "the verifier raised", False),
    "finds everything damaged": lambda item: Failed(item.unit, item.lease_id, "payload", "damaged", True),
    "blames spools": lambda item: Failed(item.unit, item.lease_id, "payload", "lost", True, at_fault="spool"),
    "fails as a rollout": lambda item: Failed(item.unit, item.lease_id, "rollout", "out of memory", False),
    "answers for others": lambda item: ScoredItem(
        Unit(item.unit.group_id + 1, item.unit.index), VALUE_OF_BUG, {"correct": 1.0}, item.lease_id + 100
    ),
}
REWARD_BUGS = (*VERDICTS, "never answers")
READS: dict[str, Callable[[memoryview], memoryview]] = {
    "loses everything": lambda _: UNREADABLE,
    "turns a bit of everything": lambda payload: memoryview(bytes([payload[0] ^ 1]) + bytes(payload[1:])),
    "sends half of everything": lambda payload: payload[: len(payload) // 2],
}
SPOOL_BUGS = tuple(READS)
BUGS = {"rollout": ROLLOUT_BUGS, "reward": REWARD_BUGS, "spool": SPOOL_BUGS}


def run_node(role: str, bug: str, *arguments: str) -> None:
    """Run `asyncrl-node` with a bug, or without one."""
    if role == "reward" and bug:

        async def score(_: RewardActor, __: object, item: GradeItem) -> list[ScoredItem] | Failed:
            if bug == "never answers":
                await asyncio.Event().wait()
            answer = VERDICTS[bug](item)
            return answer if isinstance(answer, Failed) else [answer]

        RewardActor._score = score  # type: ignore[method-assign,assignment]
    if role == "spool" and bug:
        read = SpoolActor._read_one
        SpoolActor._read_one = lambda self, ref: READS[bug](read(self, ref))  # type: ignore[method-assign]
        SpoolActor._answer_from_memory = lambda self, peer, fetch: self._fetches.put_nowait((peer, fetch))  # type: ignore[method-assign]
    sys.argv = ["asyncrl-node", "--role", role, *arguments]
    node_command.main()


# ── the trainer ─────────────────────────────────────────────────────────────────────────────────


class Trained(Struct, frozen=True):
    """What the trainer saw."""

    steps: int
    seconds: float
    """Time from the first batch to the last."""
    trajectories: int
    of_bug: int
    """Trajectories trained on that the bad member sampled with its bug, or judged."""
    refused: int


class Trainer:
    def __init__(self, link: ZmqLink, spools: SpoolLinks, steps: int, bad: str) -> None:
        self._link, self._spools, self._steps, self._bad = link, spools, steps, bad
        self._payloads = PayloadClient(spools)
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._live_version, self._went_live = -1, asyncio.Event()
        self.trajectories = self.of_bug = self.refused = 0

    async def serve(self) -> None:
        async for message in self._link:
            match message:
                case Batch():
                    self._batches.put_nowait(message)
                case Transfer(transfer_group=group, policy_version=version):
                    await self._link.send(Transferred(group, version, 0.0, 0))
                case Spools():
                    self._spools.update(message.spools)
                case Published(policy_version=version):
                    self._live_version = version
                    self._went_live.set()
                case Stop():
                    await self._link.send(Bye("done"))
                    return

    async def train(self) -> float:
        await self._link.send(Ready(vocab_size=VOCAB))
        await self._link.send(Publishing(0, 0))
        upcoming = asyncio.create_task(self._batch(0))
        began_s = 0.0
        for step in range(self._steps):
            refused = await upcoming
            began_s = began_s or time.perf_counter()
            if step + 1 < self._steps:
                upcoming = asyncio.create_task(self._batch(step + 1))
            while self._live_version < step:
                self._went_live.clear()
                await self._went_live.wait()
            for message in (Publishing(step + 1, step + 1), Stepped(step, step, {}, refused), Commit(step, "nowhere")):
                await self._link.send(message)
        return time.perf_counter() - began_s

    async def _batch(self, step: int) -> list[Refusal]:
        """Fetch a batch and check it. Returns the refusals."""
        await self._link.send(Take(step))
        batch = await self._batches.get()
        payloads = await self._payloads.fetch_payloads([one.ref for one in batch.trajectories], PATIENCE_S)
        limits = TrajectoryLimits(vocab_size=VOCAB, max_tokens=MAX_TOKENS, max_prompt_tokens=512, newest_version=step)
        refused, sound = list[Refusal](), list[tuple[Unit, bool]]()
        for one, payload in zip(batch.trajectories, payloads, strict=True):
            try:
                trajectory = read_trajectory(one.ref, payload)
            except DecodeError as error:
                refused.append(Refusal(one.unit, str(error), at_fault(error)))
                continue
            if problem := one.refused or problem_of(trajectory, one.unit, one.summary, limits):
                refused.append(Refusal(one.unit, problem))
            else:
                is_of_bug = trajectory.node == self._bad or one.reward not in (0.0, 1.0)
                sound.append((one.unit, is_of_bug))
        left_out = {refusal.unit.group_id for refusal in refused}
        trained = [is_of_bug for unit, is_of_bug in sound if unit.group_id not in left_out]
        self.trajectories += len(trained)
        self.of_bug += sum(trained)
        self.refused += len(refused)
        return refused


async def train(address: str, steps: str, bad: str, result: str) -> None:
    link, spools, _ = await _join(address, identity("trainer", "trainer"))
    trainer = Trainer(link, spools, int(steps), bad)
    serving = asyncio.create_task(trainer.serve())
    seconds = await trainer.train()
    await serving  # The broker ends the run.
    report(result, Trained(int(steps), seconds, trainer.trajectories, trainer.of_bug, trainer.refused))


async def sample(address: str, name: str, pace: str, bug: str) -> None:
    await Sampler(name, float(pace), bug).run(address)


CHILDREN: dict[str, Callable[..., None]] = {"sample": _in_loop(sample), "train": _in_loop(train), "node": run_node}
