"""
A fake cluster around a real Scheduler, without sockets, clocks or tensors: links, a spool, a ledger, and nodes that
behave like real ones, one action at a time. The caller chooses each next action or fault.

    Cluster.actions() ─▶ [(name, do it), ...] ─▶ the caller picks one ─▶ check what must always hold ─▶ again

A link keeps its order and loses nothing until an end dies; different links are as slow as the caller likes. Reports of
the spool arrive in any order, and twice if a rollout puts a trajectory again. Messages that must wait for the ledger
leave with the action "commit".
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from asyncrl.broker.ledger.records import AnyRecord
from asyncrl.broker.outbox import Event, OutgoingMessage
from asyncrl.broker.replay import replay
from asyncrl.broker.scheduler import Scheduler
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.data.prompts import Draw
from asyncrl.errors import RunFailed
from asyncrl.messages.codec import Message
from asyncrl.messages.permit import Permits
from asyncrl.messages.reward import Grade, GradeItem, Scored, ScoredItem
from asyncrl.messages.rollout import Cancelled, Failed, Hold, Lease, Offer, Release, Settled
from asyncrl.messages.session import Beat, Bye, Hello, Ready
from asyncrl.messages.spool import Permit, SpoolAddress, SpoolRef, Spools, Stored, StoredItem
from asyncrl.messages.trainer import Batch, Commit, Refusal, ScoredTrajectory, Shortened, Stepped, Take
from asyncrl.messages.trajectory import Prompt, TrajectorySummary, Unit
from asyncrl.messages.weights import Live, Published, Publishing, Transfer, TransferFailed, Transferred
from asyncrl.messages.wire import PROTOCOL
from asyncrl.messages.words import Role, Stage

N = TypeVar("N", bound="Node")
Action = tuple[str, Callable[[], object]]
SPOOL = "spool.0"

DAMAGED = "impossible log-prob: nan at position 3, expected -1000 .. 0"
PERMITS = Permits(b"of every fake cluster")
STAGES: tuple[Stage, ...] = ("reward", "payload")
"""Stages at which a reward node fails."""
ROWS = 10
"""Rows of the fake dataset."""


def a_config(**sections: dict[str, object]) -> Config:
    """Four steps of two groups of two trajectories, without evaluation, unless ``sections`` say otherwise."""
    defaults: dict[str, dict[str, object]] = {
        "run": {"steps": 4},
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "schedule": {"groups_per_step": 2, "group_size": 2},
    }
    return decode({name: defaults.get(name, {}) | sections.get(name, {}) for name in {**defaults, **sections}})


class Prompts:
    num_rows = ROWS

    def place(self, group_id: int) -> tuple[int, int]:
        return divmod(group_id, ROWS)

    def at(self, group_id: int) -> Draw:
        epoch, row = self.place(group_id)
        return Draw(group_id, epoch, row, Prompt(text=f"question {row}", answer=str(row)))


def a_scheduler(config: Config, *, num_held_out: int = 0, broker_term: int = 1) -> Scheduler:
    held_out = [Prompt(text=f"held out {i}", answer=str(i)) for i in range(num_held_out)]
    return Scheduler(config, Prompts(), held_out, broker_term, permits=PERMITS)  # type: ignore[arg-type]


def right(unit: Unit) -> float:
    return 1.0


def told_apart(unit: Unit) -> float:
    """Reward 0 for the first trajectory of a group and 1 for the others; all 1 in every third group."""
    return float(unit.index > 0 or is_easy(unit.group_id))


def is_easy(group_id: int) -> bool:
    """True if all trajectories of this group have the same reward."""
    return group_id % 3 == 0


class Node:
    """A fake node. A subclass handles messages in `take` and offers its work as `actions`."""

    role: Role

    def __init__(self, name: str, incarnation: int = 0) -> None:
        self.name = name
        self.incarnation = str(incarnation)
        self.peer = f"{name}.{self.incarnation}"
        self.inbox: deque[Message] = deque()
        self.outbox: deque[Message] = deque([Hello(PROTOCOL, self.role, name, self.incarnation)])

    def take(self, message: Message) -> None:
        """Handle one message from the broker."""

    def actions(self) -> list[Action]:
        """Actions possible now."""
        return []

    def faults(self) -> list[Action]:
        """Faults possible now, without its death."""
        return []

    def say(self, *messages: Message) -> None:
        self.outbox.extend(messages)


class Transferring(Node):
    def __init__(self, name: str, incarnation: int = 0) -> None:
        super().__init__(name, incarnation)
        self.transfers: deque[Transfer] = deque()

    def actions(self) -> list[Action]:
        return [("transfer", self.transferred)] if self.transfers else []

    def faults(self) -> list[Action]:
        return [("break a transfer", self._break)] if self.transfers else []

    def transferred(self) -> Transfer:
        """Complete the oldest ongoing transfer."""
        transfer = self.transfers.popleft()
        self.say(Transferred(transfer.transfer_group, transfer.policy_version, 0.1, 100))
        return transfer

    def _break(self) -> None:
        transfer = self.transfers.popleft()
        self.say(TransferFailed(transfer.transfer_group, transfer.policy_version, "the peer closed the connection"))


class Rollout(Transferring):
    """Samples leased trajectories: each is finished or failed by an action, possibly after a swap."""

    role = "rollout"

    def __init__(self, name: str, incarnation: int, spool: list[Stored], capacity: int) -> None:
        super().__init__(name, incarnation)
        self._spool = spool
        self._capacity = capacity
        self._given_back = 0
        self._num_finished = 0
        self.policy_version = -1
        self.staged_version = -1
        self.is_held = False
        self.own_spool = "spool"
        self.running: dict[Unit, tuple[int, int]] = {}
        """Lease id, and the version that wrote the first token."""
        self.permits: dict[int, Permit] = {}
        self.unsettled: dict[Unit, StoredItem] = {}
        self.say(Ready("plan"))
        self._offer()

    def take(self, message: Message) -> None:
        match message:
            case Lease(lease_id=lease_id, group_id=group_id, indices=indices, split=split):
                self.permits[lease_id] = message.permit
                assert indices, "a lease of nothing"
                assert self.policy_version >= 0, "a lease before any weights"
                for index in indices:
                    self.running[Unit(group_id, index, split)] = (lease_id, self.policy_version)
            case Settled(items=items):
                for item in items:
                    if (put := self.unsettled.get(item.unit)) and put.lease_id == item.lease_id:
                        del self.unsettled[item.unit]
                        self._give_back()
            case Cancelled(lease_ids=lease_ids):
                for unit in [unit for unit, (lease_id, _) in self.running.items() if lease_id in lease_ids]:
                    del self.running[unit]
                    self._give_back()
                for unit in [unit for unit, item in self.unsettled.items() if item.lease_id in lease_ids]:
                    del self.unsettled[unit]
                    self._give_back()
            case Transfer():
                self.transfers.append(message)
            case Spools(spools=spools):
                self.own_spool = spools.own or self.own_spool
            case Hold(policy_version=version):
                assert self.policy_version == version, "held at a version it does not decode with"
                self.is_held = True
            case Release():
                self.is_held = False

    def actions(self) -> list[Action]:
        can_swap = self.staged_version > self.policy_version and not self.is_held
        return [
            *super().actions(),
            *([("swap", self.swap)] if can_swap else []),
            *((f"finish {unit}", lambda unit=unit: self.finish(unit)) for unit in self.running),
        ]

    def faults(self) -> list[Action]:
        fail = [(f"fail {unit}", lambda unit=unit: self.fail(unit)) for unit in self.running]
        return [*super().faults(), *fail, *([("put again", self.put_again)] if self.unsettled else [])]

    def transferred(self) -> Transfer:
        transfer = super().transferred()
        self.staged_version = max(self.staged_version, transfer.policy_version)
        return transfer

    def swap(self) -> None:
        """Decode with the staged version; running trajectories go on."""
        self.policy_version = self.staged_version
        self.say(Live(self.policy_version, 0.01, 0.1))

    def finish(self, unit: Unit) -> None:
        """Finish a trajectory and put it into the spool."""
        lease_id, oldest = self.running.pop(unit)
        summary = TrajectorySummary(8, 4, oldest, self.policy_version, 1 + (oldest < self.policy_version), "stop")
        self._num_finished += 1
        offset = (int(self.incarnation) << 20) + self._num_finished  # No two trajectories lie in the same place.
        ref = SpoolRef(self.own_spool, 0, offset, 8, 0)
        self.unsettled[unit] = item = StoredItem(unit, lease_id, ref, summary, self.permits[lease_id])
        self._spool.append(Stored(self.name, self.incarnation, [item]))

    def fail(self, unit: Unit) -> None:
        lease_id, _ = self.running.pop(unit)
        self.say(Failed(unit, lease_id, "rollout", "out of memory", True))
        self._give_back()

    def put_again(self) -> None:
        """Put unsettled trajectories again, as after a while without `Settled`."""
        self._spool.append(Stored(self.name, self.incarnation, list(self.unsettled.values())))

    def _give_back(self) -> None:
        self._given_back += 1
        self._offer()

    def _offer(self) -> None:
        self.say(Offer(self._given_back + self._capacity))


class Reward(Node):
    role = "reward"

    def __init__(
        self, name: str, incarnation: int = 0, capacity: int = 4, *, verdict: Callable[[Unit], float] = right
    ) -> None:
        super().__init__(name, incarnation)
        self._limit = capacity
        self._verdict = verdict
        self._calls = count()
        self.in_hand: deque[GradeItem] = deque()
        self.whole: deque[list[GradeItem]] = deque()
        """Groups to judge together."""
        self.say(Offer(self._limit))

    def take(self, message: Message) -> None:
        if isinstance(message, Grade) and message.together:
            self.whole.append(message.items)
        elif isinstance(message, Grade):
            self.in_hand.extend(message.items)

    def actions(self) -> list[Action]:
        judge: list[Action] = [("judge", self.judge)] if self.in_hand else []
        group: list[Action] = [("judge a group", self.judge_group)] if self.whole else []
        return judge + group

    def faults(self) -> list[Action]:
        one: list[Action] = [("fail a grading", self.fail), ("refuse a payload", self.refuse)] if self.in_hand else []
        group: list[Action] = [
            ("fail a group", self.fail_group),
            *(("fail in a group", partial(self.fail_in_group, s)) for s in STAGES),
        ]
        return one + (group if self.whole else [])

    def judge(self) -> None:
        """Reward the oldest trajectory."""
        self._done(Scored([self._scored(self.in_hand.popleft())]))

    def judge_group(self) -> None:
        """Reward all trajectories of the oldest group, in a call with a number of its own."""
        items, call = self.whole.popleft(), {"call": float(f"{self.incarnation}{next(self._calls):04}")}
        self._done(Scored([self._scored(item, call) for item in items]), len(items))

    def fail_group(self) -> None:
        items = self.whole.popleft()
        failed = Failed(items[0].unit, items[0].lease_id, "reward", "the group function raised", True, is_of_group=True)
        self._done(failed, len(items))

    def fail_in_group(self, stage: Stage) -> None:
        """Find that the last trajectory of the oldest group cannot be judged."""
        items = self.whole.popleft()
        self._done(Failed(items[-1].unit, items[-1].lease_id, stage, DAMAGED, True), len(items))

    def _scored(self, item: GradeItem, metrics: Mapping[str, float] = {}) -> ScoredItem:
        reward = self._verdict(item.unit)
        metrics = {"correct": reward, "offset": float(item.ref.offset), **metrics}
        return ScoredItem(item.unit, reward, metrics, item.lease_id)

    def fail(self) -> None:
        item = self.in_hand.popleft()
        self._done(Failed(item.unit, item.lease_id, "reward", "the verifier raised", True))

    def refuse(self) -> None:
        """Find the oldest trajectory damaged."""
        item = self.in_hand.popleft()
        self._done(Failed(item.unit, item.lease_id, "payload", DAMAGED, True))

    def _done(self, message: Message, number: int = 1) -> None:
        self._limit += number
        self.say(message, Offer(self._limit))


class Disk:
    """State that the trainer's incarnations share."""

    def __init__(self) -> None:
        self.checkpoints: list[int] = [0]
        """Steps done in each checkpoint; the first is the base model."""
        self.batches: dict[int, Batch] = {}
        """Batch of each step, which never changes."""
        self.damaged: set[Unit] = set()
        """Trajectories of these batches that the trainer refuses, each time."""
        self.lossy: set[str] = set()
        """Spools whose payloads are damaged once the trainer reads them."""
        self.num_trained = 0
        """Steps that any trainer has done."""
        self.stepped: dict[int, list[Stepped]] = {}
        """Reports of the newest steps in each checkpoint."""


