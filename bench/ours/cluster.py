"""
The broker's rules amid a whole cluster that is only played: no socket, no disk, no waiting, a clock that is a number.

    a turn of .25 s: everybody is heard, in any order ─▶ Scheduler ─▶ everybody hears ─▶ rollouts finish what is due

Of 100 nodes 90 sample, 9 judge, 1 trains. There is a group for every rollout in a step, so a larger cluster takes
larger steps, and two steps are open: all are busy. A rollout holds two groups, and a group comes back in two halves,
after .25 to 2 s each. The trainer trains in no time, publishes every step, and writes a checkpoint of every step.

Only CPU seconds inside the scheduler are counted. Messages reach it as from a socket, made of bytes just before. What
comes with time and not with work, beats and ticks, is counted apart: ten times as many nodes beat ten times as often,
however little they do. Steps come in pairs, a short one and a long one, because two are begun at once; so pairs are
measured.
"""

import random
import time
from collections import Counter, defaultdict
from math import ceil
from pathlib import Path

import msgspec
from msgspec import Struct
from payloads import PROMPT_TEXT, SUMMARY
from processes import Processes, report

from asyncrl.actor.message import Message
from asyncrl.broker.actor import TICK_S
from asyncrl.broker.outbox import Outgoing
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config
from asyncrl.data.prompts import train_stream
from asyncrl.messages import (
    PROTOCOL,
    Batch,
    Beat,
    Commit,
    Grade,
    Hello,
    Lease,
    Live,
    Offer,
    Published,
    Publishing,
    Ready,
    Role,
    Scored,
    ScoredItem,
    Settled,
    SpoolRef,
    Stored,
    StoredItem,
    Take,
    ToBroker,
    Transfer,
    Transferred,
    Unit,
)
from asyncrl.node.broker import raise_gc_threshold

GROUP_SIZE = 8
CAPACITY = 2 * GROUP_SIZE
"""Trajectories that a rollout takes at once."""
SHARE_OF_ROLLOUTS = 0.9
LONGEST_TURNS = 8
WARM_UP_STEPS = 2
TURNS_A_BEAT = 2
AT_ONCE = 64
"""Messages that are read, then handled: few, because one that is read early is no longer in a cache when it counts."""
SPOOL, TRAINER = "spool", "trainer"
INCARNATION = "0"
PATIENCE_S = 300.0


class Said(Struct, frozen=True, gc=False):
    """A message on its way to the broker, as bytes: what is under way is not in the broker's memory."""

    peer: str
    frame: bytes


class Cost(Struct, frozen=True):
    """CPU of the scheduler, all calls of a kind together."""

    group_us: float
    """A group's whole life, from admission to retirement, and its share of publishing."""
    beat_us: float
    """One node's beats for a second."""
    tick_us: float
    """One node's share of a second's ticks."""
    join_us: float
    """One node's Hello and first words."""


async def cost(processes: Processes, num_nodes: int, num_groups: int) -> Cost:
    """What ``num_nodes`` cost while at least ``num_groups`` retire, in a process of its own."""
    child = await processes.start(__name__, "play", num_nodes, num_groups, str(processes.path))
    return await processes.result(child, Cost, PATIENCE_S)


def play(num_nodes: str, num_groups: str, directory: str) -> None:
    raise_gc_threshold()
    cluster = Cluster(int(num_nodes), Path(directory))
    cluster.begin()
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
    """By name: one trainer, and of the others nine in ten sample."""
    num_rollouts = round(SHARE_OF_ROLLOUTS * num_nodes)
    nodes: dict[str, Role] = {f"rollout.{i}": "rollout" for i in range(num_rollouts)}
    nodes |= {f"reward.{i}": "reward" for i in range(num_nodes - num_rollouts - 1)}
    return nodes | {TRAINER: "trainer"}


def halves(lease: Lease) -> list[list[StoredItem]]:
    """What comes of a lease, stored somewhere."""
    middle = (len(lease.indices) + 1) // 2
    parts = [part for part in (lease.indices[:middle], lease.indices[middle:]) if part]
    return [
        [
            StoredItem(
                Unit(lease.group_id, index, lease.split), lease.lease_id, SpoolRef(SPOOL, 0, 0, 20_000, 0), SUMMARY
            )
            for index in part
        ]
        for part in parts
    ]


def verdicts(grade: Grade) -> Scored:
    """All are right."""
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
        }
    )


