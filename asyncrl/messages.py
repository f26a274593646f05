"""
All wire messages, grouped by receiver.

    prompts ─▶ BROKER ──Lease──▶ ROLLOUT ──Put──▶ SPOOL ◀──Fetch── REWARD    SPOOL ◀──Fetch── TRAINER
                 ▲ ▲                                │                 ▲
                 │ └───────────Stored───────────────┘                 │
                 └─Scored / Take / Commit / Publishing / Live …    Grade from the broker

Nouns and verbs are offers and requests (`Offer`, `Lease`, `Take`); past participles are facts (`Stored`, `Scored`).
On the wire a message is a msgpack array ``[class name, field, field, ...]``. New fields are appended, with a default,
so that older and newer nodes understand each other. Arrays are raw little-endian bytes in ``bin`` fields (int32 token
ids, float32 log-probs) and never lists, which cost 43 times more.
"""

from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from asyncrl.actor.codec import Codec
from asyncrl.actor.message import Message, Value
from asyncrl.files.checkpoints import FileEntry

PROTOCOL = 11
"""Version of this vocabulary, sent in `Hello`. The broker refuses a node with another version and names both."""

Role = Literal["broker", "spool", "rollout", "reward", "trainer", "machine", "shard", "supervisor"]
"""
``machine``: in a trainer of several machines, one that waits for the others, or follows the first, which is the
``trainer``. Each says Hello as a ``trainer``; the broker decides.
"""
Activity = Literal[
    "sampling", "swapping", "asleep", "serving users", "environment", "storing",
    "grading",
    "training", "publishing", "checkpointing", "waiting for the devices", "fetching",
    "idle",
]  # fmt: skip
"""Activity of a rollout, a reward node or a trainer at a moment."""
ROLLOUT_ACTIVITIES: tuple[Activity, ...] = (
    "asleep", "swapping", "serving users", "sampling", "environment", "storing",
)  # fmt: skip
"""The first counts where two go on at the same time."""
REWARD_ACTIVITIES: tuple[Activity, ...] = ("grading",)
TRAINER_ACTIVITIES: tuple[Activity, ...] = (
    "training", "publishing", "checkpointing", "waiting for the devices", "fetching",
)  # fmt: skip
"""The first counts where two go on at the same time."""
Split = Literal["train", "held_out"]
Truncation = Literal["error", "left", "right", "middle"]
"""Part of an over-long prompt that is cut out: its beginning, end or middle; ``error`` refuses the prompt instead."""
FinishReason = Literal["stop", "length", "unfinished"]
"""
``stop``: the policy ended the completion (end of sequence or a stop string). ``length``: cut at ``max_tokens``.
``unfinished``: stored so that a node can continue it; never graded or trained on. Engines set it; the broker compares
it with ``unfinished``, and metrics with ``length``.
"""


WeightsVia = Literal["collective", "spool"]
"""``collective``: a rollout is a member of transfers. ``spool``: it fetches versions from the spool."""

Stage = Literal["rollout", "environment", "reward", "payload"]
"""
Place at which a unit failed. ``rollout``: the engine, or the check of its output. ``environment``: the environment, a
tool or the agent program of its episode. ``reward``: the verifier. ``payload``: what is stored is lost or damaged,
found before it is judged.
"""


EMPTY = memoryview(b"")

T = TypeVar("T")
MAX_ITEMS = 1 << 17
"""Most items of a list that nodes send. A longer one is refused before it is decoded, to forty times its bytes."""
Listed = Annotated[list[T], Meta(max_length=MAX_ITEMS)]


# ── parts ───────────────────────────────────────────────────────────────────────────────────


class Unit(Value, frozen=True, order=True):
    """Identity of one trajectory in a run. Results are deduplicated by it."""

    group_id: int
    """Dense ordinal of the prompt in the data order of its split."""
    index: int
    """0 .. group_size - 1."""
    split: Split = "train"


class Span(Value, frozen=True):
    """Completion tokens ``start .. end - 1`` were sampled under ``policy_version``."""

    policy_version: int
    start: int
    end: int


class Sampling(Value, frozen=True):
    """Sampling parameters of one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 decodes greedily; negative values are invalid."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop: list[str] = []
    """Strings that end a completion; they stay in its text."""
    replay_mask: bool = False
    """Record the sampling mask of each token: the ids that ``top_p`` and ``top_k`` left."""
    replay_routes: bool = False
    """Record the experts of each token, prompt tokens included."""

    @property
    def is_truncated(self) -> bool:
        """True if tokens are drawn from a part of the vocabulary."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


