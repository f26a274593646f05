"""A reward model that an engine serves: ``vllm serve MODEL --runner pooling`` and its ``/classify``."""

from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import VerifierError
from asyncrl.reward.endpoint import Endpoint
from asyncrl.reward.verifier import VerifierInput


class _Class(Struct):
    probs: list[float]


class _Classified(Struct):
    data: list[_Class]


class RewardModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """
    What a classifier says of the chat with the completion as its last turn; the engine applies the chat template.

    Models whose score is no probability are asked for it raw, with ``activation = false``. ``correct`` is whether the
    score is above ``threshold``.
    """

    url: str
    """Such as ``http://127.0.0.1:8000/classify``."""
    model: str
    """The name it is served under."""
    label: Annotated[int, Meta(ge=0)] = 0
    """Which of its outputs is the score; a reward model has one."""
    activation: bool = True
    """Pass the output through sigmoid or softmax, as the engine would for a classifier."""
    threshold: float = 0.5
    token_file: str = ""
    """Holds what is sent as ``Authorization: Bearer``."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """For one sample, all tries together; below ``reward.timeout_s``."""
    wait_s: Annotated[float, Meta(gt=0)] = 0.1
    """Before the second try; then twice as long each time, up to 2 s."""

    def __post_init__(self) -> None:
        """Refuse what is no URL."""
        self._endpoint  # noqa: B018

    async def __call__(self, sample: VerifierInput, /) -> dict[str, float]:
        """
        The score.

        Raises:
            VerifierError: The service gave none, or it has no such label.
        """
        question = {"model": self.model, "messages": _chat(sample), "use_activation": self.activation}
        score = self._score(await self._endpoint.ask(question))
        return {"score": score, "correct": float(score > self.threshold)}

    def _score(self, said: Any) -> float:
        try:
            return msgspec.convert(said, _Classified).data[0].probs[self.label]
        except (msgspec.ValidationError, IndexError) as error:
            raise VerifierError(f"{self.url} answered {said!r:.80}, expected data[0].probs[{self.label}]") from error

    @cached_property
    def _endpoint(self) -> Endpoint:
        return Endpoint(self.url, token_file=self.token_file, deadline_s=self.deadline_s, wait_s=self.wait_s)


def _chat(sample: VerifierInput) -> list[dict[str, str]]:
    asked = sample.prompt if isinstance(sample.prompt, list) else [{"role": "user", "content": sample.prompt}]
    return [*asked, {"role": "assistant", "content": sample.completion}]
