"""
What a rollout needs from an inference engine, so that a host can adapt its own.

    generate ──▶ tokens, each tagged with the version that wrote it
    written ──▶ the tokens so far, for whoever goes on with them
    pause ─▶ swap ─▶ resume      between two decode steps; running requests stay and go on
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from asyncrl.config.sections import Weights
from asyncrl.messages import FinishReason, Member, Message, Prompt, Sampling, Span, StoreValue, Transfer
from asyncrl.weights.contents.layout import TensorSpec

if TYPE_CHECKING:  # the rollout room itself needs no torch: a host's engine may use anything
    from torch import Tensor

Send = Callable[[Message], Coroutine[object, object, None]]
"""`Link.send` of the link to the broker."""


class Completion(Struct, frozen=True, kw_only=True):
    """What the policy wrote. T tokens."""

    completion_ids: list[int]
    """[T] token ids, the end-of-sequence token included if the policy wrote it."""
    behavior_logprobs: list[float]
    """[T] log-probabilities under the distribution sampled from (temperature, top-p and top-k applied), nats."""
    spans: list[Span]
    """Contiguous, covering 0 .. T."""
    finish_reason: FinishReason
    generate_s: float


class Request(Struct, frozen=True, kw_only=True):
    """One completion to sample."""

    prompt_ids: list[int]
    """[L] token ids."""
    sampling: Sampling
    seed: int
    """Same seed, same weights, same prompt: same tokens, whatever else is being decoded."""
    resume_from: Completion | None = None
    """
    Go on from here: an unfinished completion of the same request, of another node or an earlier policy. The completion
    begins with it, log-probs and spans included, and draws what it would have drawn undisturbed.
    """


class Engine(Protocol):
    """An inference engine. All methods are called from one event loop."""

    def encode(self, prompt: Prompt, /) -> list[int]:
        """Token ids of a prompt, chat template applied if it is a chat."""

    def decode(self, token_ids: list[int], /) -> str:
        """Text of a completion, without special tokens."""

    def specs(self) -> list[TensorSpec]:
        """The parameters `swap` expects. Empty: this engine's weights are not ours to change."""

    async def generate(self, request: Request, /) -> Completion:
        """
        Sample one completion. Cancelling the task frees its slot.

        Raises:
            EngineError: It could not be done; says whether trying again may help.
        """

    def written(self, request: Request, /) -> Completion | None:
        """
        What a running request has so far, ``begun`` included, as an ``unfinished`` completion.

        None: nothing yet, it does not run, or this engine cannot tell; it is then begun anew when its node leaves.
        """

    async def pause(self) -> None:
        """Return once no decode step is running; none starts before `resume`."""

    async def swap(self, policy_version: int, weights: "Mapping[str, Tensor]", /) -> None:
        """
        Decode with these weights from now on. Only while paused.

        Args:
            weights: Every tensor of `specs` by name, borrowed: copy out of them. Empty for a `MultiProcessEngine`:
                then take what its own processes have received.
        """

    async def resume(self) -> None:
        """Go on decoding."""

    async def aclose(self) -> None:
        """Free everything. Running requests raise `EngineError`."""


class WeightReceiver(Protocol):
    """What brings weights; `asyncrl.weights.receive.Receiver` is one."""

    async def transfer(self, transfer: Transfer, /) -> float:
        """
        Receive into staging while decoding goes on; seconds it took.

        Raises:
            TransferError: It broke, and may be tried again.
            EngineDied: The engine that was to receive it is gone.
        """

    def weights(self) -> "Mapping[str, Tensor]":
        """What lies staged, for `Engine.swap`; empty if it lies in other processes."""

    def deliver(self, value: StoreValue, /) -> None:
        """An answer to the rendezvous."""

    async def aclose(self) -> None:
        """End its groups and threads. Idempotent."""


@runtime_checkable
class MultiProcessEngine(Protocol):
    """An engine whose model lives in processes of its own, which receive weights themselves."""

    ranks: int
    """How many such processes."""

    async def receiver(self, member: Member, send: Send, weights: Weights, /) -> WeightReceiver:
        """
        Ready the processes for transfers to ``member``, one session of the link to the broker long.

        Args:
            send: Carries their rendezvous.
        """
