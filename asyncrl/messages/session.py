"""
The session of a node: it joins, shows that it is alive, takes turns at shared devices, and leaves.

    node ──Hello──▶ BROKER ──Welcome──▶ node ──Ready, Beat …──▶ BROKER ──Stop──▶ node ──Bye──▶ BROKER
"""

from typing import Literal

from asyncrl.messages import bounds
from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.files import ModelFiles
from asyncrl.messages.spool import Permit, SpoolAddress, SpoolSet
from asyncrl.messages.token_ids import TokenIds
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.words import EVERY, JOIN, MEMBERS, Activity, Listed, Role, Unenforced, WeightsVia

TRAINER_GROUP = "trainer-"
"""Beginning of the names of rendezvous between machines of a trainer. The others are numbers of transfer groups."""


class Held(Value, frozen=True):
    """A trajectory of an earlier session that a rollout still samples, or has not seen settled."""

    unit: Unit
    lease_id: int
    oldest_version: int
    """Oldest version in its tokens, or the version it will start with."""
    permit: Permit = Permit()
    """That of its lease."""


def process_of(incarnation: str) -> str:
    """Process in an incarnation, ``TIME-PROCESS``; empty if there is none."""
    return incarnation.partition("-")[2]


@sent(by=JOIN, to="broker")
@sent(by="shard", to="trainer")
class Hello(Message, frozen=True):
    """The first message of a session."""

    protocol: int
    role: Role
    node: str
    incarnation: str
    """Unique for each session; two sessions of one node are different peers."""
    held: Listed[Held] = []
    """Rollouts: trajectories kept from an earlier session. The broker answers `Cancelled` for unwanted ones."""
    policy_version: int = -1
    """Rollouts: version that the engine decodes with since an earlier session; -1 for none."""
    run_id: str = ""
    """Run of the node's earlier session; empty if there was none. The broker of another run refuses the node."""
    host: str = ""
    """Name of the machine, for messages about it."""
    spool: SpoolAddress | None = None
    """Spools: where it serves. Its name is that of the node."""
    only_asks: bool = False
    """True for a session that wants the `Welcome` alone, for the configuration in it: it joins nothing, and leaves."""

    @property
    def process(self) -> str:
        """Process that all sessions with it are of, on whatever machine; empty if the incarnation does not tell."""
        return process_of(self.incarnation)

    def out_of_bounds(self) -> str:
        return (
            bounds.name("node", self.node)
            or bounds.name("incarnation", self.incarnation)
            or ("run_id is too long" if len(self.run_id) > bounds.MAX_RUN_ID_CHARS else "")
            or (bounds.name("host", self.host) if self.host else "")
            or self._spool_out_of_bounds()
        )

    def _spool_out_of_bounds(self) -> str:
        spool = self.spool
        if (spool is None) == (self.role == "spool"):
            return "a spool says where it serves, and other roles do not"
        if spool is None:
            return ""
        if spool.name != self.node:
            return f"spool is named {spool.name[:40]!r}, expected the name of its node"
        too_long = f"key has {n} bytes" if (n := len(spool.key)) > bounds.MAX_KEY_BYTES else ""
        return bounds.name("address", spool.address) or too_long


@sent(by="broker", to=EVERY)
@sent(by="trainer", to="shard")
class Welcome(Message, frozen=True):
    """Answer to `Hello`."""

    broker_term: int
    """Number of broker starts of this run."""
    run_dir: str
    """Run directory, a path on the broker's machine."""
    config: bytes
    """Resolved configuration of the run, as JSON."""
    spools: SpoolSet
    """Addresses with host ``*`` are on the host at which the node reached the broker."""
    beat_s: float
    """Seconds between two heartbeats."""
    run_id: str = ""
    """Identity of the run, made when it was created."""
    models: list[ModelFiles] = []
    """Model directories of the configuration, as far as the broker's machine has them."""
    permit_key: bytes = b""
    """Key of `asyncrl.messages.permit`, for spools alone."""


@sent(by="broker", to=EVERY)
@sent(by="trainer", to="shard")
class Reject(Message, frozen=True):
    """Refusal of a `Hello`."""

    reason: str


@sent(by=MEMBERS, to="broker")
class Ready(Message, frozen=True):
    """The node has loaded its model and can take part."""

    layout_hash: str = ""
    """Trainer and rollout: digest of the weight layout (names, shapes, dtypes); a mismatch is refused at once."""
    ranks: int = 1
    """See `Member`."""
    vocab_size: int = 0
    """Trainer and rollout: that of its `TokenIds`; 0 if the node cannot tell. The trainer's counts."""
    weights: WeightsVia = "collective"
    """Rollouts: way by which weights reach it."""
    num_sampled: int = 0
    """Trainer and rollout: ids that its `TokenIds` let be sampled."""
    ids_digest: str = ""
    """Trainer and rollout: digest of its `TokenIds`; a mismatch is refused as that of layouts. Empty if unknown."""

    @classmethod
    def of(cls, ids: TokenIds, layout_hash: str, ranks: int = 1, weights: WeightsVia = "collective") -> "Ready":
        """The message of a node whose model has these ids."""
        return cls(layout_hash, ranks, ids.vocab_size, weights, ids.num_sampled, ids.digest)

    def out_of_bounds(self) -> str:
        if not 1 <= self.ranks <= bounds.MAX_RANKS:
            return f"ranks is {self.ranks}"
        if problem := bounds.count("vocab_size", self.vocab_size) or bounds.count("num_sampled", self.num_sampled):
            return problem
        digests = {"layout_hash": self.layout_hash, "ids_digest": self.ids_digest}
        too_long = (name for name, digest in digests.items() if len(digest) > bounds.MAX_NAME_CHARS)
        return next((f"{name} has {len(digests[name])} characters" for name in too_long), "")


