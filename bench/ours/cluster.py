"""
The broker's scheduler with a simulated cluster: no sockets, no disk, no waiting, and a simulated clock.

    each .25 s: all messages, in random order ─▶ Scheduler ─▶ messages to nodes ─▶ simulated nodes schedule replies

Of 100 nodes, 90 are rollouts, 9 are reward nodes and 1 is the trainer. A step has one group per rollout, so a larger
cluster has larger steps, and two steps are open at once, which keeps all rollouts busy. A rollout holds two groups. A
group returns in two halves, each after .25 to 2 s. Training takes no time; the trainer publishes and commits each step.

Only CPU seconds inside the scheduler are counted. Messages are decoded from bytes just before, as from a socket.
Heartbeats and ticks are counted separately, because their number depends on time and nodes, not on work. Short and long
steps alternate, because two steps start at once, so the bench measures pairs of steps.
"""

import random
import time
from collections import Counter, defaultdict
from math import ceil
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from payloads import PROMPT_TEXT, SUMMARY
from processes import Processes, report

from asyncrl.broker.actor import TICK_S
from asyncrl.broker.outbox import OutgoingMessage
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.data.prompts import train_stream
from asyncrl.messages.codec import Message
from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Lease, Offer, Settled
from asyncrl.messages.session import Beat, Hello, Ready
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.trainer import Batch, Commit, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, Transferred
from asyncrl.messages.wire import PROTOCOL, AnyMessage
from asyncrl.messages.words import Role
from asyncrl.runtime.broker import raise_gc_threshold

GROUP_SIZE = 8
CAPACITY = 2 * GROUP_SIZE
"""Trajectories that a rollout holds at once."""
SHARE_OF_ROLLOUTS = 0.9
LONGEST_TURNS = 8
WARM_UP_STEPS = 2
TURNS_A_BEAT = 2
AT_ONCE = 64
"""Messages decoded before they are handled; few, so that they are still in the CPU cache when timing starts."""
SPOOL, TRAINER = "spool", "trainer"
INCARNATION = "0"
PATIENCE_S = 300.0


class EncodedMessage(Struct, frozen=True, gc=False):
    """An encoded message to the broker; encoded, because messages in transit are not in the broker's memory."""

    peer: str
    frame: bytes


class Cost(Struct, frozen=True):
    """CPU microseconds of the scheduler by kind of work."""

    group_us: float
    """Per group, from admission to retirement, including its share of publishing."""
    beat_us: float
    """Heartbeats per node and second."""
    tick_us: float
    """Ticks per node and second."""
    join_us: float
    """Hello and Ready per node."""


async def cost(processes: Processes, num_nodes: int, num_groups: int) -> Cost:
    """Measure ``num_nodes`` in a child process while at least ``num_groups`` groups retire."""
    child = await processes.start(__name__, "play", num_nodes, num_groups, str(processes.path))
    return await processes.result(child, Cost, PATIENCE_S)


def play(num_nodes: str, num_groups: str, directory: str) -> None:
    raise_gc_threshold()
    cluster = Cluster(int(num_nodes), Path(directory))
    cluster.start()
    join_s = cluster.spent_s["join"]
    while cluster.num_retired < WARM_UP_STEPS * cluster.num_rollouts:
        cluster.turn()
    cluster.spent_s.clear()
    before, start_s = cluster.num_retired, cluster.now_s
    pair = 2 * cluster.num_rollouts
    while cluster.num_retired < before + pair * ceil(int(num_groups) / pair):
        cluster.turn()
    node_seconds = int(num_nodes) * (cluster.now_s - start_s)
    report(
        directory,
        Cost(
            group_us=1e6 * cluster.spent_s["group"] / (cluster.num_retired - before),
            beat_us=1e6 * cluster.spent_s["beat"] / node_seconds,
            tick_us=1e6 * cluster.spent_s["tick"] / node_seconds,
            join_us=1e6 * join_s / int(num_nodes),
        ),
    )


def roles(num_nodes: int) -> dict[str, Role]:
    """Role of each node by name: one trainer, `SHARE_OF_ROLLOUTS` rollouts, and reward nodes."""
    num_rollouts = round(SHARE_OF_ROLLOUTS * num_nodes)
    nodes: dict[str, Role] = {f"rollout.{i}": "rollout" for i in range(num_rollouts)}
    nodes |= {f"reward.{i}": "reward" for i in range(num_nodes - num_rollouts - 1)}
    return nodes | {TRAINER: "trainer"}


def halves(lease: Lease, policy_version: int, spool: str = SPOOL) -> list[list[StoredItem]]:
    """Stored trajectories of a lease in two halves, the second of which may be missing if there is only one."""
    ref = SpoolRef(spool, 0, 0, 20_000, 0)
    summary = replace(SUMMARY, oldest_version=policy_version, newest_version=policy_version)
    middle = (len(lease.indices) + 1) // 2
    parts = [part for part in (lease.indices[:middle], lease.indices[middle:]) if part]
    return [
        [
            StoredItem(Unit(lease.group_id, index, lease.split), lease.lease_id, ref, summary, lease.permit)
            for index in part
        ]
        for part in parts
    ]


def verdicts(grade: Grade) -> Scored:
    """A reward of 1 for every trajectory."""
    return Scored([ScoredItem(item.unit, 1.0, {"correct": 1.0}, item.lease_id) for item in grade.items])