class Trainer(Transferring):
    """Takes batches one step ahead, trains and publishes; waits until the version before the last is live."""

    role = "trainer"

    def __init__(self, name: str, config: Config, incarnation: int = 0, disk: Disk | None = None) -> None:
        super().__init__(name, incarnation)
        self._config = config
        self._disk = disk or Disk()
        self._num_steps = config.run.steps
        self.next_step = self._disk.checkpoints[-1]
        self.policy_version = version_of(config, self.next_step)
        self.live_version = self.policy_version - 1
        self.batches: dict[int, Batch] = {}
        self._stepped = deque(self._disk.stepped.get(self.next_step, []), maxlen=config.checkpoint.every_steps + 2)
        self.consumed: list[tuple[int, ScoredTrajectory]] = []
        """Version and trajectory, for all that was trained on."""
        self.say(Ready("plan"), Publishing(self.policy_version, self.next_step))
        self.say(*self._stepped)
        if self.next_step:
            self.say(Commit(self.next_step - 1, f"step_{self.next_step:06d}"))
        if self.next_step < config.run.steps:
            self.say(Take(self.next_step))

    def take(self, message: Message) -> None:
        match message:
            case Batch(step=step):
                self.batches[step] = message
                trajectories = [replace(one, refused="") for one in message.trajectories]
                same = replace(message, trajectories=trajectories, ledger_records=0, ledger_head="")
                assert self._disk.batches.setdefault(step, same) == same, "a step has one batch for ever"
            case Published(policy_version=version):
                self.live_version = max(self.live_version, version)
            case Transfer():
                self.transfers.append(message)
            case Shortened(steps=steps):
                self._num_steps = steps
                if self.next_step == steps > self._disk.checkpoints[-1]:
                    self._save()

    def actions(self) -> list[Action]:
        can_train = self.next_step in self.batches and self.live_version >= self.policy_version - 1
        return [*super().actions(), *([("train", self.train)] if can_train else [])]

    def faults(self) -> list[Action]:
        is_new = self.next_step in self.batches and self.next_step >= self._disk.num_trained
        return [*super().faults(), *([("damage a trajectory", self.damage)] if is_new else [])]

    def damage(self, place: int = 0) -> Unit:
        """Damage a trajectory of the next step, which no reward node has noticed."""
        unit = self.batches[self.next_step].trajectories[place].unit
        self._disk.damaged.add(unit)
        return unit

    def train(self) -> None:
        step, steps, version = self.next_step, self._num_steps, self.policy_version
        trajectories = self.batches.pop(step).trajectories
        refused = [Refusal(one.unit, DAMAGED) for one in trajectories if one.unit in self._disk.damaged]
        refused += [Refusal(one.unit, DAMAGED, "spool") for one in trajectories if one.ref.spool in self._disk.lossy]
        left_out = {refusal.unit.group_id for refusal in refused}
        self.consumed += [(version, one) for one in trajectories if one.unit.group_id not in left_out]
        self.next_step += 1
        self._disk.num_trained = max(self._disk.num_trained, self.next_step)
        is_last = self.next_step == steps
        if not is_last:
            self.say(Take(self.next_step))
        if is_last or self.next_step % self._config.schedule.steps_per_publish == 0:
            self.policy_version += 1
            self.say(Publishing(self.policy_version, self.next_step))
        self._stepped.append(Stepped(step, version, {"loss": 0.5}, refused))
        self.say(self._stepped[-1])
        every = self._config.checkpoint.every_steps
        if is_last or (every and self.next_step % every == 0):
            self._save()

    def _save(self) -> None:
        steps = self.next_step
        self._disk.checkpoints.append(steps)
        self._disk.stepped[steps] = list(self._stepped)
        self.say(Commit(steps - 1, f"step_{steps:06d}"))


