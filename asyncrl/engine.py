"""
Interface between a rollout and an inference engine. A host implements `Engine` to sample with its own.

    generate ──▶ completion, each token tagged with the policy version that wrote it
    written ──▶ the tokens of a running request so far, to resume it on another node
    pause ─▶ swap ─▶ resume      between two decode steps; running requests keep their tokens and continue
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from asyncrl.config.sections.sampling import ToolParser
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.codec import Message
from asyncrl.messages.session import StoreValue
from asyncrl.messages.trajectory import Prompt, Routing, Sampling, Span
from asyncrl.messages.weights import Abort, Member, Transfer
from asyncrl.messages.words import CallFault, FinishReason
from asyncrl.weights.contents.layout import TensorSpec

# ── turns ──────────────────────────────────────────────────────────────────────────────────────

ChatMessage = dict[str, Any]
"""
A message of a chat, as in `asyncrl.environment.Message`; a picture in it has ``digest``, ``width`` and ``height`` in
place of its file.
"""
IMAGE = "image"
"""Type of a part of a message's content that is a picture."""


class CalledTool(Struct, frozen=True, kw_only=True):
    """See `asyncrl.environment.ToolCall`."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    problem: str = ""
    fault: CallFault | Literal[""] = ""


class PolicyTurn(Struct, frozen=True, kw_only=True):
    """See `asyncrl.environment.Said`."""

    text: str
    content: str = ""
    thought: str = ""
    tool_calls: list[CalledTool] = []
    finish_reason: str = "stop"
    seat: int = 0


# ── boundary ───────────────────────────────────────────────────────────────────────────────────────
# Interface for what stands between two turns: token ids of messages that follow tokens of the policy.
#
#     policy's tokens │ <|im_end|> <|im_start|>tool ... <|im_end|> <|im_start|>assistant │ policy's tokens
#                     └──────────────────── after(messages, last_ids) ───────────────────┘
#
# `asyncrl.rollout.engines.turn_boundaries.make_boundary` makes one from a tokenizer and its chat template.


class TurnBoundary(Protocol):
    def after(self, messages: Sequence[ChatMessage], last_ids: Sequence[int], /) -> list[int]:
        """
        Token ids from the end of a turn of the policy to the beginning of its next one. A picture is as many tokens as
        the model reads of it.

        Args:
            messages: What was said in between; may be empty, if the policy is to go on.
            last_ids: Tokens of the policy's turn, as sampled: what ends a turn is not repeated if it wrote that itself.

        Raises:
            EngineError: The template cannot render these messages, or they have pictures and the model reads none.
        """

    def opening(self, messages: Sequence[ChatMessage], tools: str = "", /) -> list[int]:
        """
        Token ids of a whole chat up to the beginning of the policy's turn, for a context that follows nothing.

        ``tools`` are those of this chat, as `Prompt.tools`; empty takes those of the run. Raises `EngineError` as
        `after`, or if the template does not show the tools, or has no form for calls of them.
        """

    def quoted(self, messages: Sequence[ChatMessage], /) -> list[ChatMessage]:
        """Messages for `retold`, in which the special tokens that their texts spell are marked as text."""

    def retold(self, messages: Sequence[ChatMessage], read_ids: Sequence[int], tools: str = "", /) -> list[int] | None:
        """
        Token ids of the whole conversation as the chat template renders it now, or None if the policy reads just that.

        With ``environment.history = "as_template"`` the next turn follows these instead of ``read_ids``, as a context
        that follows nothing. Templates of reasoning models leave out the thoughts of turns before the last question.

        Args:
            messages: Prompt and answers as `quoted`, and turns as `message` gives them.
            read_ids: Tokens that the policy would read otherwise: those of the path, and of `after`.
        """

    def message(self, token_ids: Sequence[int], /) -> ChatMessage:
        """
        A turn of the policy as a message of the chat: all of its text, without the tokens that ended it.

        For a template that shows an answer of a tool only after a call, its content, thought and calls.
        """

    def said(self, token_ids: Sequence[int], finish_reason: FinishReason, tools: str = "", /) -> PolicyTurn:
        """Text of a turn, its thought, and the calls in it of ``tools``; empty takes those of the run."""

    def text(self, token_ids: Sequence[int], /) -> str:
        """Text of any tokens without special tokens."""


# ── engine ─────────────────────────────────────────────────────────────────────────────────────

if TYPE_CHECKING:  # This package needs no torch: a host's engine may use anything.
    from torch import Tensor

Send = Callable[[Message], Coroutine[object, object, None]]
"""`Link.send` of the link to the broker."""


class Completion(Struct, frozen=True, kw_only=True):
    """T tokens written by the policy for one `Request`. T is at least 1."""

    completion_ids: list[int]
    """[T] token ids, the end-of-sequence token included if the policy wrote it."""
    behavior_logprobs: list[float]
    """[T] log-probabilities under the distribution sampled from (temperature, top-p and top-k applied), nats."""
    spans: list[Span]
    """Policy version of every token: contiguous, non-empty spans that cover 0 .. T in order."""
    finish_reason: FinishReason
    """``stop`` after an end-of-sequence token or stop string, ``length`` at max_tokens, ``unfinished`` if running."""
    generate_s: float
    """Seconds spent on it, those of ``Request.resume_from`` included."""
    grids: list[tuple[int, int, int]] = []
    """Patches of each picture of the request, as the model read it: in time, in height, in width."""
    processor: str = ""
    """`ImageProcessor.version`, or a like text of an engine of your own; at most 500 characters."""
    mask_counts: list[int] = []
    """Number of ids in each sampling mask, [T]; empty unless ``Sampling.replay_mask`` asks for masks."""
    mask_ids: list[int] = []
    """Ids left by top-p and top-k, token after token, ascending in each mask; the token itself is among them."""
    routing: Routing | None = None
    """Experts of L + T - 1 tokens of prompt and completion; None unless ``Sampling.replay_routes`` asks for them."""


class Request(Struct, frozen=True, kw_only=True):
    """One completion to sample. Requests are told apart by identity: a group may hold equal ones."""

    prompt_ids: list[int]
    """[L] token ids."""
    sampling: Sampling
    seed: int | None
    """
    The tokens are a function of seed, weights and prompt, independent of other requests in the batch. None draws from a
    generator of the engine, which no other engine shares: the same request again gets other tokens.
    """
    resume_from: Completion | None = None
    """
    Unfinished completion of the same request, of another node or an earlier policy. The new completion begins with its
    tokens, log-probs, spans, masks and experts, and continues with the draws of an uninterrupted one if it has a
    seed. They count for ``max_tokens``.
    """
    priority: int = 0
    """Requests with a lower number get a slot first, if the engine has priorities. Rollouts have 1."""
    images: tuple[bytes, ...] = ()
    """Files of the pictures in ``prompt_ids``, in the order of their tokens; in an episode, of all turns before too."""


class Engine(Protocol):
    """
    An inference engine, called from one event loop. `asyncrl.testing.FakeEngine` is a small implementation.

    An engine may have an attribute ``token_ids``, a `TokenIds`: those of trajectories are then compared with it before
    they leave the node, and it with the trainer's. It may have ``num_computed``, the tokens computed so far, prompts
    included, or any number that grows while it works; without it, the tokens of `written` show that it does. It may
    have a ``device``, the `torch.device` of its weights, with an index: new ones are then staged there, or in
    page-locked memory beside it. Without it that is the CPU.
    """

    def encode(self, prompt: Prompt, /) -> list[int]:
        """
        Token ids of a prompt, with the chat template applied to a chat. Raises `EngineError` if it cannot.

        A picture is as many tokens as the model reads of it, which its width and height determine.
        """

    def decode(self, token_ids: list[int], /) -> str:
        """Text of a completion without special tokens. Verifiers judge this text."""

    def specs(self) -> list[TensorSpec]:
        """Name, shape and dtype of every parameter that `swap` expects; empty if the weights cannot be replaced."""

    async def generate(self, request: Request, /) -> Completion:
        """
        Sample one completion. Calls run concurrently; cancelling one frees its slot.

        Raises:
            EngineError: The request failed. ``retryable`` says whether another attempt may succeed.
            EngineDied: The engine cannot be used any more; the rollout ends.
        """

    def written(self, request: Request, /) -> Completion | None:
        """
        Tokens of a running request so far, ``resume_from`` included, as an ``unfinished`` completion.

        None if there are no tokens yet, the request is not running, or the engine cannot tell. The request is then
        sampled from the start when its node leaves, or when it makes way for requests of users.
        """

    async def pause(self) -> None:
        """Stop decoding. Returns once no decode step runs; none starts before `resume`. Pausing twice is allowed."""

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]", /) -> None:
        """
        Replace the weights and credit tokens from here on to ``policy_version``. Called only while paused.

        Running requests continue under the new weights. Versions need not increase.

        Args:
            weights: Every tensor of `specs` by name. Borrowed: valid until this returns, so copy the values. A
                `MultiProcessEngine` gets none if its processes have received them, and otherwise tensors in memory
                that these can map: `asyncrl.weights.shared.SharedTensors.of` says where.
        """

    async def resume(self) -> None:
        """Continue decoding. No error if the engine is not paused or is closed."""

    async def aclose(self) -> None:
        """Free all memory and processes. Running requests raise a retryable `EngineError`. Idempotent."""


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that can leave its devices to a trainer. Implemented beside `Engine`."""

    async def sleep(self) -> int:
        """
        Move the weights to host memory, and free what else is on the devices. Returns the number of bytes moved.

        Called while paused, when no request is in the engine.
        """

    async def wake(self) -> None:
        """Undo `sleep`. The engine remains paused. No error if it does not sleep."""


