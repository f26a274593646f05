"""
Records of the ledger: the events of a run in order, without anything that can be computed from other records.

    Admitted ─▶ Result ─▶ Rewarded ─▶ Taken ─▶ Committed      a group; each unit has one Result and one Rewarded
        │         ▲
        │         └── Reissued ◀── FailedAttempt              a unit is leased again
        │    Progressed                                       durable prefix of an unfinished trajectory
        ├─▶ Refused                                           a damaged result is void, its unit is leased again
        ├─▶ LeftOut                                           a unit failed for good, its group goes on without it
        ├─▶ Restarted                                         a group grew too old, or lost its spool: sampled again
        └─▶ Dropped                                           a group ends untrained, with its reason
    Untrained                                                 the trainer left a taken group out of its step
    Duplicate                                                 a second trajectory of a unit: counted, not kept
    VersionLive · Measured · NodeEvent                        weights, evaluations, membership
    SamplingPaused · SettingsSet                              an operator's decisions
    GoalMet                                                   the run ends before its last step
    Started · Written                                         digests of the config, the data and the run's other files

A restarted broker replays the records from first to last to recover its state. Leases are not recorded: the nodes that
hold them report them. On disk a record is a msgpack array ``[class name, field, ...]``, so fields may only be appended,
with a default.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from asyncrl.errors import LedgerError
from asyncrl.messages.spool import SpoolRef
from asyncrl.messages.trajectory import TrajectorySummary, Unit
from asyncrl.messages.words import Role, Stage

FailedAt = Stage | Literal["trainer"]
"""``trainer``: the trajectory is damaged, found before the step that took it."""


class Record(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of records; the first element on disk is the class name."""


class Admitted(Record, frozen=True):
    """A group was admitted to the window."""

    group_id: int
    epoch: int
    """Passes over the dataset before this one."""
    row: int
    """Dataset row; with ``epoch`` the position in the data order."""
    policy_version: int
    """Live version at admission."""


class Result(Record, frozen=True):
    """
    The first durable trajectory of a unit since its group was admitted or restarted, or since an earlier one was
    `Refused`; later ones are `Duplicate`.
    """

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary
    num_restarts: int = 0
    """Number of `Restarted` records of the group so far."""
    num_refused: int = 0
    """Number of `Refused` records of the unit so far."""


class Progressed(Record, frozen=True):
    """A durable prefix of an unfinished trajectory; the next rollout to sample the unit continues from it."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary


class Duplicate(Record, frozen=True):
    """A trajectory was discarded: its unit already had one, or was no longer needed."""

    unit: Unit
    lease_id: int
    num_tokens: int


class Rewarded(Record, frozen=True):
    unit: Unit
    reward: float
    metrics: dict[str, float] = {}
    num_restarts: int = 0
    """Equal to that of the unit's `Result`."""
    num_refused: int = 0
    """Equal to that of the unit's `Result`."""


class Refused(Record, frozen=True):
    """The stored trajectory of a unit is damaged: its `Result` is void, and the unit is sampled again."""

    unit: Unit
    lease_id: int
    """Id of the grading that refused it. Results of earlier leases are `Duplicate`."""
    reason: str
    num_tokens: int
    """Completion tokens thrown away."""


class FailedAttempt(Record, frozen=True):
    """A generation or a verifier call failed, or a stored trajectory was refused."""

    unit: Unit
    stage: FailedAt
    reason: str
    attempts: int
    """Failures of this unit, including this one."""
    is_final: bool
    """The unit is not tried again: a dead letter."""
    held_out_row: int = -1
    """Row of the held-out prompt; -1 for a training group, whose `Admitted` has it, and in ledgers without it."""


class Reissued(Record, frozen=True):
    """A lease ended without a result, so its unit is leased again; or its node begins it anew under the same lease."""

    unit: Unit
    lease_id: int
    cause: str
    """
    ``expired``, ``overdue``, ``silent``, ``stalled``, ``node_lost``, ``node_left``, ``failed``, ``spool_away`` or
    ``environment_lost``.
    """
    num_tokens: int = 0
    """Completion tokens lost with it, as far as known."""

    @property
    def loses_progress(self) -> bool:
        """True if the unit is sampled from its prompt, though a part of it may be on disk."""
        return self.cause in ("failed", "spool_away", "environment_lost")


class Restarted(Record, frozen=True):
    """A group grew too old to be trained on, or lost its spool. Its trajectories are void and it is sampled again."""

    group_id: int
    policy_version: int
    """Live version at the restart."""
    lengths: list[int]
    """[<= group_size] durable completion tokens of each trajectory, finished or not."""


class Dropped(Record, frozen=True):
    group_id: int
    reason: str
    num_tokens: int
    """Completion tokens sampled for it."""