class Image(Value, frozen=True):
    """A picture of a prompt. Its bytes are fetched by digest, once by each node."""

    digest: bytes
    """SHA-256 of the file."""
    width: int
    """Pixels."""
    height: int
    num_bytes: int
    """Size of the file."""


IMAGE_MARK = "<image>"
"""Place of a picture in the text of a prompt."""


class Prompt(Value, frozen=True):
    """Input of the policy, and what a verifier needs to grade the completion."""

    text: str = ""
    """Plain text, tokenized without a chat template. Empty if ``chat`` is used."""
    chat: list[dict[str, str]] = []
    """``[{"role": ..., "content": ...}]``, rendered by the model's chat template."""
    answer: str = ""
    data_source: str = ""
    extra: dict[str, str | int | float | bool | None] = {}
    images: list[Image] = []
    """Pictures, in the order of the ``<image>`` marks in ``text`` or ``chat``."""
    tools: str = ""
    """JSON list of the tools that the chat template shows to the policy, in OpenAI's form; empty: none."""


class Routing(Value, frozen=True):
    """Experts of the tokens of a sequence, without its last token, which the policy has not read."""

    experts: memoryview
    """[tokens, layers, top_k] ids of the experts, little-endian; layers without experts are left out."""
    layers: int
    top_k: int
    width: int = 1
    """Bytes of an id: 1, or 2 with more than 256 experts."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.layers * self.top_k * self.width


class RouteShape(Value, frozen=True):
    """Shape of a model's routes: its layers with experts, and the experts in each."""

    layers: int
    """Number of layers with experts."""
    top_k: int
    """Number of experts of a token in a layer."""
    num_experts: int


FROM_PROMPT = -1
"""`Turn.parent` of a turn that follows the prompt."""
FROM_NOTHING = -2
"""`Turn.parent` of a turn that follows nothing: its context is all that the policy read."""


class Turn(Value, frozen=True):
    """
    One turn of an episode: tokens of the environment, then tokens of the policy.

    The policy read the tokens of the turns from the root to ``parent``, context and written alike, and then the turn's
    own context. Turns with the same parent are branches; a turn that is nobody's parent ends one.
    """

    parent: int
    """Index of an earlier turn, `FROM_PROMPT` or `FROM_NOTHING`."""
    num_context: int
    """Tokens of ``Trajectory.context_ids``, after those of the turns before."""
    num_written: int
    """Tokens of ``Trajectory.completion_ids``, after those of the turns before; at least 1."""
    reward: float = 0.0
    """Reward of the environment for this turn."""
    is_trained: bool = True
    """False for tokens that nothing in the episode depends on, such as a reply that its reader never received."""
    call_s: float = 0.0
    """Seconds that the environment took to answer this turn."""
    observation: str = ""
    """Text of the context, without special tokens."""
    text: str = ""
    """Text that the policy wrote, without special tokens."""


class Trajectory(Value, frozen=True):
    """
    One sampled completion with its prompt, or one episode: the payload that a spool stores.

    T is the number of tokens that the policy wrote, in the order written, and L the number of prompt tokens. In an
    episode of several turns, ``turns`` says which tokens the policy read before each.
    """

    unit: Unit
    prompt_ids: memoryview
    """[L] int32, little-endian."""
    completion_ids: memoryview
    """[T] int32."""
    behavior_logprobs: memoryview
    """[T] float32 log-probabilities in nats, under the distribution that was sampled from."""
    spans: list[Span]
    """Policy version of every token: contiguous spans that cover 0 .. T."""
    finish_reason: FinishReason
    text: str
    """The completion decoded without special tokens."""
    node: str = ""
    """Rollout that sampled the last token."""
    generate_s: float = 0.0
    """Seconds from the first prefill to the last token."""
    images: list[Image] = []
    """Pictures of the prompt, in the order of their tokens in ``prompt_ids``."""
    grids: list[tuple[int, int, int]] = []
    """Patches of each picture as the sampler cut it: in time, in height, in width."""
    processor: str = ""
    """`ImageProcessor.version` of the sampler, for messages about grids that differ from the trainer's."""
    mask_counts: memoryview = EMPTY
    """[T] int32 sizes of the sampling masks, each at least 1; empty if none were recorded."""
    mask_ids: memoryview = EMPTY
    """[sum of ``mask_counts``] int32 ids, mask after mask, ascending in each; the token itself is among them."""
    routing: Routing | None = None
    """Experts of L + T - 1 tokens, each as they were when the token after it was sampled; None if not recorded."""
    turns: list[Turn] = []
    """Turns of an episode, in the order written; empty for one completion after the prompt."""
    context_ids: memoryview = EMPTY
    """[sum of ``num_context``] int32 tokens that the environment wrote, turn after turn."""
    scores: dict[str, float] = {}
    """Metrics of the environment, such as ``correct``. Its reward is the sum of the rewards of the turns."""
    snapshot: memoryview = EMPTY
    """State that another node needs to continue an unfinished episode, besides its tokens; empty otherwise."""


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


