"""
What a ledger keeps: what happened, in order, and nothing that can be worked out from it.

    Admitted ─▶ Result ─▶ Verdict ─▶ Taken ─▶ Committed       the life of a group; a unit has one Result, one Verdict
        │         ▲
        │         └── Reissued ◀── FailedAttempt               an index is given out again
        │    Progressed                                        what is on disk of an unfinished trajectory
        ├─▶ Restarted                                          a group got too old, and begins anew
        └─▶ Dropped                                            a group ends untrained, with its reason
    Duplicate                                                  a second trajectory of a unit: counted, not kept
    VersionLive · Measured · NodeEvent                         versions, evaluations, who came and went

A broker that starts again applies these from the first to the last and is where it was. Leases are not here: they
are soft, and the nodes that hold them say so. On disk a record is a msgpack array ``[class name, field, ...]``, so
fields may only be appended, with a default.

What an audit asks, and where the answer is:
    issued          Admitted
    trained         groups of Taken; for good, once its step is up to the newest Committed
    dropped         Dropped, by ``reason``; by length through the Results of its units
    open            Admitted, and neither trained nor Dropped
    skipped         holes in the ``group_id`` of Admitted: they are dense
    double-trained  a group in two Taken
    re-issued       Reissued, by ``cause``
    begun anew      Restarted, by length through its ``lengths``
    thrown away     tokens of Dropped, Duplicate, Reissued and Restarted
    staleness       the step of Taken by steps per publish, rounded down, minus ``oldest_version`` of Result
"""

from typing import Literal

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.messages import Role, Split, SpoolRef, TrajectorySummary, Unit


class Record(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of records; the first element on disk is the class name."""


class Admitted(Record, frozen=True):
    """A group entered the window."""

    group_id: int
    epoch: int
    """Passes over the dataset before this one."""
    row: int
    """Of the dataset: with ``epoch`` where the data order stands."""
    policy_version: int
    """Live when it entered."""


class Result(Record, frozen=True):
    """The first durable trajectory of a unit since its group began. Later ones are `Duplicate`."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary
    num_restarts: int = 0
    """`Restarted` of its group so far."""


class Progressed(Record, frozen=True):
    """So much of a trajectory was on disk while it was being written; whoever samples it next goes on from there."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary


class Duplicate(Record, frozen=True):
    """A trajectory came for a unit that had one, or that nobody waits for any more; it was not kept."""

    unit: Unit
    lease_id: int
    num_tokens: int


class Rewarded(Record, frozen=True):
    """The reward of a unit."""

    unit: Unit
    reward: float
    metrics: dict[str, float] = {}
    num_restarts: int = 0
    """As of its Result."""


class FailedAttempt(Record, frozen=True):
    """A generation or a verdict failed."""

    unit: Unit
    stage: Literal["rollout", "reward"]
    reason: str
    attempts: int
    """Failures of this unit so far, this one included."""
    is_final: bool
    """No more attempts: a dead letter, for a person to read."""


class Reissued(Record, frozen=True):
    """A unit's lease was taken back, so that the unit is leased again."""

    unit: Unit
    lease_id: int
    """Of the lease that ended."""
    cause: str
    """``expired``, ``node_lost``, ``node_left``, ``failed``."""
    num_tokens: int = 0
    """Thrown away with it, as far as is known."""


class Restarted(Record, frozen=True):
    """A group became too old to be trained on before its turn came. Nothing sampled of it so far counts."""

    group_id: int
    policy_version: int
    """Live now: what it is sampled with from here on."""
    lengths: list[int]
    """[<= group_size] completion tokens that were on disk of each trajectory, finished or not."""


class Dropped(Record, frozen=True):
    """A group ended without being trained."""

    group_id: int
    reason: str
    num_tokens: int
    """Completion tokens it had so far."""


class Taken(Record, frozen=True):
    """The batch of ``step``, the same whenever it is asked for."""

    step: int
    group_ids: list[int]
    """In batch order; the trajectories of a group are in order of their index."""


class Committed(Record, frozen=True):
    """A checkpoint holds every step up to ``step``."""

    step: int
    checkpoint: str


class VersionLive(Record, frozen=True):
    """Rollouts decode with ``policy_version``, made of every step below ``next_step``."""

    policy_version: int
    next_step: int


class Measured(Record, frozen=True):
    """Held-out accuracy at one version."""

    policy_version: int
    accuracy: float
    num_prompts: int
    metrics: dict[str, float] = {}


class NodeEvent(Record, frozen=True):
    """A node came or went."""

    node: str
    incarnation: str
    role: Role
    event: Literal["joined", "left", "lost", "exited"]
    detail: str
    at_s: float
    """Unix time at the broker. For people; nothing is decided by it."""


AnyRecord = (
    Admitted | Progressed | Result | Duplicate | Rewarded | FailedAttempt | Reissued | Restarted | Dropped
    | Taken | Committed | VersionLive | Measured | NodeEvent
)  # fmt: skip

_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
_encoder = msgspec.msgpack.Encoder()


def encode(record: Record) -> bytes:
    """As it lies in the ledger."""
    return _encoder.encode(record)


def decode(raw: bytes) -> AnyRecord:
    """
    As it was before `encode`; fields that a newer asyncrl appended are left out.

    Raises:
        LedgerError: These bytes are no record we know.
    """
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"not a record of this asyncrl: {error}") from error


def key(record: Record) -> str | None:
    """What can happen only once, in words; None for what may happen any number of times."""
    match record:
        case Admitted(group_id=group_id):
            return f"admitted/{group_id}"
        case Result(unit=unit, num_restarts=num_restarts):
            return f"{units_of_group('result', unit.split, unit.group_id, num_restarts)}{unit.index}"
        case Rewarded(unit=unit, num_restarts=num_restarts):
            return f"{units_of_group('verdict', unit.split, unit.group_id, num_restarts)}{unit.index}"
        case Taken(step=step):
            return f"taken/{step}"
        case _:
            return None


def units_of_group(kind: Literal["result", "verdict"], split: Split, group_id: int, num_restarts: int = 0) -> str:
    """What the keys of a group's results or verdicts begin with; the index follows. Begun anew, it has others."""
    return f"{kind}/{split}/{group_id}{f'~{num_restarts}' if num_restarts else ''}/"


def retired(record: Record) -> list[int]:
    """Groups that end with this record. A group ends once: trained or dropped, and in one step only."""
    match record:
        case Taken(group_ids=group_ids):
            return group_ids
        case Dropped(group_id=group_id):
            return [group_id]
        case _:
            return []