def _config(directory: Path, groups_per_step: int) -> Config:
    train = directory / "train.jsonl"
    train.write_text(f'{{"prompt": "{PROMPT_TEXT}", "answer": "1"}}\n' * 64)
    return decode(
        {
            "run": {"steps": 1_000_000},
            "model": {"path": "model"},
            "data": {"train": str(train)},
            "schedule": {"groups_per_step": groups_per_step, "group_size": GROUP_SIZE, "staleness": 1},
            "sampling": {"max_tokens": 2048},
        }
    )


class Cluster:
    """A scheduler with simulated nodes."""

    def __init__(self, num_nodes: int, directory: Path) -> None:
        self._roles = roles(num_nodes)
        self.num_rollouts = sum(role == "rollout" for role in self._roles.values())
        config = _config(directory, self.num_rollouts)
        self._scheduler = Scheduler(config, train_stream(config.data, 0), [], broker_term=1)
        self._random = random.Random(num_nodes)
        self._limits: Counter[str] = Counter()
        self._beats = [_encode(name, Beat()) for name in (SPOOL, *self._roles)]
        self._to_broker: list[EncodedMessage] = []
        """Messages to handle in the next turn."""
        self._due: defaultdict[int, list[EncodedMessage]] = defaultdict(list)
        """Messages by the turn in which the broker receives them."""
        self._turn = 0
        self._step = 0
        self._has_batch = False
        self._live_version = -1
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        """CPU seconds inside the scheduler by kind of work."""

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self._turn * TICK_S

    @property
    def num_retired(self) -> int:
        return self._scheduler.window.num_retired

    def start(self) -> None:
        """All nodes join, the trainer last, and the trainer publishes version 0."""
        start_s = time.process_time()
        for name, role in {SPOOL: "spool", **self._roles}.items():
            self._scheduler.joined(_peer(name), Hello(PROTOCOL, role, name, INCARNATION), self.now_s)
            if role in ("rollout", "trainer"):
                self._scheduler.handle(_peer(name), Ready(), self.now_s)
        self.spent_s["join"] += time.process_time() - start_s
        for name, role in self._roles.items():
            if role != "trainer":
                self._offer(name, CAPACITY if role == "rollout" else 2 * CAPACITY)
        self._send(TRAINER, Publishing(0, 0), Take(0))

    def turn(self) -> None:
        """Simulate `TICK_S` seconds."""
        self._turn += 1
        due, self._to_broker = self._to_broker + self._due.pop(self._turn, []), []
        self._random.shuffle(due)
        self._handle("group", due)
        if self._turn % TURNS_A_BEAT == 0:
            self._handle("beat", self._beats)
        start_s = time.process_time()
        self._scheduler.tick(self.now_s)
        self.spent_s["tick"] += time.process_time() - start_s
        self._deliver(self._scheduler.out.drain()[0])

    def _handle(self, kind: str, encoded: list[EncodedMessage]) -> None:
        """Handle messages as `BrokerActor` does, and add the CPU time to ``kind``."""
        now_s, scheduler = self.now_s, self._scheduler
        for first in range(0, len(encoded), AT_ONCE):
            messages = [(one.peer, _decoder.decode(one.frame)) for one in encoded[first : first + AT_ONCE]]
            replies: list[OutgoingMessage] = []
            start_s = time.process_time()
            for peer, message in messages:
                if not scheduler.refuses(peer, message):
                    scheduler.handle(peer, message, now_s)
                replies += scheduler.out.drain()[0]
            self.spent_s[kind] += time.process_time() - start_s
            self._deliver(replies)

    def _deliver(self, replies: list[OutgoingMessage]) -> None:
        for outgoing in replies:
            self._answer(outgoing.peer.removesuffix(f".{INCARNATION}"), outgoing.message)

    def _answer(self, name: str, message: Message) -> None:
        match message:
            case Lease():
                node = self._scheduler.nodes.get(_peer(name))
                for items in halves(message, node.policy_version if node else 0):
                    turn = self._turn + self._random.randint(1, LONGEST_TURNS)
                    self._due[turn].append(_encode(SPOOL, Stored(name, INCARNATION, items)))
            case Settled(items=items):
                self._offer(name, len(items))
            case Grade(items=items):
                self._send(name, verdicts(message))
                self._offer(name, len(items))
            case Transfer(transfer_group=transfer_group, policy_version=version):
                self._send(name, Transferred(transfer_group, version, 0.1, 100))
                if name != TRAINER:
                    self._due[self._turn + 2].append(_encode(name, Live(version, 0.01, 0.1)))
            case Batch():
                self._has_batch = True
                self._train()
            case Published(policy_version=version):
                self._live_version = version
                self._train()

    def _train(self) -> None:
        """Train one step if its batch has arrived and the previous version is live."""
        if self._has_batch and self._live_version >= self._step:
            self._has_batch = False
            self._send(TRAINER, Commit(self._step, "nowhere"))
            self._step += 1
            self._send(TRAINER, Publishing(self._step, self._step), Take(self._step))

    def _offer(self, name: str, num: int) -> None:
        self._limits[name] += num
        self._send(name, Offer(self._limits[name]))

    def _send(self, name: str, *messages: Message) -> None:
        self._to_broker += [_encode(name, message) for message in messages]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)


def _encode(name: str, message: Message) -> EncodedMessage:
    return EncodedMessage(_peer(name), _encoder.encode(message))


def _peer(name: str) -> str:
    return f"{name}.{INCARNATION}"


CHILDREN = {"play": play}