class LeftOut(Record, frozen=True):
    """A unit failed for good, and its group goes on with the others, unless that is restarted."""

    unit: Unit
    reason: str
    num_tokens: int
    """Completion tokens sampled for it."""


class Taken(Record, frozen=True):
    """The batch of ``step``; a repeated request for the step gets the same batch."""

    step: int
    group_ids: list[int]
    """In batch order; trajectories of a group are ordered by index."""


class Untrained(Record, frozen=True):
    """The trainer left a group out of its step, because one of its trajectories is damaged. Once per group."""

    step: int
    group_id: int
    reason: str
    num_tokens: int
    """Completion tokens sampled for it."""


class Committed(Record, frozen=True):
    """A checkpoint contains every step up to and including ``step``."""

    step: int
    checkpoint: str


class VersionLive(Record, frozen=True):
    """Rollouts decode with ``policy_version``, which contains every step below ``next_step``."""

    policy_version: int
    next_step: int


class Measured(Record, frozen=True):
    """Held-out accuracy of one version."""

    policy_version: int
    accuracy: float
    num_prompts: int
    metrics: dict[str, float] = {}


class NodeEvent(Record, frozen=True):
    node: str
    incarnation: str
    role: Role
    event: Literal["joined", "left", "lost", "exited"]
    detail: str
    at_s: float
    """Unix time at the broker. Informative only: no rule reads it."""


class SamplingPaused(Record, frozen=True):
    """An operator paused sampling, or let it go on."""

    is_paused: bool
    by: str
    at_s: float
    """Unix time at the broker. Informative only: no rule reads it."""


class SettingsSet(Record, frozen=True):
    """An operator set live settings, which count for what happens from here on."""

    values: dict[str, bool | int | float | str]
    """New values by full key, such as ``schedule.staleness``."""
    by: str
    at_s: float
    """Unix time at the broker. Informative only: no rule reads it."""


class GoalMet(Record, frozen=True):
    """An evaluation has met ``run.stop_when``: the run ends after so many steps, if it is continued with the same."""

    stop_when: str
    policy_version: int
    """Version that was evaluated."""
    steps: int
    """Number of steps whose batches were taken by then, up to the end of a version."""


class Started(Record, frozen=True):
    """A broker serves the run from here on."""

    broker_term: int
    meta: str
    """SHA-256 of what the ledger has beside the records: the run's id, its configuration, digests of the data."""


class Written(Record, frozen=True):
    """A file of the run was written, or a line of one. A later record about the same replaces an earlier one."""

    file: str
    """Path in the run directory."""
    sha256: str
    """Digest of the content of the file; of a line, of its JSON without the newline."""
    step: int = -1
    """Step of the line; -1 for a whole file."""


AnyRecord = (
    Admitted | Progressed | Result | Duplicate | Rewarded | Refused | FailedAttempt | Reissued | Restarted | Dropped
    | LeftOut | Taken | Untrained | Committed | VersionLive | Measured | NodeEvent | SamplingPaused | SettingsSet
    | GoalMet | Started | Written
)  # fmt: skip

_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
_encoder = msgspec.msgpack.Encoder()


def encode(record: Record) -> bytes:
    return _encoder.encode(record)


def decode(raw: bytes) -> AnyRecord:
    """Decode a record, ignoring fields that a newer asyncrl appended. Raises LedgerError if it is unknown."""
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise LedgerError(f"not a record that this asyncrl knows: {error}") from error


def unique_key(record: Record) -> str | None:
    """Key of an event that can happen only once; None for an event that may repeat."""
    match record:
        case Admitted(group_id=group_id):
            return f"admitted/{group_id}"
        case Result(unit=unit):
            return _unit_key("result", unit, record.num_restarts, record.num_refused)
        case Rewarded(unit=unit):
            return _unit_key("rewarded", unit, record.num_restarts, record.num_refused)
        case Taken(step=step):
            return f"taken/{step}"
        case Untrained(group_id=group_id):
            return f"untrained/{group_id}"
        case _:
            return None


def ended_groups(record: Record) -> list[int]:
    """Groups that end with this record. A group ends once: in the batch of one step, or dropped."""
    match record:
        case Taken(group_ids=group_ids):
            return group_ids
        case Dropped(group_id=group_id):
            return [group_id]
        case _:
            return []


def _unit_key(kind: str, unit: Unit, num_restarts: int, num_refused: int) -> str:
    restarts = f"~{num_restarts}" if num_restarts else ""
    refusals = f"~{num_refused}" if num_refused else ""
    return f"{kind}/{unit.split}/{unit.group_id}{restarts}/{unit.index}{refusals}"