class FileDigest(Value, frozen=True):
    """One file of a model directory."""

    name: str
    size: int
    """Bytes."""
    sha256: bytes
    """Digest of the file; in `ModelFiles`, of the header of a safetensors file."""


class ModelFiles(Value, frozen=True):
    """A model directory on the broker's machine."""

    path: str
    files: list[FileDigest]


class AcceptedKey(Value, frozen=True):
    """A key that may connect to a spool."""

    public: bytes
    name: str
    """Names of its nodes are this one, or begin with it and ``-``; empty allows any name."""
    roles: list[str]


class TrajectorySummary(Value, frozen=True):
    """Metadata by which the broker handles a trajectory without reading it."""

    num_tokens: int
    prompt_tokens: int
    oldest_version: int
    newest_version: int
    num_spans: int
    finish_reason: FinishReason
    num_turns: int = 1
    num_branches: int = 1
    """Turns that no other turn follows."""
    context_tokens: int = 0
    """Tokens that the environment wrote."""
    environment_s: float = 0.0
    """Seconds that the environment took for all turns."""


class TrajectoryLimits(Value, frozen=True):
    """Bounds of what a sound trajectory may contain. 0 is unknown, and not checked."""

    vocab_size: int = 0
    """Token ids are 0 .. vocab_size - 1."""
    max_tokens: int = 0
    """Most completion tokens; in an episode, with the tokens of the environment."""
    max_prompt_tokens: int = 0
    newest_version: int | None = None
    """Newest policy version that can have written a token; None if unknown."""
    replay_mask: bool = False
    """True if every token must have a sampling mask."""
    replay_routes: bool = False
    """True if every token but the last must have its experts."""
    routes: RouteShape | None = None
    """Shape that the experts must have; None if it is unknown."""
    max_turns: int | None = None
    """Most turns of an episode; 0 allows none, only a completion after the prompt. None is unknown."""


class Refusal(Value, frozen=True):
    """A trajectory of a batch that the trainer left out, with its group, because it is damaged."""

    unit: Unit
    reason: str


class PutItem(Value, frozen=True):
    """One trajectory to store, finished or unfinished."""

    unit: Unit
    lease_id: int
    summary: TrajectorySummary
    payload: memoryview
    """An encoded `Trajectory`; opaque to the spool."""