def difference_of_models(found: Ready, expected: Ready) -> str:
    """Difference between the models of two nodes, and what to do about it; empty if what both tell is equal."""
    if "" not in (found.layout_hash, expected.layout_hash) and found.layout_hash != expected.layout_hash:
        return (
            f"weight layouts {found.layout_hash[:12]} and {expected.layout_hash[:12]} differ; give both the same "
            f"model.path"
        )
    if "" not in (found.ids_digest, expected.ids_digest) and found.ids_digest != expected.ids_digest:
        own, other = (f"{one.num_sampled} ({one.ids_digest[:12]})" for one in (found, expected))
        return (
            f"the token ids that can be sampled, {own} and {other}, differ; give both the same model.path, and one "
            f"version of transformers"
        )
    return ""


@sent(by="broker", to=("spool", "rollout", "reward"))
class Barred(Message, frozen=True):
    """The node gets no work for ``pause_s`` seconds, because it fails what others do not."""

    cause: str
    pause_s: float


class ModelUse(Value, frozen=True):
    """Use of one model of ``[models]`` by a node, since the start of its role."""

    requests: int = 0
    """Requests of the node's code."""
    cached: int = 0
    """Requests of these that an earlier answer, or that of an equal one, has answered."""
    repeated: int = 0
    """Attempts that were not the first of their request."""
    failed: int = 0
    """Requests without an answer that can be used."""
    seconds: float = 0.0
    """Time of the requests that were sent, with the wait for their turn."""
    tokens: int = 0
    """Tokens of their prompts and answers, as the server counts them."""

    def out_of_bounds(self) -> str:
        return bounds.numbers(self)


class ContainerCounts(Value, frozen=True):
    """Containers of a rollout's episodes."""

    leased: int = 0
    """Containers that episodes have."""
    warm: int = 0
    """Containers that are ready for one."""
    oldest_s: float = 0.0
    """Seconds since the oldest was leased; 0 without any."""
    started: int = 0
    """Started so far."""
    failed: int = 0
    """Starts so far that failed."""
    seconds: float = 0.0
    """Seconds so far for which episodes have had them, added up."""

    def out_of_bounds(self) -> str:
        return bounds.numbers(self)


class MachineUse(Value, frozen=True):
    """Use of a node's machine in shares of 1; 0 where the system does not tell."""

    memory: float = 0.0
    device_memory: float = 0.0
    """Memory of the device that the process computes on, as far as torch has taken it for this process."""
    disk: float = 0.0
    """Disk with the process's working folder."""
    device_busy: float = 0.0
    """Time in which the device computed something for any process, of the last moments, as its driver tells."""

    def out_of_bounds(self) -> str:
        return bounds.numbers(self)


@sent(by=EVERY, to="broker")
@sent(by="shard", to="trainer")
class Beat(Message, frozen=True):
    """Heartbeat. It says that the node lives; that ``progress`` grows says that it works."""

    lag_s: float = 0.0
    """Delay of the event loop in sending it, in seconds."""
    seconds: dict[Activity, float] = {}
    """Seconds by activity since the start of the role, which they add up to."""
    tokens: int = 0
    """Tokens generated or trained since the start of the role."""
    memory_stall: float = 0.0
    """Share of the last 10 seconds in which some process of the machine waited for memory."""
    buckets: int = 0
    """Trainers: buckets of weights sent in the current or last transfer."""
    decode_steps: float = 0.0
    """Rollouts: decode steps of the engine since the start of the role; asyncrl/rollout/engine_calls.py."""
    cores_busy: float = 0.0
    """Share of the time since the last one in which the cores of the machine were busy, with any process."""
    doing: Activity | Literal[""] = ""
    """Activity at this moment; empty before the role has begun."""
    progress: int = 0
    """
    Work since the start of the role, in units of its own that grow while it works: tokens computed by an engine;
    micro-batches, buckets and steps of a trainer.
    """
    cores: float = 0.0
    """Rollouts and trainers: cores that the node's processes used since the last one, on average."""
    models: dict[str, ModelUse] = {}
    """Rollouts and reward nodes: use of each model of ``[models]``."""
    containers: ContainerCounts | None = None
    """Rollouts whose episodes have containers."""
    machine: MachineUse | None = None
    unenforced: list[Unenforced] = []
    """Rollouts: forms of replies that their agent programs have asked for, and that nothing enforces."""

    def out_of_bounds(self) -> str:
        return (
            bounds.seconds("lag_s", self.lag_s)
            or next((found for name, value in self.seconds.items() if (found := bounds.seconds(name, value))), "")
            or bounds.seconds("memory_stall", self.memory_stall)
            or bounds.count("tokens", self.tokens)
            or bounds.seconds("decode_steps", self.decode_steps)
            or bounds.seconds("cores_busy", self.cores_busy)
            or bounds.count("progress", self.progress)
            or bounds.seconds("cores", self.cores)
            or (self.containers.out_of_bounds() if self.containers else "")
            or (self.machine.out_of_bounds() if self.machine else "")
            or self._models_out_of_bounds()
        )

    def _models_out_of_bounds(self) -> str:
        if (number := len(self.models)) > bounds.MAX_METRICS:
            return f"models has {number} entries"
        return next(
            (
                found
                for name, use in self.models.items()
                if (found := bounds.name("a name of models", name) or use.out_of_bounds())
            ),
            "",
        )