def version_of(config: Config, step: int) -> int:
    """Newest version published after ``step`` steps."""
    publish = config.schedule.steps_per_publish
    return -(-step // publish) if step == config.run.steps else step // publish


class Cluster:
    """
    A run.

    Args:
        before: The same run until its broker died. Its disk state is kept, its nodes are gone.

    Attributes:
        cause: Reason of the failure; empty while the run has not failed.
    """

    def __init__(self, config: Config, *, num_held_out: int = 0, before: "Cluster | None" = None) -> None:
        self.config = config
        self.now_s = 0.0
        self.broker_term: int = before.broker_term + 1 if before else 1
        self.scheduler = a_scheduler(config, num_held_out=num_held_out, broker_term=self.broker_term)
        self.nodes: dict[str, Node] = {}
        self.spool: list[Stored] = before.spool if before else []
        self.disk: Disk = before.disk if before else Disk()
        self.uncommitted: list[AnyRecord] = []
        self.unsent: list[OutgoingMessage] = []
        self.records: list[AnyRecord] = list(before.records) if before else []
        self.events: list[Event] = []
        self.cause = ""
        self.num_started: int = before.num_started if before else 0
        replay(self.scheduler, self.records)
        self.start_spool("spool")

    # ── who is there ────────────────────────────────────────────────────────────────────────

    def start_rollout(self, name: str, capacity: int = 4) -> Rollout:
        return self._start(Rollout(name, self._count(), self.spool, capacity))

    def start_reward(self, name: str) -> Reward:
        verdict = told_apart if self.config.schedule.filter == "zero_variance" else right
        return self._start(Reward(name, self._count(), verdict=verdict))

    def start_trainer(self) -> Trainer:
        """Start the trainer at the newest checkpoint."""
        return self._start(Trainer("trainer", self.config, self._count(), self.disk))

    def start_spool(self, name: str) -> None:
        """Start a spool, which acts only by what rollouts store in it."""
        hello = Hello(PROTOCOL, "spool", name, "0", spool=SpoolAddress(name, "memory"))
        self._run(lambda: self.scheduler.joined(f"{name}.0", hello, self.now_s))

    def kill(self, node: Node) -> None:
        """Kill a node without a Bye; the broker notices at once."""
        del self.nodes[node.peer]
        self._run(lambda: self.scheduler.departed(node.peer, "was killed by SIGKILL", self.now_s))

    # ── what can happen ─────────────────────────────────────────────────────────────────────

    @property
    def is_over(self) -> bool:
        return bool(self.cause) or (self.scheduler.is_finished and not self.uncommitted)

    def actions(self) -> list[Action]:
        """All actions possible next, without faults."""
        actions: list[Action] = []
        for node in self.nodes.values():
            if node.inbox:
                actions.append((f"{node.peer} hears", lambda node=node: node.take(node.inbox.popleft())))  # type: ignore[misc]
            if node.outbox:
                actions.append((f"{node.peer} is heard", lambda node=node: self.hear(node)))  # type: ignore[misc]
            actions += [(f"{node.peer}: {name}", act) for name, act in node.actions()]
        actions += [(f"spool tells {i}", lambda i=i: self.store(i)) for i in range(len(self.spool))]  # type: ignore[misc]
        if self.uncommitted or self.unsent:
            actions.append(("commit", self.commit))
        return actions

    def hear(self, node: Node) -> None:
        """The broker handles the next message of a node."""
        message = node.outbox.popleft()
        match message:
            case Hello():
                self._run(lambda: self.scheduler.joined(node.peer, message, self.now_s))
                node.take(Spools(self.scheduler.spools.told_to(node.peer)))  # as its Welcome says
            case Bye(reason=reason):
                del self.nodes[node.peer]
                self._run(lambda: self.scheduler.departed(node.peer, reason, self.now_s, on_purpose=True))
            case _:
                self._run(lambda: self.scheduler.handle(node.peer, message, self.now_s))

    def store(self, place: int = 0) -> None:
        """The broker handles one report of a spool."""
        stored = self.spool.pop(place)
        spool = stored.items[0].ref.spool if stored.items else "spool"
        self._run(lambda: self.scheduler.handle(f"{spool}.0", stored, self.now_s))

    def commit(self) -> None:
        """Commit the ledger, and deliver the messages that waited for it."""
        self.records += self.uncommitted
        unsent, self.uncommitted, self.unsent = self.unsent, [], []
        for outgoing in unsent:
            self._deliver(outgoing)

    def tick(
        self, seconds: float = 0.25, silent: Collection[str] = (), beats: Mapping[str, Beat] | None = None
    ) -> None:
        """Let time pass, with beats of all peers but ``silent``; ``beats`` has those that tell of work."""
        self.now_s += seconds
        spools = {node.peer for node in self.scheduler.nodes.with_role("spool")}
        for peer in {*spools, *self.nodes} - set(silent):
            self.scheduler.handle(peer, (beats or {}).get(peer, Beat()), self.now_s)
        self._run(lambda: self.scheduler.tick(self.now_s))

    # ── until nothing more happens ──────────────────────────────────────────────────────────

    def settle(self, pick: Callable[[Sequence[Action]], Action] = lambda actions: actions[0]) -> int:
        """Act without faults until the run is over or no action is left. Returns the number of actions."""
        count = 0
        while not self.is_over and (actions := self.actions()):
            pick(actions)[1]()
            count += 1
        return count

    def exchange(self) -> None:
        """Deliver messages and commit until none is left, without any other action."""
        while any(node.inbox or node.outbox for node in self.nodes.values()) or self.spool or self.uncommitted:
            for node in list(self.nodes.values()):
                while node.outbox:
                    self.hear(node)
                while node.inbox:
                    node.take(node.inbox.popleft())
            while self.spool:
                self.store()
            self.commit()

    def _start(self, node: N) -> N:
        self.nodes[node.peer] = node
        return node

    def _count(self) -> int:
        self.num_started += 1
        return self.num_started

    def _run(self, rules: Callable[[], object]) -> None:
        """Run scheduler code and deliver its output, like `BrokerActor`."""
        try:
            rules()
        except RunFailed as failure:
            self.cause = self.cause or str(failure)
        outbox, records, events = self.scheduler.out.drain()
        self.uncommitted += records
        self.events += events
        for outgoing in outbox:
            if outgoing.once_durable:
                self.unsent.append(outgoing)
            else:
                self._deliver(outgoing)

    def _deliver(self, outgoing: OutgoingMessage) -> None:
        if node := self.nodes.get(outgoing.peer):
            node.inbox.append(outgoing.message)