class StoredItem(Value, frozen=True):
    """A `PutItem` whose payload is on disk at ``ref``."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary


class Leased(Value, frozen=True):
    """A trajectory and the lease it was sampled under; a unit may be leased several times."""

    unit: Unit
    lease_id: int


class Held(Value, frozen=True):
    """A trajectory of an earlier session that a rollout still samples, or has not seen settled."""

    unit: Unit
    lease_id: int
    oldest_version: int
    """Oldest version in its tokens, or the version it will start with."""


class ResumePoint(Value, frozen=True):
    """Stored tokens of a leased trajectory, to be continued."""

    index: int
    ref: SpoolRef


class GradeItem(Value, frozen=True):
    """One stored trajectory to grade; a failure is reported with its ``lease_id``."""

    unit: Unit
    lease_id: int
    ref: SpoolRef
    summary: TrajectorySummary | None = None
    """Compared with the payload; None compares nothing."""


class ScoredItem(Value, frozen=True):
    """The reward of one trajectory."""

    unit: Unit
    reward: float
    metrics: dict[str, float] = {}
    """Further numbers of the verifier; ``correct`` is averaged into accuracy."""
    lease_id: int = 0
    """Copied from the `GradeItem`, to tell several trajectories of one unit apart."""
    answer: str | None = None
    """Answer that the verifier extracted, for majority votes; empty if there was none, None if it extracts none."""


class ScoredTrajectory(Value, frozen=True):
    """One trajectory of a batch: its reward, its metadata and the location of its payload."""

    unit: Unit
    ref: SpoolRef
    reward: float
    metrics: dict[str, float]
    summary: TrajectorySummary
    refused: str = ""
    """Reason for which the trainer refused it before it resumed: it refuses it again. Empty if it did not."""


class StoredWeights(Value, frozen=True):
    """Identity of one policy version at a spool: an anchor with all elements, or a delta from a base version."""

    policy_version: int
    layout_hash: str
    digest: str
    """Digest of the complete version; see `asyncrl.weights.stored.digest`."""
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


class Member(Value, frozen=True):
    """One node of a weight transfer. Members take consecutive ranks, in the order of `Transfer.members`."""

    node: str
    incarnation: str
    ranks: int = 1
    """Number of its processes that take part: an engine on several devices receives in each of its workers."""


class TrainerMachine(Value, frozen=True):
    """One machine of a trainer of several: its node, and the name of its host."""

    node: str
    host: str


NodeState = Literal["loading", "working", "waiting", "silent", "leaving"]
"""``silent``: it was not heard for so long that it gets no new work."""


class NodeStatus(Value, frozen=True):
    """State of one connected node, as the broker knows it."""

    node: str
    role: Role
    state: NodeState
    waits_for: str = ""
    """Reason of ``waiting`` in words, such as ``the trainer: the window is full``; empty in other states."""
    policy_version: int = -1
    """Rollouts: version that the engine decodes with; -1 before the first weights, and for other roles."""
    leases: int = 0
    trajectories: int = 0
    """Trajectories leased to a rollout, or being graded by a reward node."""
    tokens_per_s: float = 0.0
    """Tokens sampled or trained per second, averaged over about ten seconds."""
    lag_s: float = 0.0
    """Delay of its event loop at its last beat, in seconds."""
    silent_s: float = 0.0
    """Seconds since it was last heard."""


class Incident(Value, frozen=True):
    """Death, drop, failure or wait, in one sentence; the same one again is counted."""

    sentence: str
    ago_s: float
    """Seconds since the last time."""
    count: int = 1


# ── received by the broker, from any node ───────────────────────────────────────────────────


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
    """Trainers and their ranks: name of the machine, for messages about it."""
    spool: SpoolAddress | None = None
    """Spools: where it serves. Its name is that of the node."""


class Ready(Message, frozen=True):
    """The node has loaded its model and can take part."""

    layout_hash: str = ""
    """Trainer and rollout: digest of the weight layout (names, shapes, dtypes); a mismatch is refused at once."""
    ranks: int = 1
    """See `Member`."""
    vocab_size: int = 0
    """Trainer and rollout: rows of the model's token embedding; 0 if the node cannot tell. The trainer's counts."""
    weights: WeightsVia = "collective"
    """Rollouts: way by which weights reach it."""


class Beat(Message, frozen=True):
    """Heartbeat, sent by the node's own event loop."""

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
    """Rollouts: decode steps of the engine since the start of the role; asyncrl/rollout/decode_steps.py."""
    cores_busy: float = 0.0
    """Share of the time since the last one in which the cores of the machine were busy, with any process."""


class Asleep(Message, frozen=True):
    """No memory of the node is on the devices that trainer and rollouts share, from now until `Wake`."""

    seconds: float = 0.0
    """Time to free the memory."""
    num_bytes: int = 0
    """Bytes moved to host memory."""


class AskTurn(Message, frozen=True):
    """The node sleeps, and waits for its turn at the shared devices."""


class Bye(Message, frozen=True):
    """The node leaves on purpose, with nothing unfinished."""

    reason: str


class Draining(Message, frozen=True):
    """
    The rollout stores its unfinished trajectories and leaves; it takes no more leases.

    From a machine of a trainer of several: it is to leave, and waits until a checkpoint contains the steps done. From
    their trainer, once that is so: it trains no further.
    """


class Drain(Message, frozen=True):
    """
    To the broker: make ``node`` leave, then answer `Drained`. To the node: leave, after a rollout has stored its
    unfinished trajectories and a trainer its last step. To a trainer about another machine: store the last step.
    """

    node: str


class StoreSet(Message, frozen=True):
    """Rendezvous of a process group: set a key."""

    group: str
    key: str
    value: bytes


class StoreGet(Message, frozen=True):
    """Rendezvous of a process group: answer with `StoreValue` once the key is set."""

    group: str
    key: str


# ── received by the broker, from rollouts and rewards ───────────────────────────────────────