@runtime_checkable
class ConversingEngine(Protocol):
    """An engine with a tokenizer that can continue a turn of the policy. Implemented beside `Engine`."""

    def boundary(self, *, is_chat: bool = True, tools: str = "", tool_parser: ToolParser = "auto") -> TurnBoundary:
        """
        TurnBoundary of the episodes of a run: it gives what stands between two turns.

        Args:
            is_chat: Prompts are chats; otherwise plain text.
            tools: Tools of the environment, as `Prompt.tools`.
            tool_parser: ``environment.tool_parser``.

        Raises:
            ConfigError: The model's chat template cannot be used for episodes with these tools.
        """


class EngineLoad(Struct, frozen=True):
    """Load of an engine as of its last decode step."""

    kv_usage: float
    """Fraction of the KV cache that running requests use. Prefixes kept for later requests count as free."""
    num_preempted: int
    """Requests that lost their cache to others so far, and are computed again."""
    num_running: int
    num_waiting: int
    """Requests without a place in the batch."""
    kv_tokens: int = 0
    """Size of the KV cache, in tokens; 0 if the engine cannot tell."""


@runtime_checkable
class MeasuredEngine(Protocol):
    """An engine that tells how full it is. Implemented beside `Engine`."""

    def measure(self) -> EngineLoad | None:
        """The load now, None if it was started without what measures it. Called every few seconds."""


