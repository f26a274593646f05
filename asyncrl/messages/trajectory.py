"""A trajectory: what is to be sampled, and what was; see docs/life-of-a-trajectory.md."""

from collections.abc import Sequence
from math import fsum
from typing import Protocol

from asyncrl.messages.codec import Value
from asyncrl.messages.words import EMPTY, FinishReason, Split


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
    """
    A picture that the policy reads. Files of prompts' pictures are fetched by digest, once by each node; those that an
    environment has shown are in the trajectory.
    """

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


MAX_SEATS = 16
"""Most seats of an episode."""
SEAT_METRICS = tuple(f"seat_{seat}" for seat in range(MAX_SEATS))
"""Metrics of an episode of several seats: the reward of each, in a verdict too, by which groups are compared."""
REWARD_DIGITS = 9
"""Decimals of an episode's reward: turns that add up to 1 but for the rounding of floats give 1."""


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
    seat: int = 0
    """Seat of the episode that spoke. A turn follows one of its own seat; the prompt is followed by seat 0 alone."""
    num_images: int = 0
    """Pictures of the context: ``Trajectory.images``, after those of the prompt and of the turns before."""


class HasReward(Protocol):
    """A turn, on the wire or in the record of a rollout."""

    @property
    def seat(self) -> int: ...

    @property
    def reward(self) -> float: ...


def seat_rewards(turns: Sequence[HasReward]) -> dict[int, float]:
    """Sum of the rewards of each seat that spoke, in the order of the seats."""
    rewards: dict[int, list[float]] = {}
    for turn in turns:
        rewards.setdefault(turn.seat, []).append(turn.reward)
    return {seat: round(fsum(rewards[seat]), REWARD_DIGITS) for seat in sorted(rewards)}


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
    """
    Pictures in the order of their tokens: those of the prompt, unless every context follows nothing, and then those of
    each turn's context.
    """
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
    opened: str = ""
    """Thought that the prompt of ``text`` had opened, such as ``<think>``, and the policy only closes; often empty."""
    image_files: list[memoryview] = []
    """
    Files of the pictures that only contexts have, each once, in the order in which they were read first. An unfinished
    episode may have more of them, which its snapshot names.
    """

    @property
    def num_prompt_images(self) -> int:
        """Pictures among ``images`` that are the prompt's."""
        return len(self.images) - sum(turn.num_images for turn in self.turns)


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
    """See `TokenIds`, as `never`."""
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
    seats: int = 0
    """Seats of an episode: those of its turns are 0 .. seats - 1. 0 is unknown, and at most `MAX_SEATS`."""
    never: tuple[int, ...] = ()
    """Ids below `vocab_size` that no completion has, ascending: see `TokenIds`."""