class Offer(Message, frozen=True):
    """
    Credit: the node accepts up to ``limit`` trajectories in total, counted from its start.

    The number is absolute, so that a repeated or reordered offer changes nothing.
    """

    limit: int


class Scored(Message, frozen=True):
    """Rewards of graded trajectories."""

    items: Listed[ScoredItem]


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


class StartedOver(Message, frozen=True):
    """
    The rollout begins a leased trajectory anew: its environment cannot be brought back to where the stored turns end.
    """

    unit: Unit
    lease_id: int
    num_tokens: int
    """Tokens of the policy that are thrown away."""
    reason: str


class Live(Message, frozen=True):
    """The engine now decodes with ``policy_version``."""

    policy_version: int
    pause_s: float
    """Seconds for which decoding was paused by the swap."""
    receive_s: float
    """Seconds from `Transfer` until the last byte was in the staging buffer."""


class Transferred(Message, frozen=True):
    """This member has completed a weight transfer."""

    transfer_group: int
    policy_version: int
    seconds: float
    num_bytes: int


class TransferFailed(Message, frozen=True):
    """A weight transfer failed at this member, which will not use the transfer group again."""

    transfer_group: int
    policy_version: int
    reason: str


# ── received by the broker, from the trainer ────────────────────────────────────────────────


class Take(Message, frozen=True):
    """Request the batch of ``step``. The answer to a repeated request is the same batch."""

    step: int


class Commit(Message, frozen=True):
    """A checkpoint contains every step up to ``step``: older payloads may be deleted."""

    step: int
    checkpoint: str


class Publishing(Message, frozen=True):
    """Weights of ``policy_version``, made by every step below ``next_step``, are staged for transfer."""

    policy_version: int
    next_step: int


class Uploaded(Message, frozen=True):
    """Answer to `Upload`: the version is at the spool, on disk."""

    policy_version: int
    seconds: float
    num_bytes: int
    """Bytes of the delta, or of the anchor if there was no base."""
    problem: str = ""
    """Reason for which it is not at the spool; empty if it is."""


class Stepped(Message, frozen=True):
    """One optimizer step is done."""

    step: int
    policy_version: int
    """Version of the weights before this step."""
    metrics: dict[str, float]
    refused: list[Refusal] = []
    """Damaged trajectories of the batch: their groups were not trained on."""


# ── received by the broker, from spools and the supervisor ──────────────────────────────────


class Stored(Message, frozen=True):
    """Payloads of one sender are on disk; the broker answers the sender with `Settled`."""

    node: str
    incarnation: str
    items: Listed[StoredItem]


class Exited(Message, frozen=True):
    """A child process of the supervisor ended."""

    node: str
    cause: str
    restarting: bool
    is_needed: bool = True
    """False if the run can go on without this node."""


class Interrupt(Message, frozen=True):
    """End the run early: the trainer saves a checkpoint, rollouts store unfinished trajectories."""


class Pause(Message, frozen=True):
    """
    Grant rollouts no new leases, neither of training prompts nor of an evaluation's, or grant them again. What is in
    hand goes on. Answered by `Paused`.
    """

    is_paused: bool


class SetSettings(Message, frozen=True):
    """Set live settings while the run goes on. Answered by `SettingsChanged`."""

    assignments: Listed[str]
    """``key=value`` texts, as of ``--set``; all of them count, or none."""


class StacksWanted(Message, frozen=True):
    """To the broker: ask ``node`` for its `Stacks`. To the node: answer with them."""

    node: str


class StatusWanted(Message, frozen=True):
    """Request for the state of the run, answered by `Status`."""


# ── received by every node ──────────────────────────────────────────────────────────────────


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


class Reject(Message, frozen=True):
    """Refusal of a `Hello`."""

    reason: str


class StoreValue(Message, frozen=True):
    """Answer to `StoreGet`."""

    group: str
    key: str
    value: bytes


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


class Abort(Message, frozen=True):
    """
    Request to give up the transfer of this group, whose number is not used again.

    It may arrive after the transfer has ended here; it then has no effect.
    """

    transfer_group: int
    reason: str
    """Names the node that was lost."""


class Spools(Message, frozen=True):
    """The spools of the run have changed since `Welcome`."""

    spools: SpoolSet


class Wake(Message, frozen=True):
    """The shared devices are the node's, until it answers a `Sleep`; a trainer's until the end of its step."""


class Stop(Message, frozen=True):
    """The run is over, or this node must leave: stop work, send `Bye`, exit."""

    reason: str
    failed: bool = False


# ── received by rollouts ────────────────────────────────────────────────────────────────────


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


