"""
Spools, which keep payloads on disk.

    ROLLOUT ──Put──▶ SPOOL ──Stored──▶ BROKER        SPOOL ◀──Fetch── any node
                       ▲                  │            └──Fetched──▶
                       └───────Trim───────┘
"""

from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.words import Listed


class SpoolRef(Value, frozen=True):
    """Location of a payload."""

    spool: str
    segment: int
    offset: int
    length: int
    """Size of the payload in bytes."""
    crc32: int


HOSTED_SPOOL = "spool"
"""Name of the spool in the broker's process."""


class SpoolAddress(Value, frozen=True):
    """A spool, and how to connect to it."""

    name: str
    """`SpoolRef.spool` of its payloads."""
    address: str
    key: bytes = b""
    """Public key of its socket; empty if the secret of the run opens it."""


class SpoolSet(Value, frozen=True):
    """The spools of a run, as told to one node."""

    spools: list[SpoolAddress] = []
    """Spools that can be reached."""
    own: str = ""
    """Name of the spool that this rollout stores with; empty if there is none yet, and for other roles."""
    lost: list[str] = []
    """Spools that were away for longer than ``broker.spool_ttl_s``: nobody waits for their payloads any more."""


@sent(by="broker", to=("rollout", "reward", "trainer"))
@sent(by="trainer", to="shard")
class Spools(Message, frozen=True):
    """The spools of the run have changed since `Welcome`."""

    spools: SpoolSet


class Permit(Value, frozen=True):
    """Proof of a lease, see `asyncrl.messages.permit`: it lets a rollout store, and a result count."""

    indices: list[int] = []
    """Indices of the lease."""
    seal: bytes = b""


class PutItem(Value, frozen=True):
    """One trajectory to store, finished or unfinished."""

    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    payload: memoryview
    """An encoded `Trajectory`; opaque to the spool."""
    permit: Permit = Permit()
    """That of the lease."""


@sent(by="rollout", to="spool")
class Put(Message, frozen=True):
    """Request to store trajectories. Repeated until the broker answers `Settled`."""

    node: str
    incarnation: str
    items: Listed[PutItem]


class StoredItem(Value, frozen=True):
    """A `PutItem` whose payload is on disk at ``ref``."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary
    permit: Permit = Permit()


@sent(by="spool", to="broker")
class Stored(Message, frozen=True):
    """Payloads of one sender are on disk; the broker answers the sender with `Settled`."""

    node: str
    incarnation: str
    items: Listed[StoredItem]


@sent(by=("rollout", "reward", "trainer", "supervisor"), to="spool")
class Fetch(Message, frozen=True):
    """Request for payloads, and for pictures of prompts from the broker's spool; answered in this order."""

    request_id: int
    refs: Listed[SpoolRef]
    images: Listed[bytes] = []
    """Digests of pictures."""


@sent(by="spool", to=("rollout", "reward", "trainer", "shard", "supervisor"))
class Fetched(Message, frozen=True):
    """Answer to `Fetch`; what the spool does not have is empty."""

    request_id: int
    payloads: list[memoryview]


@sent(by="broker", to="spool")
class Trim(Message, frozen=True):
    """Payloads in segments below ``segment`` may be deleted."""

    segment: int


class AcceptedKey(Value, frozen=True):
    """A key that may connect to a spool."""

    public: bytes
    name: str
    """Names of its nodes are this one, or begin with it and ``-``; empty allows any name."""
    roles: list[str]


@sent(by="broker", to="spool")
class Accepted(Message, frozen=True):
    """Keys of all nodes that may connect, from a broker with an allow-list, whenever they change."""

    keys: list[AcceptedKey]
