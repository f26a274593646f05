"""Reward model served by an engine: ``vllm serve MODEL --runner pooling`` and its ``/classify``."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.endpoint import EndpointOptions
from asyncrl.reward.verifier import VerifierInput


class _Class(Struct):
    probs: list[float]


class _Classified(Struct):
    data: list[_Class]


class RewardModel(EndpointOptions, frozen=True, kw_only=True):
    """
    Output of a classifier for the chat with the completion as its last turn; the engine applies the chat template.

    For models whose score is not a probability, set ``activation = false``. ``correct`` is 1 if the score is above
    ``threshold``.
    """

    model: str
    """Name of the served model; ``url`` is, for example, ``http://127.0.0.1:8000/classify``."""
    label: Annotated[int, Meta(ge=0)] = 0
    """Index of the output that is the score; a reward model has one output."""
    activation: bool = True
    """Apply the sigmoid or softmax of a classifier."""
    threshold: float = 0.5

    async def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        request = {"model": self.model, "messages": _chat(inputs), "use_activation": self.activation}
        score = self._score(await self.endpoint.post(request))
        return {"score": score, "correct": float(score > self.threshold)}

    def _score(self, answer: Any) -> float:
        try:
            return msgspec.convert(answer, _Classified).data[0].probs[self.label]
        except (msgspec.ValidationError, IndexError) as error:
            raise VerifierError(f"{self.url} answered {answer!r:.80}, expected data[0].probs[{self.label}]") from error


def _chat(inputs: VerifierInput) -> list[dict[str, str]]:
    chat = inputs.prompt if isinstance(inputs.prompt, list) else [{"role": "user", "content": inputs.prompt}]
    return [*chat, {"role": "assistant", "content": inputs.completion}]