class Settled(Message, frozen=True):
    """These results are durable in ledger and spool. The rollout may forget them, unless leased again since."""

    items: list[Leased]
    unfinished: list[Leased] = []
    """Unfinished trajectories whose last stored part is durable; later tokens are not."""


class Cancelled(Message, frozen=True):
    """These leases, and these trajectories, are no longer wanted."""

    lease_ids: list[int]
    units: list[Unit] = []


class Hold(Message, frozen=True):
    """Keep decoding with ``policy_version``: newer weights wait in staging until `Release`."""

    policy_version: int


class Release(Message, frozen=True):
    """End of `Hold`: swap in the staged weights."""


class Sleep(Message, frozen=True):
    """The trainer waits for the shared devices: take the requests out of the engine, free its memory, and answer."""


# ── received by rewards ─────────────────────────────────────────────────────────────────────


class Grade(Message, frozen=True):
    """Request to grade stored trajectories of one prompt, each independently."""

    prompt: Prompt
    items: list[GradeItem]
    limits: TrajectoryLimits = TrajectoryLimits()
    """Checked in each payload before it is judged."""


# ── received by the trainer ─────────────────────────────────────────────────────────────────


class Batch(Message, frozen=True):
    """Answer to `Take`: whole groups in order, the trajectories of a group together."""

    step: int
    trajectories: list[ScoredTrajectory]
    lr: float | None = None
    """``trainer.lr`` of the step, the same however often it is asked for; None takes that of the configuration."""


class Published(Message, frozen=True):
    """``policy_version`` is live on the rollouts, and the groups that made it have left the window."""

    policy_version: int


class Upload(Message, frozen=True):
    """Request to put this staged version into the spool, for rollouts that are in no collective."""

    policy_version: int


class Evaluating(Message, frozen=True):
    """An evaluation of ``policy_version`` has begun: keep its checkpoint until `Evaluated`."""

    policy_version: int


# ── received by the machines of a trainer of several ────────────────────────────────────────


class Assembled(Message, frozen=True):
    """
    These machines form the trainer; ``machines[0]`` is its first and the run's ``trainer``.

    With R ranks on each machine, ranks ``i R`` to ``i R + R - 1`` run on ``machines[i]``.
    """

    group: int
    """Number of the group, in this life of the broker."""
    machines: list[TrainerMachine]


class Disbanded(Message, frozen=True):
    """The group of machines has ended, and so has this session: end the ranks, and say Hello again."""

    reason: str
    """Names the machine that was lost, its host and its ranks."""


# ── received by the trainer's other ranks, from the first ───────────────────────────────────


class Work(Message, frozen=True):
    """
    Request to take part in a collective operation of all ranks. `Batch` precedes the step that trains on it.

    ``train``: the next step. ``gather``: the weights, for a publish. ``snapshot``: the contents of a checkpoint.
    ``sleep``, ``wake``: the devices are for rollouts, and for the trainer again.
    """

    kind: Literal["train", "gather", "snapshot", "sleep", "wake"]
    step: int
    policy_version: int | None = None
    """Version of the weights at the beginning of the step; None if they were not published."""
    left_out: list[int] = []
    """Groups of the batch that no rank trains on, because one of their trajectories was refused."""
    lr: float | None = None
    """``train``: ``trainer.lr`` of the step; None keeps the rank's."""


# ── received by the trainer's first rank, from the others ───────────────────────────────────


class Checked(Message, frozen=True):
    """This rank has fetched its trajectories of ``step``, and refuses these. The step begins when every rank has."""

    step: int
    refused: list[Refusal]


class PartWritten(Message, frozen=True):
    """This rank has written its part of the checkpoint after ``step``; none if it is on another machine."""

    step: int
    files: dict[str, FileEntry]
    """Files by path in the checkpoint."""


# ── received by spools ──────────────────────────────────────────────────────────────────────


class Put(Message, frozen=True):
    """Request to store trajectories. Repeated until the broker answers `Settled`."""

    node: str
    incarnation: str
    items: Listed[PutItem]


class Fetch(Message, frozen=True):
    """Request for payloads, and for pictures of prompts from the broker's spool; answered in this order."""

    request_id: int
    refs: Listed[SpoolRef]
    images: Listed[bytes] = []
    """Digests of pictures."""


class Trim(Message, frozen=True):
    """Payloads in segments below ``segment`` may be deleted."""

    segment: int