class WeightReceiver(Protocol):
    """Receives published weights, see `asyncrl.weights.publish.Receiver`."""

    async def transfer(self, transfer: Transfer, /) -> float:
        """
        Receive one version into staging memory while the engine decodes, and return the seconds it took.

        Raises:
            TransferError: The transfer failed. The next one may succeed.
            EngineDied: A process of the engine ended during the transfer.
        """

    def weights(self) -> "Mapping[str, Tensor]":
        """Staged tensors by name, for `Engine.swap`; empty if they are staged in other processes."""

    def deliver(self, value: StoreValue, /) -> None:
        """Hand over the broker's answer to a rendezvous request of this receiver."""

    def abort(self, abort: Abort, /) -> None:
        """Let the transfer of this group fail now, begun or not. Ignored if it has ended."""

    async def aclose(self) -> None:
        """Close transfer groups and threads. Idempotent."""


@runtime_checkable
class MultiProcessEngine(Protocol):
    """An engine whose model is in other processes of this machine, which load weights. Implemented beside `Engine`."""

    ranks: int
    """
    Number of these processes. The first takes part in a collective transfer for all of them; with
    ``weights.staging = "bucket"``, each does.
    """

    async def receiver(self, member: Member, send: Send, weights: Weights, /, *, interface: str) -> WeightReceiver:
        """
        Connect the processes to the collective transfers of node ``member``, once per session.

        Args:
            send: Sends to the broker.
            interface: Address of this machine on which the processes connect to the trainer.
        """
