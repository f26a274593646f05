"""
A simulated cluster under virtual time around the real `Scheduler`.

    SimulatedRollout ─Stored─▶                     ─Grade─▶ SimulatedReward
    SimulatedTrainer ─Take, Publishing─▶ SCHEDULER ─Lease, Batch, Transfer─▶ ...

Messages arrive at once and are never lost. The broker's own rules decide which rollout samples which group, what a step
takes, when a version is live and when the window admits a group. The scheduler's timers are not run: no node is late.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from asyncrl.actor.message import Message
from asyncrl.broker.ledger.records import Restarted
from asyncrl.broker.scheduler import Scheduler
from asyncrl.data.prompts import Draw, PromptStream
from asyncrl.messages.reward import Grade, Scored, ScoredItem
from asyncrl.messages.rollout import Offer
from asyncrl.messages.session import Hello
from asyncrl.messages.spool import SpoolRef, Stored, StoredItem
from asyncrl.messages.trajectory import Prompt, Span, Unit
from asyncrl.messages.wire import PROTOCOL, ToBroker
from asyncrl.messages.words import Role
from asyncrl.plan.lengths import Lengths
from asyncrl.plan.sections import Plan
from asyncrl.plan.simulated.event_queue import EventQueue

SPOOL = "spool.0"
NOWHERE = SpoolRef("spool", 0, 0, 0, 0)
ENDLESS = 2**62
"""Credits of the reward, which grades any number of trajectories at once."""


class SimulatedNode(Protocol):
    def handle(self, message: Message) -> None:
        """Handle a message of the broker."""


class Prompts(PromptStream):
    """An endless stream of placeholder prompts."""

    def __init__(self) -> None:
        self._limit = None
        self._prompt = Prompt(text="planned")

    def at(self, group_id: int) -> Draw:
        return Draw(group_id, 0, group_id, self._prompt)

    def __repr__(self) -> str:
        return "<Prompts of a plan>"


class SimulatedReward:
    """Grades each trajectory with reward 0 in a fixed time: ``at_once`` of them, or any number if that is 0."""

    def __init__(self, cluster: "Cluster", seconds: float, at_once: int = 0) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._free_s = [0.0] * at_once
        """Heap of the times at which each of the calls is free for what comes next."""
        self._peer = cluster.join(self, "reward", "reward")
        cluster.send(self._peer, Offer(ENDLESS))

    def handle(self, message: Message) -> None:
        if not isinstance(message, Grade):
            return
        scored = [ScoredItem(item.unit, 0.0, {}, item.lease_id) for item in message.items]
        if not self._free_s:
            self._answer(self._seconds, scored)
            return
        now_s = self._cluster.events.now_s
        for item in scored:
            ends_s = max(self._free_s[0], now_s) + self._seconds
            heapq.heapreplace(self._free_s, ends_s)
            self._answer(ends_s - now_s, [item])

    def _answer(self, seconds: float, scored: list[ScoredItem]) -> None:
        self._cluster.after(seconds, lambda: self._cluster.send(self._peer, Scored(scored)))


class Cluster:
    """The scheduler and its connections to the simulated nodes, for a run of ``steps`` optimizer steps."""

    def __init__(self, plan: Plan, steps: int, lengths: Lengths) -> None:
        self.plan = plan
        self.events = EventQueue()
        self.scheduler = Scheduler(plan.run_config(steps), Prompts(), [], broker_term=1)
        self._lengths = lengths
        self._nodes: dict[str, SimulatedNode] = {}
        self._inbox: deque[tuple[str, ToBroker]] = deque()
        self._is_handling = False
        self.spans: dict[Unit, list[Span]] = {}
        """Spans of stored trajectories that are not trained on yet."""
        self.num_restarted = 0
        """Groups sampled again because they were too old."""
        self.scheduler.joined(SPOOL, Hello(PROTOCOL, "spool", "spool", "0"), 0.0)

    def join(self, node: SimulatedNode, role: Role, name: str) -> str:
        """Let a node join. Returns its peer name."""
        peer = f"{name}.0"
        self._nodes[peer] = node
        self.scheduler.joined(peer, Hello(PROTOCOL, role, name, "0"), self.events.now_s)
        return peer

    def send(self, peer: str, *messages: ToBroker) -> None:
        """Send messages to the broker. Messages that a node sends while it handles one are queued."""
        self._inbox.extend((peer, message) for message in messages)
        if self._is_handling:
            return
        self._is_handling = True
        while self._inbox:
            self.scheduler.handle(*self._inbox.popleft(), self.events.now_s)
            outbox, records, _ = self.scheduler.drain()
            self.num_restarted += sum(isinstance(record, Restarted) for record in records)
            for outgoing in outbox:
                if node := self._nodes.get(outgoing.peer):
                    node.handle(outgoing.message)
        self._is_handling = False

    def store(self, node: str, item: StoredItem, spans: list[Span]) -> None:
        """Report a trajectory of ``node`` as stored by the spool."""
        self.spans[item.unit] = spans
        self.send(SPOOL, Stored(node, "0", [item]))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Call ``do`` after ``seconds``, at once if that is 0."""
        if seconds:
            self.events.after(seconds, do)
        else:
            do()

    def lengths_of(self, group_id: int, indices: Collection[int]) -> list[int]:
        """Completion tokens of some trajectories of a group; they depend on the seed and the group alone."""
        rng = random.Random(f"{self.plan.horizon.seed}/{group_id}")
        lengths = self._lengths.group(rng, self.plan.schedule.group_size)
        return [lengths[index] for index in indices]
