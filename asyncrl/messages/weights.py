"""
Policy versions on their way from the trainer to rollouts, in a collective or by the spool.

    TRAINER ──Publishing──▶ BROKER ──Transfer──▶ trainer, rollouts ──Transferred, Live──▶ BROKER ──Published──▶ TRAINER
                                   ──Upload────▶ TRAINER ──PutWeights──▶ SPOOL ◀──FetchWeights── ROLLOUT
"""

from asyncrl.messages import bounds
from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.words import MEMBERS


@sent(by="trainer", to="broker")
class Publishing(Message, frozen=True):
    """Weights of ``policy_version``, made by every step below ``next_step``, are staged for transfer."""

    policy_version: int
    next_step: int

    def out_of_bounds(self) -> str:
        return bounds.count("policy_version", self.policy_version) or bounds.count("next_step", self.next_step)


@sent(by="broker", to="trainer")
class Published(Message, frozen=True):
    """``policy_version`` is live on the rollouts, and the groups that made it have left the window."""

    policy_version: int


class Member(Value, frozen=True):
    """One node of a weight transfer. Members take consecutive ranks, in the order of `Transfer.members`."""

    node: str
    incarnation: str
    ranks: int = 1
    """Number of its processes that take part: an engine on several devices receives in each of its workers."""


@sent(by="broker", to=MEMBERS)
class Transfer(Message, frozen=True):
    """
    Request to take part in one weight transfer, at once.

    ``members[0]`` is the trainer and sends. A new ``transfer_group`` number means that a process group is formed first;
    the number of the last transfer means that its group is used again. Without members, a rollout fetches the version
    from the spool by itself.
    """

    transfer_group: int
    policy_version: int
    members: list[Member]
    keep: bool
    """False for the pair of trainer and joiner: the group is dropped after the transfer."""
    deadline_s: float


@sent(by=MEMBERS, to="broker")
class Transferred(Message, frozen=True):
    """This member has completed a weight transfer."""

    transfer_group: int
    policy_version: int
    seconds: float
    num_bytes: int

    def out_of_bounds(self) -> str:
        return (
            bounds.count("policy_version", self.policy_version)
            or bounds.count("num_bytes", self.num_bytes)
            or bounds.seconds("seconds", self.seconds)
        )


@sent(by=MEMBERS, to="broker", shown="reason")
class TransferFailed(Message, frozen=True):
    """A weight transfer failed at this member, which will not use the transfer group again."""

    transfer_group: int
    policy_version: int
    reason: str

    def out_of_bounds(self) -> str:
        return bounds.reason(self.reason)


@sent(by="broker", to=MEMBERS)
class Abort(Message, frozen=True):
    """
    Request to give up the transfer of this group, whose number is not used again.

    It may arrive after the transfer has ended here; it then has no effect.
    """

    transfer_group: int
    reason: str
    """Names the node that was lost."""


@sent(by="rollout", to="broker")
class Live(Message, frozen=True):
    """The engine now decodes with ``policy_version``."""

    policy_version: int
    pause_s: float
    """Seconds for which decoding was paused by the swap."""
    receive_s: float
    """Seconds from `Transfer` until the last byte was in the staging buffer."""

    def out_of_bounds(self) -> str:
        return (
            bounds.count("policy_version", self.policy_version)
            or bounds.seconds("pause_s", self.pause_s)
            or bounds.seconds("receive_s", self.receive_s)
        )


@sent(by="broker", to="trainer")
class Upload(Message, frozen=True):
    """Request to put this staged version into the spool, for rollouts that are in no collective."""

    policy_version: int


@sent(by="trainer", to="broker", shown="problem")
class Uploaded(Message, frozen=True):
    """Answer to `Upload`: the version is at the spool, on disk."""

    policy_version: int
    seconds: float
    num_bytes: int
    """Bytes of the delta, or of the anchor if there was no base."""
    problem: str = ""
    """Reason for which it is not at the spool; empty if it is."""

    def out_of_bounds(self) -> str:
        return (
            bounds.count("policy_version", self.policy_version)
            or bounds.count("num_bytes", self.num_bytes)
            or bounds.seconds("seconds", self.seconds)
            or bounds.reason(self.problem)
        )


class StoredWeights(Value, frozen=True):
    """Identity of one policy version at a spool: an anchor with all elements, or a delta from a base version."""

    policy_version: int
    layout_hash: str
    digest: str
    """Digest of the complete version; see `asyncrl.weights.stored.staged`."""
    format: int
    """Version of the encoding."""
    base_version: int = -1
    """-1 for an anchor."""
    base_digest: str = ""

    @property
    def is_anchor(self) -> bool:
        return self.base_version < 0


class WeightsFile(Value, frozen=True):
    """A version that a spool has completely."""

    weights: StoredWeights
    num_parts: int
    num_bytes: int


@sent(by="trainer", to="spool")
class PutWeights(Message, frozen=True):
    """Request to store one part of a policy version; the parts come in order. Answered by `PutWeightsDone`."""

    weights: StoredWeights
    part: int
    crc32: int
    payload: memoryview
    is_last: bool


@sent(by="spool", to="trainer")
class PutWeightsDone(Message, frozen=True):
    """Answer to `PutWeights`, after the last part once the version is on disk."""

    part: int
    problem: str = ""
    """Reason for which the version cannot be stored; empty if it can."""


@sent(by="rollout", to="spool")
class ListWeights(Message, frozen=True):
    """Request for the versions that are stored completely."""


@sent(by="spool", to="rollout")
class WeightsList(Message, frozen=True):
    """Answer to `ListWeights`: oldest first."""

    files: list[WeightsFile]


@sent(by="rollout", to="spool")
class FetchWeights(Message, frozen=True):
    """Request for one part of a stored version."""

    weights: StoredWeights
    part: int


@sent(by="spool", to="rollout")
class FetchedWeights(Message, frozen=True):
    """Answer to `FetchWeights`."""

    part: int
    """-1 if the spool no longer has it, or if it is damaged there."""
    payload: memoryview
    crc32: int
