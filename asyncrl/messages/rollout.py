"""
Rollouts: leases, their ends, and what comes between.

    ROLLOUT ──Offer──▶ BROKER ──Lease──▶ ROLLOUT ──Put──▶ SPOOL ──Stored──▶ BROKER ──Settled──▶ ROLLOUT
"""

from asyncrl.messages import bounds
from asyncrl.messages.codec import Message, Value, sent
from asyncrl.messages.spool import Permit, SpoolRef
from asyncrl.messages.trajectory import Prompt, Sampling, Unit
from asyncrl.messages.words import AtFault, Role, Split, Stage, Truncation

STAGES: dict[Role, tuple[Stage, ...]] = {
    "rollout": ("rollout", "environment"),
    "reward": ("reward", "payload"),
    "trainer": (),
}
"""Stages at which a role may report a failure."""


@sent(by=("rollout", "reward"), to="broker")
class Offer(Message, frozen=True):
    """
    Credit: the node accepts up to ``limit`` trajectories in total, counted from its start.

    The number is absolute, so that a repeated or reordered offer changes nothing.
    """

    limit: int

    def out_of_bounds(self) -> str:
        return bounds.count("limit", self.limit)


class ResumePoint(Value, frozen=True):
    """Stored tokens of a leased trajectory, to be continued."""

    index: int
    ref: SpoolRef


@sent(by="broker", to="rollout")
class Lease(Message, frozen=True):
    """The right to sample some indices of one group, until ``expires_in_s`` passes without a heartbeat."""

    lease_id: int
    """Fencing number: ``(broker_term << 32) + counter``."""
    group_id: int
    indices: list[int]
    split: Split
    prompt: Prompt
    sampling: Sampling
    seed: int | None
    """Index i samples with ``seed + i`` on every node; None draws from the engine's generator."""
    max_prompt_tokens: int
    expires_in_s: float
    """Seconds from receipt: clocks are never compared across machines."""
    resume_from: list[ResumePoint] = []
    """Stored beginnings for some of ``indices``."""
    truncation: Truncation = "error"
    """Side that is cut off a prompt of more than ``max_prompt_tokens``; ``error`` refuses it."""
    greedy: list[int] = []
    """Subset of ``indices`` that is decoded greedily, whatever the temperature in ``sampling``."""
    permit: Permit = Permit()
    """Sent along with what is stored under this lease."""


class Leased(Value, frozen=True):
    """A trajectory and the lease it was sampled under; a unit may be leased several times."""

    unit: Unit
    lease_id: int


@sent(by="broker", to="rollout")
class Settled(Message, frozen=True):
    """These results are durable in ledger and spool. The rollout may forget them, unless leased again since."""

    items: list[Leased]
    unfinished: list[Leased] = []
    """Unfinished trajectories whose last stored part is durable; later tokens are not."""


@sent(by="broker", to="rollout")
class Cancelled(Message, frozen=True):
    """These leases, and these trajectories, are no longer wanted."""

    lease_ids: list[int]
    units: list[Unit] = []


@sent(by="rollout", to="broker", shown="reason")
class StartedOver(Message, frozen=True):
    """
    The rollout begins a leased trajectory anew: its environment cannot be brought back to where the stored turns end.
    """

    unit: Unit
    lease_id: int
    num_tokens: int
    """Tokens of the policy that are thrown away."""
    reason: str

    def out_of_bounds(self) -> str:
        return bounds.count("num_tokens", self.num_tokens) or bounds.reason(self.reason)


@sent(by=("rollout", "reward", "trainer"), to="broker", shown="reason")
class Failed(Message, frozen=True):
    """Generation or grading of a unit failed. A failure is never a reward of zero."""

    unit: Unit
    lease_id: int
    stage: Stage
    """A rollout sends ``rollout``, a reward node ``reward`` or ``payload``: the unit is then sampled again."""
    reason: str
    retryable: bool
    is_overlong: bool = False
    """The prompt has more tokens than the lease allows, on any node."""
    is_unreachable: bool = False
    """The spool of the payload is away: no attempt, and graded when it is back."""
    at_fault: AtFault = "rollout"
    """``payload``: who has damaged it."""
    is_of_group: bool = False
    """``reward``: the group has no verdict, for which none of its trajectories is to blame."""

    def out_of_bounds(self) -> str:
        return bounds.reason(self.reason)

    def forbidden_to(self, sender: Role) -> str:
        is_own = self.stage in STAGES[sender]
        return "" if is_own else f"a {sender} may not report a failure at the stage {self.stage!r}"


@sent(by="broker", to="rollout")
class Hold(Message, frozen=True):
    """Keep decoding with ``policy_version``: newer weights wait in staging until `Release`."""

    policy_version: int


@sent(by="broker", to="rollout")
class Release(Message, frozen=True):
    """End of `Hold`: swap in the staged weights."""