class Cluster:
    """A scheduler and the nodes around it."""

    def __init__(self, num_nodes: int, directory: Path) -> None:
        self._roles = roles(num_nodes)
        self.num_rollouts = sum(role == "rollout" for role in self._roles.values())
        config = _config(directory, self.num_rollouts)
        self._scheduler = Scheduler(config, train_stream(config.data, 0), [], broker_term=1)
        self._random = random.Random(num_nodes)
        self._limits: Counter[str] = Counter()
        self._beats = [_said(name, Beat()) for name in (SPOOL, *self._roles)]
        self._said: list[Said] = []
        """On its way to the broker."""
        self._due: defaultdict[int, list[Said]] = defaultdict(list)
        """What will be said in which turn."""
        self._turn = 0
        self._step = 0
        self._has_batch = False
        self._live_version = -1
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        """CPU inside the scheduler, by what it was about."""

    @property
    def now_s(self) -> float:
        """Seconds since the beginning, as the cluster sees it."""
        return self._turn * TICK_S

    @property
    def num_retired(self) -> int:
        """Groups so far."""
        return self._scheduler.window.num_retired

    def begin(self) -> None:
        """Everybody says Hello; the trainer last, with the first weights."""
        start_s = time.process_time()
        for name, role in {SPOOL: "spool", **self._roles}.items():
            self._scheduler.joined(_peer(name), Hello(PROTOCOL, role, name, INCARNATION), self.now_s)
            if role in ("rollout", "trainer"):
                self._scheduler.handle(_peer(name), Ready(), self.now_s)
        self.spent_s["join"] += time.process_time() - start_s
        for name, role in self._roles.items():
            if role != "trainer":
                self._give_back(name, CAPACITY if role == "rollout" else 2 * CAPACITY)
        self._say(TRAINER, Publishing(0, 0), Take(0))

    def turn(self) -> None:
        """A quarter of a second."""
        self._turn += 1
        said, self._said = self._said + self._due.pop(self._turn, []), []
        self._random.shuffle(said)
        self._handle("group", said)
        if self._turn % TURNS_A_BEAT == 0:
            self._handle("beat", self._beats)
        start_s = time.process_time()
        self._scheduler.tick(self.now_s)
        self.spent_s["tick"] += time.process_time() - start_s
        self._hear(self._scheduler.drain()[0])

    def _handle(self, kind: str, said: list[Said]) -> None:
        """As the broker's shell does it, with a stop watch."""
        now_s, scheduler = self.now_s, self._scheduler
        for first in range(0, len(said), AT_ONCE):
            messages = [(one.peer, _decoder.decode(one.frame)) for one in said[first : first + AT_ONCE]]
            heard: list[Outgoing] = []
            start_s = time.process_time()
            for peer, message in messages:
                scheduler.handle(peer, message, now_s)
                heard += scheduler.drain()[0]
            self.spent_s[kind] += time.process_time() - start_s
            self._hear(heard)

    def _hear(self, heard: list[Outgoing]) -> None:
        for outgoing in heard:
            self._answer(outgoing.peer.removesuffix(f".{INCARNATION}"), outgoing.message)

    def _answer(self, name: str, message: Message) -> None:
        match message:
            case Lease():
                for items in halves(message):
                    turn = self._turn + self._random.randint(1, LONGEST_TURNS)
                    self._due[turn].append(_said(SPOOL, Stored(name, INCARNATION, items)))
            case Settled(items=items):
                self._give_back(name, len(items))
            case Grade(items=items):
                self._say(name, verdicts(message))
                self._give_back(name, len(items))
            case Transfer(transfer_group=transfer_group, policy_version=version):
                self._say(name, Transferred(transfer_group, version, 0.1, 100))
                if name != TRAINER:
                    self._due[self._turn + 2].append(_said(name, Live(version, 0.01, 0.1)))
            case Batch():
                self._has_batch = True
                self._train()
            case Published(policy_version=version):
                self._live_version = version
                self._train()

    def _train(self) -> None:
        """One step, if its batch is there and the weights it would replace are live."""
        if self._has_batch and self._live_version >= self._step:
            self._has_batch = False
            self._say(TRAINER, Commit(self._step, "nowhere"))
            self._step += 1
            self._say(TRAINER, Publishing(self._step, self._step), Take(self._step))

    def _give_back(self, name: str, num: int) -> None:
        self._limits[name] += num
        self._say(name, Offer(self._limits[name]))

    def _say(self, name: str, *messages: ToBroker) -> None:
        self._said += [_said(name, message) for message in messages]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[ToBroker] = msgspec.msgpack.Decoder(ToBroker)


def _said(name: str, message: ToBroker) -> Said:
    return Said(_peer(name), _encoder.encode(message))


def _peer(name: str) -> str:
    return f"{name}.{INCARNATION}"


CHILDREN = {"play": play}
