"""
Everything that crosses a socket, grouped by who receives it: the map of the city.

    prompts ─▶ BROKER ──Lease──▶ ROLLOUT ──Put──▶ SPOOL ◀──Fetch── REWARD    SPOOL ◀──Fetch── TRAINER
                 ▲ ▲                                │                 ▲
                 │ └───────────Stored───────────────┘                 │
                 └─Scored / Take / Commit / Publishing / Live …    Grade from the broker

Nouns are offers and requests (`Offer`, `Lease`, `Take`), past participles are facts (`Stored`, `Scored`).
On the wire a message is a msgpack array ``[class name, field, field, ...]``: fields may only be appended, with a
default, so that older and newer nodes understand each other. Arrays are raw little-endian bytes in ``bin`` fields
(int32 token ids, float32 log-probs), never lists: 43 times cheaper.
"""

from typing import Literal

from msgspec import Struct

PROTOCOL = 1
"""Said in the greeting; a node that speaks another one is refused with both numbers."""

Role = Literal["broker", "spool", "rollout", "reward", "trainer", "shard", "supervisor"]
Split = Literal["train", "held_out"]
Truncation = Literal["error", "left", "right", "middle"]
"""What is cut off a prompt that has too many tokens; ``error``: nothing, it is refused."""
FinishReason = Literal["stop", "length", "unfinished"]
"""
``stop``: the policy ended it (end of sequence or a stop string). ``length``: cut at ``max_tokens``. ``unfinished``:
more is to be written; it is put on disk for whoever has to go on with it, and is never graded or trained on.
"""


class Value(Struct, frozen=True, array_like=True, gc=False):
    """Base of parts of messages."""


