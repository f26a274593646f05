"""
A whole cluster under virtual time around the real `Scheduler`.

    SimulatedRollout ─Stored─▶                     ─Grade─▶ SimulatedReward
    SimulatedTrainer ─Take, Publishing─▶ SCHEDULER ─Lease, Batch, Transfer─▶ ...

Links take no time and lose nothing; every rule that decides who samples what, what a step takes, when a version is live
and when the window frees is the broker's own. Time is not told to it beyond what messages carry: nobody is ever late.
"""

import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

from asyncrl.broker.scheduler import Scheduler
from asyncrl.data.prompts import Draw, PromptStream
from asyncrl.messages import (
    PROTOCOL,
    Hello,
    Message,
    Offer,
    Prompt,
    Role,
    Scored,
    ScoredItem,
    Span,
    SpoolRef,
    Stored,
    StoredItem,
    ToBroker,
    Unit,
)
from asyncrl.messages import Grade as GradeMessage
from asyncrl.plan.lengths import Lengths
from asyncrl.plan.numbers import Plan
from asyncrl.plan.simulated.agenda import Agenda

SPOOL = "spool.0"
NOWHERE = SpoolRef("spool", 0, 0, 0, 0)
ENDLESS = 2**62
"""Credits of the reward: it judges any number at once."""


class SimulatedNode(Protocol):
    """What answers the broker."""

    def take(self, message: Message) -> None:
        """One message from it."""


class Prompts(PromptStream):
    """An endless stream of prompts nobody reads."""

    def __init__(self) -> None:
        self._limit = None
        self._prompt = Prompt(text="planned")

    def at(self, group_id: int) -> Draw:
        """See `PromptStream`."""
        return Draw(group_id, 0, group_id, self._prompt)

    def __repr__(self) -> str:
        return "<Prompts of a plan>"


class SimulatedReward:
    """Judges what it is given, a while later."""

    def __init__(self, cluster: "Cluster", seconds: float) -> None:
        self._cluster = cluster
        self._seconds = seconds
        self._peer = cluster.join(self, "reward", "reward")
        cluster.say(self._peer, Offer(ENDLESS))

    def take(self, message: Message) -> None:
        """See `SimulatedNode`."""
        if isinstance(message, GradeMessage):
            verdict = Scored([ScoredItem(item.unit, 0.0, {}, item.lease_id) for item in message.items])
            self._cluster.soon(self._seconds, lambda: self._cluster.say(self._peer, verdict))


class Cluster:
    """
    The broker and its links. Nodes join, say things, and are told things.

    Args:
        steps: Optimizer steps the run is to have.
        lengths: Where completion lengths come from; a group has the same whatever else happens.
    """

    def __init__(self, plan: Plan, steps: int, lengths: Lengths) -> None:
        self.plan = plan
        self.agenda = Agenda()
        self.scheduler = Scheduler(plan.run_config(steps), Prompts(), [], broker_term=1)
        self._lengths = lengths
        self._nodes: dict[str, SimulatedNode] = {}
        self._said: deque[tuple[str, ToBroker]] = deque()
        self._is_listening = False
        self.spans: dict[Unit, list[Span]] = {}
        """Of what is stored and not yet trained on."""
        self.scheduler.joined(SPOOL, Hello(PROTOCOL, "spool", "spool", "0"), 0.0)

    def join(self, node: SimulatedNode, role: Role, name: str) -> str:
        """A node is there from now on. Returns what the broker calls it."""
        peer = f"{name}.0"
        self._nodes[peer] = node
        self.scheduler.joined(peer, Hello(PROTOCOL, role, name, "0"), self.agenda.now_s)
        return peer

    def say(self, peer: str, *messages: ToBroker) -> None:
        """To the broker, which hears one message after the other."""
        self._said.extend((peer, message) for message in messages)
        if self._is_listening:
            return
        self._is_listening = True
        while self._said:
            self.scheduler.handle(*self._said.popleft(), self.agenda.now_s)
            outbox, _, _ = self.scheduler.drain()
            for outgoing in outbox:
                if node := self._nodes.get(outgoing.peer):
                    node.take(outgoing.message)
        self._is_listening = False

    def store(self, node: str, item: StoredItem, spans: list[Span]) -> None:
        """A trajectory of ``node`` is on disk."""
        self.spans[item.unit] = spans
        self.say(SPOOL, Stored(node, "0", [item]))

    def soon(self, seconds: float, do: Callable[[], None]) -> None:
        """After a while; at once if that is no time."""
        if seconds:
            self.agenda.after(seconds, do)
        else:
            do()

    def lengths_of(self, group_id: int, indices: Collection[int]) -> list[int]:
        """Completion tokens of some of a group: a function of the seed and the group alone."""
        rng = random.Random(f"{self.plan.horizon.seed}/{group_id}")
        lengths = self._lengths.group(rng, self.plan.schedule.group_size)
        return [lengths[index] for index in indices]