class PutWeights(Message, frozen=True):
    """Request to store one part of a policy version; the parts come in order. Answered by `PutWeightsDone`."""

    weights: StoredWeights
    part: int
    crc32: int
    payload: memoryview
    is_last: bool


class ListWeights(Message, frozen=True):
    """Request for the versions that are stored completely."""


class FetchWeights(Message, frozen=True):
    """Request for one part of a stored version."""

    weights: StoredWeights
    part: int


class Accepted(Message, frozen=True):
    """Keys of all nodes that may connect, from a broker with an allow-list, whenever they change."""

    keys: list[AcceptedKey]


class ListFiles(Message, frozen=True):
    """Request to the broker's spool for the files of a folder, answered by `FileList`."""

    folder: str


class FetchPart(Message, frozen=True):
    """Request to the broker's spool for a part of a listed file, answered by `FilePart`."""

    sha256: bytes
    offset: int
    length: int


class OfferCheckpoint(Message, frozen=True):
    """A checkpoint of the trainer, for the broker's spool to copy. Answered by `CheckpointWanted`; may be repeated."""

    step: int
    """Optimizer steps contained."""
    manifest: bytes
    """Contents of its manifest."""
    kept: list[int]
    """Steps of the checkpoints that the trainer keeps; copies of older ones may go."""
    best: bytes = b""
    """Contents of ``best.json``; empty if there is none."""


class PutCheckpointPart(Message, frozen=True):
    """Part of a file of the checkpoint that was offered last, in order. Answered by `PutCheckpointPartDone`."""

    step: int
    name: str
    """Path of the file in the checkpoint."""
    offset: int
    """Bytes of the file before this part."""
    content: memoryview


# ── received from spools ────────────────────────────────────────────────────────────────────


class Fetched(Message, frozen=True):
    """Answer to `Fetch`; what the spool does not have is empty."""

    request_id: int
    payloads: list[memoryview]


class PutWeightsDone(Message, frozen=True):
    """Answer to `PutWeights`, after the last part once the version is on disk."""

    part: int
    problem: str = ""
    """Reason for which the version cannot be stored; empty if it can."""


class WeightsList(Message, frozen=True):
    """Answer to `ListWeights`: oldest first."""

    files: list[WeightsFile]


class FetchedWeights(Message, frozen=True):
    """Answer to `FetchWeights`."""

    part: int
    """-1 if the spool no longer has it, or if it is damaged there."""
    payload: memoryview
    crc32: int


class FileList(Message, frozen=True):
    """Answer to `ListFiles`."""

    files: list[FileDigest]
    problem: str = ""
    """Reason for which there are none."""


class FilePart(Message, frozen=True):
    """Answer to `FetchPart`; the content is empty where there is no such file any more."""

    sha256: bytes
    offset: int
    content: memoryview


class CheckpointWanted(Message, frozen=True):
    """Answer to `OfferCheckpoint`: the copy is complete and on disk if nothing is wanted."""

    step: int
    offsets: dict[str, int]
    """Bytes that are there of each incomplete file, by its path."""
    problem: str = ""
    """Reason for which the checkpoint cannot be stored; empty if it can."""


class PutCheckpointPartDone(Message, frozen=True):
    """Answer to `PutCheckpointPart`."""

    problem: str = ""
    """Reason for which the part was not stored; empty if it was."""


# ── received by the supervisor ──────────────────────────────────────────────────────────────


class Progress(Message, frozen=True):
    """Metrics of one step, for display."""

    step: int
    steps: int
    metrics: dict[str, float]


class Evaluated(Message, frozen=True):
    """Result of an evaluation: held-out accuracy of one version."""

    policy_version: int
    accuracy: float
    num_prompts: int
    metrics: dict[str, float] = {}

    @property
    def num_failed(self) -> int:
        """Completions that failed, and are in no other number."""
        return int(self.metrics.get("failed", 0))


class Failures(Message, frozen=True):
    """Failed units of the run so far, for display; sent when the counts change."""

    counts: dict[str, int]
    """Number of each cause, ``stage: reason``, most frequent first."""
    attempts: dict[str, int] = {}
    """Attempts by stage, the failed ones included."""


class Returned(Message, frozen=True):
    """A node that `Exited` told about is back, to the supervisor that started it again."""

    node: str
    away_s: float
    step: int = -1
    """Trainers: steps that its checkpoint has, from which it goes on; -1 for other roles."""


