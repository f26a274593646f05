"""Verifiers that ask a service of your own over HTTP."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import ConfigError, ServiceFailed, VerifierError
from asyncrl.reward.verifier import VerifierInput
from asyncrl.wire.endpoint import Endpoint, bearer
from asyncrl.wire.http import start_of

# ── service ───────────────────────────────────────────────────────────────────────────────────

MAX_BYTES = 1 << 20
"""Largest answer: a number and some metrics need far less."""
CONNECTIONS = 64
"""The most inputs a worker is sent at once."""
OK = 200


class ServiceOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Options of verifiers that ask a service; an invalid URL is refused when they are made."""

    url: str
    token_file: str = ""
    """File with the token for ``Authorization: Bearer``; empty sends none."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """Seconds for one input, all attempts together; below ``reward.timeout_s``."""
    wait_s: Annotated[float, Meta(gt=0)] = 0.1
    """Seconds before the second attempt; doubled for each further one, up to 2 s."""

    def __post_init__(self) -> None:
        self.service  # noqa: B018

    @cached_property
    def service(self) -> "JsonService":
        return JsonService(self.url, token_file=self.token_file, deadline_s=self.deadline_s, wait_s=self.wait_s)


class JsonService:
    """A URL that answers JSON with JSON; raises `ConfigError` for an invalid URL or token file."""

    def __init__(self, url: str, *, token_file: str = "", deadline_s: float, wait_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url is {url!r}, expected http://HOST:PORT/PATH or https://...")
        self._url = url
        self._endpoint = Endpoint(
            url,
            headers=_authorization(token_file),
            deadline_s=deadline_s,
            wait_s=wait_s,
            max_bytes=MAX_BYTES,
            connections=CONNECTIONS,
        )

    async def post(self, request: object) -> Any:
        """
        Send ``request`` as JSON, and return the decoded answer.

        Raises:
            VerifierError: The answer is an error or not JSON, or there was none in time; only the latter is retryable.
        """
        try:
            status, answer = await self._endpoint.post(msgspec.json.encode(request))
        except ServiceFailed as error:
            raise VerifierError(str(error), retryable=error.retryable) from error
        if status != OK:
            raise VerifierError(f"{self._url} answered with status {status}: {start_of(answer)}")
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise VerifierError(f"{self._url} answered with something else than JSON: {start_of(answer)}") from error

    async def aclose(self) -> None:
        await self._endpoint.aclose()


def _authorization(token_file: str) -> dict[str, str]:
    if not token_file:
        return {}
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {token_file!r} cannot be read: {error}") from error
    return bearer(token)


# ── remote ────────────────────────────────────────────────────────────────────────────────────


class Remote(ServiceOptions, frozen=True, kw_only=True):
    """
    Posts the `VerifierInput` to the service, which answers with a number, or an object with ``score`` and metrics.

        {"prompt": ..., "completion": ..., "answer": ..., "data_source": ..., "extra": {}, "finish_reason": "stop",
         "num_tokens": 117, "turns": [], "episode_reward": null, "scores": {}}                         ─▶ {"score": 1.0}
    """

    async def __call__(self, inputs: VerifierInput, /) -> Any:
        return await self.service.post(inputs)


# ── reward model ──────────────────────────────────────────────────────────────────────────────
# Reward model served by an engine: ``vllm serve MODEL --runner pooling`` and its ``/classify``.


class _Class(Struct):
    probs: list[float]


class _Classified(Struct):
    data: list[_Class]


class RewardModel(ServiceOptions, frozen=True, kw_only=True):
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
        chat = inputs.prompt if isinstance(inputs.prompt, list) else [{"role": "user", "content": inputs.prompt}]
        messages = [*chat, {"role": "assistant", "content": inputs.completion}]
        request = {"model": self.model, "messages": messages, "use_activation": self.activation}
        score = self._score(await self.service.post(request))
        return {"score": score, "correct": float(score > self.threshold)}

    def _score(self, answer: Any) -> float:
        try:
            return msgspec.convert(answer, _Classified).data[0].probs[self.label]
        except (msgspec.ValidationError, IndexError) as error:
            raise VerifierError(f"{self.url} answered {answer!r:.80}, expected data[0].probs[{self.label}]") from error