@sent(by="supervisor", to="broker")
@sent(by="broker", to=("rollout", "reward", "trainer"))
class Drain(Message, frozen=True):
    """
    To the broker: make ``node`` leave, then answer `Drained`. To the node: leave, after a rollout has stored its
    unfinished trajectories and a trainer its last step. To a trainer about another machine: store the last step.
    """

    node: str


@sent(by=("rollout", "trainer", "machine"), to="broker")
class Draining(Message, frozen=True):
    """
    The rollout stores its unfinished trajectories and leaves; it takes no more leases.

    From a machine of a trainer of several: it is to leave, and waits until a checkpoint contains the steps done. From
    their trainer, once that is so: it trains no further.
    """


@sent(by="broker", to=EVERY)
@sent(by="trainer", to="shard")
class Stop(Message, frozen=True):
    """The run is over, or this node must leave: stop work, send `Bye`, exit."""

    reason: str
    failed: bool = False


ORPHANED = "the process that started it has died"
"""Reason of a `Bye` for which nobody has asked: the run counts the node as lost."""


@sent(by=EVERY, to=("broker", "spool"), shown="reason")
class Bye(Message, frozen=True):
    """The node leaves on purpose, or because it is `ORPHANED`, with nothing unfinished."""

    reason: str

    @property
    def is_on_purpose(self) -> bool:
        return self.reason != ORPHANED

    def out_of_bounds(self) -> str:
        return bounds.reason(self.reason)


def _closed_to(sender: Role, group: str) -> str:
    is_closed = sender == "rollout" and group.startswith(TRAINER_GROUP)
    return "a rollout may not take part in the rendezvous of a trainer's machines" if is_closed else ""


@sent(by=MEMBERS, to="broker")
@sent(by="shard", to="trainer")
class StoreSet(Message, frozen=True):
    """Rendezvous of a process group: set a key."""

    group: str
    key: str
    value: bytes

    def out_of_bounds(self) -> str:
        num_bytes = len(self.value)
        too_large = f"the value has {num_bytes} bytes" if num_bytes > bounds.MAX_VALUE_BYTES else ""
        return bounds.name("group", self.group) or bounds.name("key", self.key) or too_large

    def forbidden_to(self, sender: Role) -> str:
        return _closed_to(sender, self.group)


@sent(by=MEMBERS | {"machine"}, to="broker")
@sent(by="shard", to="trainer")
class StoreGet(Message, frozen=True):
    """Rendezvous of a process group: answer with `StoreValue` once the key is set."""

    group: str
    key: str

    def out_of_bounds(self) -> str:
        return bounds.name("group", self.group) or bounds.name("key", self.key)

    def forbidden_to(self, sender: Role) -> str:
        return _closed_to(sender, self.group)


@sent(by="broker", to=MEMBERS | {"machine"})
@sent(by="trainer", to="shard")
class StoreValue(Message, frozen=True):
    """Answer to `StoreGet`."""

    group: str
    key: str
    value: bytes


@sent(by="broker", to="rollout")
class Sleep(Message, frozen=True):
    """The trainer waits for the shared devices: take the requests out of the engine, free its memory, and answer."""


@sent(by=MEMBERS, to="broker")
class Asleep(Message, frozen=True):
    """No memory of the node is on the devices that trainer and rollouts share, from now until `Wake`."""

    seconds: float = 0.0
    """Time to free the memory."""
    num_bytes: int = 0
    """Bytes moved to host memory."""

    def out_of_bounds(self) -> str:
        return bounds.seconds("seconds", self.seconds) or bounds.count("num_bytes", self.num_bytes)


@sent(by=MEMBERS, to="broker")
class AskTurn(Message, frozen=True):
    """The node sleeps, and waits for its turn at the shared devices."""


@sent(by="broker", to=MEMBERS)
class Wake(Message, frozen=True):
    """The shared devices are the node's, until it answers a `Sleep`; a trainer's until the end of its step."""