class Drained(Message, frozen=True):
    """Answer to `Drain`: the node has left."""

    node: str
    problem: str = ""
    """Reason for which it did not leave as requested; empty if it did."""
    is_refused: bool = False
    """True if it was not asked to leave: there is no such node, or it cannot be drained."""


class Stacks(Message, frozen=True):
    """Stacks of the threads and asyncio tasks of a node, to the broker, and from it to who asked."""

    node: str
    text: str
    problem: str = ""
    """Reason for which there are none; empty if there are."""


class SettingsChanged(Message, frozen=True):
    """Answer to `SetSettings`, to every supervisor: live settings have changed, and that is on disk."""

    values: dict[str, bool | int | float | str]
    """New values by full key; without those that were so already."""
    by: str
    """Supervisor that set them."""
    problem: str = ""
    """Reason for which nothing was changed, to that supervisor alone."""


class Paused(Message, frozen=True):
    """Answer to `Pause`, to every supervisor: sampling is paused or goes on, and that is on disk."""

    is_paused: bool
    by: str
    """Supervisor that asked for it."""


class Status(Message, frozen=True):
    """Answer to `StatusWanted`: the state of the run by the broker's books."""

    run: str
    """Name of the run directory."""
    state: Literal["running", "paused", "ending"]
    step: int
    """Steps that got a batch."""
    steps: int
    policy_version: int
    """Live version; -1 before the first."""
    window: int
    """Most groups that may be open."""
    open_groups: int
    group_size: int
    groups: dict[str, int]
    """Open groups by state: ``unleased``, ``sampling``, ``grading``, ``complete``, ``in batch``."""
    nodes: list[NodeStatus]
    time_s: float = 0.0
    """Duration of the run in seconds."""
    incidents: list[Incident] = []
    """Last deaths, drops and failures, the newest first."""
    metrics: dict[str, float] = {}
    """Metrics of the last step; empty before the first."""
    accuracy: float | None = None
    """Held-out accuracy of the last evaluation; None before the first."""
    base_accuracy: float | None = None
    """Held-out accuracy before the first step."""
    notes: list[str] = []
    """Sentences on the run as a whole, such as its pause."""
    accuracy_failed: int = 0
    """Completions of the last evaluation that failed, and are not in its accuracy."""


class Finished(Message, frozen=True):
    """The run is over."""

    status: Literal["finished", "failed", "interrupted"]
    cause: str


ToBroker = (
    Hello | Ready | Beat | Asleep | AskTurn | Draining | Bye | Drain | StoreSet | StoreGet
    | Offer | Scored | Failed | StartedOver | Live | Transferred | TransferFailed
    | Take | Commit | Publishing | Uploaded | Stepped
    | Stored | Exited | Interrupt | StatusWanted | Pause | SetSettings
    | StacksWanted | Stacks
)  # fmt: skip
ToRollout = (
    Welcome | Reject | StoreValue | Transfer | Stop | Drain | Wake | Sleep
    | StacksWanted | Lease | Settled | Cancelled | Hold | Release | Fetched | Abort | Spools | FileList | FilePart
    | WeightsList | FetchedWeights
)  # fmt: skip
ToReward = Welcome | Reject | Stop | Drain | Grade | Fetched | Spools | StacksWanted
ToTrainer = (
    Welcome | Reject | StoreValue | Transfer | Stop | Drain | Wake
    | Batch | Published | Evaluating | Evaluated | Fetched | Abort | Assembled | Disbanded
    | Upload | PutWeightsDone | Spools | FileList | FilePart | CheckpointWanted | PutCheckpointPartDone
    | StacksWanted
)  # fmt: skip
ToMachine = Welcome | Reject | StoreValue | Stop | Assembled | Disbanded
ToFirstRank = Hello | Beat | Checked | PartWritten | StoreSet | StoreGet
ToShard = Welcome | Reject | Stop | Batch | Work | Fetched | StoreValue | Spools
ToSpool = (
    Welcome | Reject | Stop | Put | Fetch | Trim
    | PutWeights | ListWeights | FetchWeights | ListFiles | FetchPart | OfferCheckpoint | PutCheckpointPart | Accepted
)  # fmt: skip
ToSupervisor = (
    Welcome | Reject | Stop | Progress | Evaluated | Drained | Finished | Failures
    | Status | Paused | SettingsChanged | Stacks | Returned
)  # fmt: skip

AnyMessage = ToBroker | ToRollout | ToReward | ToTrainer | ToMachine | ToFirstRank | ToShard | ToSpool | ToSupervisor

CODEC = Codec(AnyMessage)
"""Decoder of every message of this module."""
