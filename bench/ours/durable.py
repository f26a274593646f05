"""
The complete durable path of asyncrl: a real broker process with its ledger and its spool, on a real disk.

    producer ── Put ──▶ ┌────────────────────┐ ◀─ Fetch ── consumer
      (rollout) ◀ Lease │ broker: spool sync,│   (trainer) Take ▶ Batch, Publishing, Stepped, Commit
    reward ◀─ Grade ──▶ │ ledger sync        │
                        └────────────────────┘

A trajectory leaves the window after it was leased, put, synced to the spool, synced to the ledger, graded, taken in a
batch, fetched, checked, decoded, published and committed. The nodes are scripted: no engine, no verifier, no weights.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import count
from typing import Any

import uvloop
from keyed import key_file
from meter import Meter, Rate
from msgspec.structs import replace
from payloads import COMPLETION_TOKENS, PROMPT_TEXT, SUMMARY, payloads
from processes import Processes, free_address, report

from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Lease, Offer
from asyncrl.messages.session import Beat, Ready, StoreGet, StoreSet, StoreValue
from asyncrl.messages.spool import Put, PutItem, Spools
from asyncrl.messages.trainer import Batch, Commit, Stepped, Take
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, Transferred
from asyncrl.wire.handshake import Identity, identity, join, send_beats, spool_links
from asyncrl.wire.run_address import find_run
from asyncrl.wire.spools import PayloadClient, SpoolLinks
from asyncrl.wire.zmq_link import ZmqLink

NAME = "asyncrl"
PATIENCE_S = 60.0
GROUP_SIZE = 8
GROUPS_PER_STEP = 64
STALENESS = 3
"""The resulting window holds 2048 trajectories, more than twice the number in transit at full speed."""
NO_LIMIT = 1 << 40
"""Credit offered by nodes, so large that only the window limits this run."""

CONFIG = """
[run]
name = "run"
dir = "{path}"
steps = {steps}
[model]
path = "{path}/model"
[data]
train = "{path}/train.jsonl"
max_prompt_tokens = 512
[sampling]
max_tokens = {max_tokens}
[schedule]
groups_per_step = {groups_per_step}
group_size = {group_size}
staleness = {staleness}
[reward]
function = "gsm8k"
timeout_s = {verdict_s}
[broker]
samples = false
segment_bytes = 33554432
[evaluation]
every_versions = 0
at_start = false
at_end = false
"""


async def flow(processes: Processes, batch: int, seconds: float, *broker_options: str) -> Rate:
    """Trajectories per second from lease to trainer."""
    broker_pid, address = await start_broker(processes, options=broker_options)
    await processes.start(__name__, "reward", address)
    await processes.start(__name__, "produce", address, batch)
    consumer = await processes.start(__name__, "consume", address, seconds, broker_pid, str(processes.path))
    return await processes.result(consumer, Rate, seconds + PATIENCE_S)


async def round_trips(processes: Processes, seconds: float) -> list[float]:
    """Seconds from each `StoreGet` to its `StoreValue`."""
    _, address = await start_broker(processes)
    caller = await processes.start(__name__, "call", address, seconds, str(processes.path))
    return await processes.result(caller, list[float], seconds + PATIENCE_S)


async def start_broker(
    processes: Processes,
    *,
    groups_per_step: int = GROUPS_PER_STEP,
    group_size: int = GROUP_SIZE,
    staleness: float = STALENESS,
    steps: int = 1_000_000,
    max_tokens: int = COMPLETION_TOKENS,
    verdict_s: float = 10.0,
    command: Sequence[str] = ("-m", "asyncrl.cli.node"),
    options: Sequence[str] = (),
) -> tuple[int, str]:
    """
    Start ``asyncrl-node --role broker`` with ``options``, or ``command`` in its place.

    Returns:
        Its process id and address.
    """
    config = processes.path / "bench.toml"
    config.write_text(
        CONFIG.format(
            path=processes.path,
            steps=steps,
            groups_per_step=groups_per_step,
            group_size=group_size,
            staleness=staleness,
            max_tokens=max_tokens,
            verdict_s=verdict_s,
        )
    )
    (processes.path / "train.jsonl").write_text(f'{{"prompt": "{PROMPT_TEXT}", "answer": "1"}}\n' * 64)
    address = free_address()
    arguments = [*command, "--role", "broker", "--broker", address, "--config", str(config), *options]
    broker = await processes.command("broker", arguments)
    return broker.pid or 0, address


# ── producer: a rollout without an engine ───────────────────────────────────────────────────


async def produce(address: str, batch: str, num_tokens: str = f"{COMPLETION_TOKENS}") -> None:
    link, spools, who = await _join(address, identity("rollout", "producer"))
    forever = _forever(int(num_tokens))
    size = int(batch)
    fresh: list[PutItem] = []
    summary = SUMMARY
    await link.send(Ready())
    await link.send(Offer(NO_LIMIT))
    async for message in link:
        match message:
            case Lease():
                fresh += _finished(message, summary, forever)
                while len(fresh) >= size:
                    await spools.put(Put(who.node, who.incarnation, fresh[:size]))
                    del fresh[:size]
            case Spools():
                spools.update(message.spools)
            case Transfer(transfer_group=transfer_group, policy_version=version):
                await link.send(Transferred(transfer_group, version, 0.0, 0))
                await link.send(Live(version, 0.0, 0.0))
                summary = replace(SUMMARY, oldest_version=version, newest_version=version)


def _finished(lease: Lease, summary: TrajectorySummary, forever: Iterator[memoryview]) -> list[PutItem]:
    return [
        PutItem(Unit(lease.group_id, index, lease.split), lease.lease_id, summary, next(forever), lease.permit)
        for index in lease.indices
    ]


def _forever(num_tokens: int) -> Iterator[memoryview]:
    ones = [memoryview(payload) for payload in payloads(num_tokens)]
    while True:
        yield from ones


# ── reward: scores without a verifier ────────────────────────────────────────────────────


async def reward(address: str) -> None:
    link, _, _ = await _join(address, identity("reward", "reward"))
    await link.send(Offer(NO_LIMIT))
    async for message in link:
        if isinstance(message, Grade):
            await link.send(
                Scored([ScoredItem(item.unit, 1.0, {"correct": 1.0}, item.lease_id) for item in message.items])
            )


# ── consumer: a trainer without a model ─────────────────────────────────────────────────────


async def consume(address: str, seconds: str, broker_pid: str, result: str) -> None:
    link, spools, _ = await _join(address, identity("trainer", "consumer"))
    trainer = _Trainer(link, spools, Meter(float(seconds), int(broker_pid)))
    tasks = [asyncio.create_task(job()) for job in (trainer.serve, trainer.train)]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    report(result, trainer.meter.rate)


class _Trainer:
    def __init__(self, link: ZmqLink, spools: SpoolLinks, meter: Meter) -> None:
        self.meter = meter
        self._link = link
        self._spools = spools
        self._payloads = PayloadClient(spools)
        self._batches: asyncio.Queue[Batch] = asyncio.Queue()
        self._live_version = -1
        self._went_live = asyncio.Event()

    async def serve(self) -> None:
        async for message in self._link:
            match message:
                case Batch():
                    self._batches.put_nowait(message)
                case Transfer(transfer_group=transfer_group, policy_version=version):
                    await self._link.send(Transferred(transfer_group, version, 0.0, 0))
                case Spools():
                    self._spools.update(message.spools)
                case Published(policy_version=version):
                    self._live_version = version
                    self._went_live.set()

    async def train(self) -> None:
        """Take steps until the measurement ends; request the next batch during publishing, like the trainer."""
        await self._link.send(Ready())
        await self._link.send(Publishing(0, 0))
        upcoming = asyncio.create_task(self._batch(0))
        for step in count():
            await upcoming
            upcoming = asyncio.create_task(self._batch(step + 1))
            while self._live_version < step:
                self._went_live.clear()
                await self._went_live.wait()
            await self._link.send(Publishing(step + 1, step + 1))
            await self._link.send(Stepped(step, step, {}))
            await self._link.send(Commit(step, "nowhere"))
            if self.meter.rate is not None:
                return

    async def _batch(self, step: int) -> None:
        await self._link.send(Take(step))
        batch = await self._batches.get()
        refs = [trajectory.ref for trajectory in batch.trajectories]
        await self._payloads.fetch_all(refs, PATIENCE_S)
        self.meter.add(len(refs), sum(ref.length for ref in refs))


# ── round trips ────────────────────────────────────────────────────────────────────────────


async def call(address: str, seconds: str, result: str) -> None:
    link, _ = await join(await find_run(address, None, PATIENCE_S), identity("trainer", "caller"), PATIENCE_S)
    await link.send(StoreSet("bench", "key", bytes(100)))
    took_s: list[float] = []
    ends_s = time.perf_counter() + float(seconds)
    while (start_s := time.perf_counter()) < ends_s:
        await link.send(StoreGet("bench", "key"))
        while not isinstance(await link.receive(), StoreValue):
            pass
        took_s.append(time.perf_counter() - start_s)
    report(result, took_s)


async def _join(address: str, who: Identity) -> tuple[ZmqLink, SpoolLinks, Identity]:
    """Join as ``who`` and send heartbeats until the process ends. Returns the links to broker and spools."""
    run = await find_run(address, key_file(who.node), PATIENCE_S)
    link, welcome = await join(run, who, PATIENCE_S)
    spools = spool_links(welcome.spools, who, run)
    for job in (send_beats(link, welcome.beat_s, Beat), spools.run()):
        task = asyncio.create_task(job)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        _kept.append(task)
    return link, spools, who


_kept: list["asyncio.Task[None]"] = []
"""Strong references to tasks, because the event loop holds only weak ones."""


def _in_loop(job: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(*arguments: str) -> None:
        uvloop.run(job(*arguments))

    return run


CHILDREN = {
    "produce": _in_loop(produce),
    "reward": _in_loop(reward),
    "consume": _in_loop(consume),
    "call": _in_loop(call),
}