class Message(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of messages; the first element on the wire is the class name."""


# ── parts ───────────────────────────────────────────────────────────────────────────────────


class Unit(Value, frozen=True, order=True):
    """One trajectory's place in the accounts. Results are deduplicated by it."""

    group_id: int
    """Dense ordinal in the data order of its split."""
    index: int
    """0 .. group_size - 1."""
    split: Split = "train"


class Span(Value, frozen=True):
    """Completion tokens ``start .. end - 1`` were written by ``policy_version``."""

    policy_version: int
    start: int
    end: int


class Sampling(Value, frozen=True):
    """How to sample one completion. Zero or negative ``temperature`` is not a thing: 0.0 means greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop: list[str] = []
    """Strings that end a completion; the string itself is kept in the text."""


class Prompt(Value, frozen=True):
    """What the policy is asked, and what the verifier needs to judge the answer."""

    text: str = ""
    """Plain text, given to the tokenizer as it is. Empty if ``chat`` is used."""
    chat: list[dict[str, str]] = []
    """``[{"role": ..., "content": ...}]``, put through the model's chat template."""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}


class Trajectory(Value, frozen=True):
    """
    One sampled completion, token by token, as the policy that wrote it saw it. The payload a spool keeps.

    T is the number of completion tokens, L of prompt tokens.
    """

    unit: Unit
    prompt_ids: memoryview
    """[L] int32, little-endian."""
    completion_ids: memoryview
    """[T] int32."""
    behavior_logprobs: memoryview
    """[T] float32 log-probabilities under the distribution that was sampled from, in nats."""
    spans: list[Span]
    """Who wrote what: run-length, contiguous, covering 0 .. T."""
    finish_reason: FinishReason
    text: str
    """The completion, decoded without special tokens."""
    node: str = ""
    generate_s: float = 0.0
    """Seconds from the first prefill to the last token."""


class SpoolRef(Value, frozen=True):
    """Where a payload lies."""

    spool: str
    segment: int
    offset: int
    length: int
    """Bytes of payload."""
    crc32: int


class TrajectorySummary(Value, frozen=True):
    """What the broker keeps about a trajectory without reading it."""

    num_tokens: int
    prompt_tokens: int
    oldest_version: int
    newest_version: int
    num_spans: int
    finish_reason: FinishReason


class PutItem(Value, frozen=True):
    """One trajectory, finished or not: its place, the lease that covers it, its summary and its encoded bytes."""

    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    payload: memoryview
    """An encoded `Trajectory`. The spool never looks inside."""


class StoredItem(Value, frozen=True):
    """A `PutItem` whose payload is on disk, and where."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary


class Leased(Value, frozen=True):
    """A trajectory, and the lease it was sampled under: of one unit there may have been several."""

    unit: Unit
    lease_id: int


class Held(Value, frozen=True):
    """A trajectory that a node was leased in an earlier session and still samples, or has not seen settled."""

    unit: Unit
    lease_id: int
    oldest_version: int
    """Of its tokens; of those to come if there are none yet."""


class ResumePoint(Value, frozen=True):
    """A leased trajectory of which something is on disk: go on from there."""

    index: int
    ref: SpoolRef


class GradeItem(Value, frozen=True):
    """One stored trajectory to judge, and the token its failure is reported with."""

    unit: Unit
    lease_id: int
    ref: SpoolRef


class ScoredItem(Value, frozen=True):
    """A verdict."""

    unit: Unit
    reward: float
    metrics: dict[str, float] = {}
    """Further numbers of the verifier, shown as metrics; ``correct`` feeds accuracy."""
    lease_id: int = 0
    """Of the `GradeItem`: which of its trajectories, should the unit have had several."""
    answer: str | None = None
    """What the verifier took for the answer, for a majority vote; empty if there was none, None if it does not say."""


class ScoredTrajectory(Value, frozen=True):
    """A scored trajectory in a batch: metadata and where the payload is."""

    unit: Unit
    ref: SpoolRef
    reward: float
    metrics: dict[str, float]
    summary: TrajectorySummary


class Member(Value, frozen=True):
    """One end of a weight transfer. Members take ranks in the order of `Transfer.members`, each as many as it has."""

    node: str
    incarnation: str
    ranks: int = 1
    """Processes that take part: an engine spread over devices receives in each of its workers."""


# ── received by the broker, from any node ───────────────────────────────────────────────────


class Hello(Message, frozen=True):
    """The first message of a session."""

    protocol: int
    role: Role
    node: str
    incarnation: str
    """Unique for each session; two sessions of one node are different peers."""
    held: list[Held] = []
    """Rollouts: trajectories in hand since an earlier session. Those not wanted any more are `Cancelled`."""
    policy_version: int = -1
    """Rollouts: what the engine decodes with since an earlier session; -1 for nothing yet."""


class Ready(Message, frozen=True):
    """The model is loaded; I can take part."""

    layout_hash: str = ""
    """Trainer and rollout: digest of the weight plan (names, shapes, dtypes), so that a wrong model is told at once."""
    ranks: int = 1
    """As in `Member`."""


class Beat(Message, frozen=True):
    """I am alive, and so is my event loop: it is the loop that sends this."""

    lag_s: float = 0.0
    """How late the loop was in sending it."""
    busy_s: float = 0.0
    """Seconds this role has worked since it started."""
    wait_s: float = 0.0
    """Seconds it had nothing to do."""
    tokens: int = 0
    """Tokens generated or trained since it started."""


class Bye(Message, frozen=True):
    """Leaving on purpose; nothing of mine is unfinished."""

    reason: str


class Draining(Message, frozen=True):
    """I hand over what is in hand and leave: no more leases, please."""


class Drain(Message, frozen=True):
    """To the broker: make ``node`` leave, then say `Drained`. To that node: hand over what is in hand, and leave."""

    node: str


class StoreSet(Message, frozen=True):
    """Rendezvous of a weight group: publish a key."""

    group: str
    key: str
    value: bytes


class StoreGet(Message, frozen=True):
    """Rendezvous of a weight group: answer with `StoreValue` once the key is set."""

    group: str
    key: str


# ── received by the broker, from rollouts and rewards ───────────────────────────────────────


class Offer(Message, frozen=True):
    """
    Credit, as a running total: "up to ``limit`` trajectories since I started, counting those you already gave me".

    An absolute number, so that a repeated or reordered offer changes nothing.
    """

    limit: int


class Scored(Message, frozen=True):
    """Verdicts that came together."""

    items: list[ScoredItem]


class Failed(Message, frozen=True):
    """No trajectory or no verdict for a unit, and why. Never a reward of zero."""

    unit: Unit
    lease_id: int
    stage: Literal["rollout", "reward"]
    reason: str
    retryable: bool
    is_overlong: bool = False
    """The prompt has more tokens than the lease allows: no node could have done better."""


class Live(Message, frozen=True):
    """The engine now decodes with ``policy_version``."""

    policy_version: int
    pause_s: float
    """Seconds decoding stood still for the swap."""
    receive_s: float
    """Seconds from the doorbell until the last byte lay in the staging buffer."""


class Transferred(Message, frozen=True):
    """My side of a weight transfer is done."""

    transfer_group: int
    policy_version: int
    seconds: float
    num_bytes: int


class TransferFailed(Message, frozen=True):
    """My side of a weight transfer broke; the epoch is dead for me."""

    transfer_group: int
    policy_version: int
    reason: str


# ── received by the broker, from the trainer ────────────────────────────────────────────────


class Take(Message, frozen=True):
    """Give me the batch of ``step``. Asked again, the same batch comes again."""

    step: int


class Commit(Message, frozen=True):
    """A checkpoint contains every step up to ``step``: older payloads may go."""

    step: int
    checkpoint: str


class Publishing(Message, frozen=True):
    """Weights of ``policy_version`` lie staged, made of every step below ``next_step``."""

    policy_version: int
    next_step: int


class Stepped(Message, frozen=True):
    """One optimizer step is done."""

    step: int
    policy_version: int
    """The version whose weights this step changed."""
    metrics: dict[str, float]


# ── received by the broker, from spools and the supervisor ──────────────────────────────────


class Stored(Message, frozen=True):
    """Payloads of one sender are on disk."""

    node: str
    incarnation: str
    """Who sent them, and hears `Settled`."""
    items: list[StoredItem]


class Exited(Message, frozen=True):
    """A child process ended; the supervisor says how."""

    node: str
    cause: str
    restarting: bool
    is_needed: bool = True
    """False: the run goes on without it."""


# ── received by every node ──────────────────────────────────────────────────────────────────


class Welcome(Message, frozen=True):
    """Answer to `Hello`."""

    broker_term: int
    run_dir: str
    """Where the broker keeps the run; the same path for every role on its machine."""
    config: bytes
    """The run's resolved configuration, JSON."""
    spool: str
    """Address of the spool that serves this node."""
    beat_s: float


class Reject(Message, frozen=True):
    """Answer to a `Hello` that cannot be accepted."""

    reason: str


class StoreValue(Message, frozen=True):
    """Answer to `StoreGet`."""

    group: str
    key: str
    value: bytes


class Transfer(Message, frozen=True):
    """
    Take part in one weight transfer, at once.

    ``members[0]`` is the trainer and sends. A new ``transfer_group`` forms a new process group first; the
    one of the last transfer is used again.
    """

    transfer_group: int
    policy_version: int
    members: list[Member]
    keep: bool
    """False for the one-off pair that brings a joiner up to date: drop the group afterwards."""
    deadline_s: float


class Stop(Message, frozen=True):
    """The run is over, or this node is to leave: finish nothing more, say `Bye`, exit."""

    reason: str
    failed: bool = False


# ── received by rollouts ────────────────────────────────────────────────────────────────────


class Lease(Message, frozen=True):
    """The right to sample some indices of one group until ``expires_in_s`` has passed without a beat."""

    lease_id: int
    """Fences the lease: (broker epoch << 32) + counter."""
    group_id: int
    indices: list[int]
    split: Split
    prompt: Prompt
    sampling: Sampling
    seed: int
    """Index i samples with ``seed + i``, wherever it runs."""
    max_prompt_tokens: int
    expires_in_s: float
    """Seconds from *receipt*: clocks are never compared across machines."""
    resume_from: list[ResumePoint] = []
    """Those of ``indices`` that another node began."""
    truncation: Truncation = "error"
    """What is cut off a prompt of more than ``max_prompt_tokens``; ``error`` refuses it."""
    greedy: list[int] = []
    """Those of ``indices`` that are decoded greedily, whatever ``sampling`` says of temperature."""


class Settled(Message, frozen=True):
    """These results are on disk, in ledger and spool: forget them, unless they were leased anew since."""

    items: list[Leased]
    unfinished: list[Leased] = []
    """What was put of these is on disk. It says nothing of what was written since."""


class Cancelled(Message, frozen=True):
    """These leases, and these trajectories, are no longer wanted."""

    lease_ids: list[int]
    units: list[Unit] = []


class Hold(Message, frozen=True):
    """Stay at ``policy_version``: weights that arrive meanwhile wait in staging until `Release`."""

    policy_version: int


class Release(Message, frozen=True):
    """Swap in what waits."""


# ── received by rewards ─────────────────────────────────────────────────────────────────────


class Grade(Message, frozen=True):
    """Judge stored trajectories of one prompt, each by itself."""

    prompt: Prompt
    items: list[GradeItem]


# ── received by the trainer ─────────────────────────────────────────────────────────────────


class Batch(Message, frozen=True):
    """Answer to `Take`: whole groups, in order, samples of a group together."""

    step: int
    trajectories: list[ScoredTrajectory]


class Published(Message, frozen=True):
    """Every rollout that is not behind decodes with ``policy_version``: its groups have left the window."""

    policy_version: int


class Evaluating(Message, frozen=True):
    """Held-out prompts are answered with ``policy_version``: its checkpoint is not to go before the result is there."""

    policy_version: int


# ── received by the trainer's other ranks, from the first ───────────────────────────────────


class Work(Message, frozen=True):
    """
    Take part in what all ranks do together. `Batch` has come before the step that trains on it.

    ``train``: the next step. ``gather``: the weights, for a publish. ``snapshot``: all that a checkpoint holds.
    """

    kind: Literal["train", "gather", "snapshot"]
    step: int
    policy_version: int | None = None
    """Of the weights the step begins with; None if they were not published."""


# ── received by spools ──────────────────────────────────────────────────────────────────────


class Put(Message, frozen=True):
    """Keep these. Sent again until the broker says `Settled`."""

    node: str
    incarnation: str
    items: list[PutItem]


class Fetch(Message, frozen=True):
    """Give me these payloads, in this order."""

    request_id: int
    refs: list[SpoolRef]


class Trim(Message, frozen=True):
    """Payloads in segments below ``segment`` are no longer wanted."""

    segment: int


# ── received from spools ────────────────────────────────────────────────────────────────────


class Fetched(Message, frozen=True):
    """Answer to `Fetch`; an empty payload is one the spool no longer has."""

    request_id: int
    payloads: list[memoryview]


# ── received by the supervisor ──────────────────────────────────────────────────────────────


class Progress(Message, frozen=True):
    """One step of the run, for a person to see."""

    step: int
    steps: int
    metrics: dict[str, float]


class Evaluated(Message, frozen=True):
    """Held-out accuracy at one pinned version."""

    policy_version: int
    accuracy: float
    num_prompts: int
    metrics: dict[str, float] = {}


class Drained(Message, frozen=True):
    """Answer to `Drain`: the node has left."""

    node: str
    problem: str = ""
    """Why it did not leave as asked; empty if it did."""


class Finished(Message, frozen=True):
    """The run is over."""

    status: Literal["finished", "failed"]
    cause: str


ToBroker = (
    Hello | Ready | Beat | Draining | Bye | Drain | StoreSet | StoreGet
    | Offer | Scored | Failed | Live | Transferred | TransferFailed
    | Take | Commit | Publishing | Stepped
    | Stored | Exited
)  # fmt: skip
ToRollout = (
    Welcome | Reject | StoreValue | Transfer | Stop | Drain
    | Lease | Settled | Cancelled | Hold | Release | Fetched
)  # fmt: skip
ToReward = Welcome | Reject | Stop | Drain | Grade | Fetched
ToTrainer = Welcome | Reject | StoreValue | Transfer | Stop | Batch | Published | Evaluating | Evaluated | Fetched
ToShard = Welcome | Reject | Stop | Batch | Work | Fetched
ToSpool = Welcome | Reject | Stop | Put | Fetch | Trim
ToSupervisor = Welcome | Reject | Stop | Progress | Evaluated | Drained | Finished

AnyMessage = ToBroker | ToRollout | ToReward | ToTrainer | ToShard | ToSpool | ToSupervisor
