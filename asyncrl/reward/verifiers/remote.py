"""Verifier that asks a service of your own over HTTP."""

import asyncio
import random
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.verifier import VerifierInput

# ── endpoint ──────────────────────────────────────────────────────────────────────────────────
# A JSON service over HTTP, with retries until a deadline.
#
#     post ── POST ──▶ 200 ─▶ answer
#          ▲           429, 5xx, no connection ─┐      busy or not started yet: retry
#          └──────── wait, twice as long ◀──────┘
#                      anything else ─▶ VerifierError           a retry would give the same
#
# httpx keeps connections open, and its requests can be cancelled: `urllib` in threads would leave a thread behind for
# every request that hangs.

MAX_BYTES = 1 << 20
"""Largest answer: a number and some metrics need far less."""
MAX_WAIT_S = 2.0
"""Longest wait between two attempts."""
CONNECTIONS = 64
"""The most inputs a worker is sent at once."""


class _Busy(Exception):
    """The service may answer a later attempt."""


class EndpointOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Options of verifiers that ask a service; an invalid URL is refused when they are made."""

    url: str
    token_file: str = ""
    """File with the token for ``Authorization: Bearer``; empty sends none."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """Seconds for one input, all attempts together; below ``reward.timeout_s``."""
    wait_s: Annotated[float, Meta(gt=0)] = 0.1
    """Seconds before the second attempt; doubled for each further one, up to 2 s."""

    def __post_init__(self) -> None:
        self.endpoint  # noqa: B018

    @cached_property
    def endpoint(self) -> "Endpoint":
        return Endpoint(self.url, token_file=self.token_file, deadline_s=self.deadline_s, wait_s=self.wait_s)


class Endpoint:
    """Client of one URL, for one event loop; raises `ConfigError` for an invalid URL or token file."""

    def __init__(self, url: str, *, token_file: str = "", deadline_s: float, wait_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url is {url!r}, expected http://HOST:PORT/PATH or https://...")
        self._url = url
        self._deadline_s = deadline_s
        self._wait_s = wait_s
        self._client = httpx.AsyncClient(
            headers={"content-type": "application/json"} | _bearer(token_file),
            timeout=None,  # the deadline covers all attempts
            limits=httpx.Limits(max_connections=CONNECTIONS),
            trust_env=False,
        )

    async def post(self, request: object) -> Any:
        """
        Send ``request`` as JSON, and return the decoded answer.

        Raises:
            VerifierError: The answer is an error or not JSON, or there was none in time; only the latter is retryable.
        """
        body = msgspec.json.encode(request)
        failure, wait_s = "no answer yet", self._wait_s
        try:
            async with asyncio.timeout(self._deadline_s):
                while True:
                    try:
                        return self._decoded(await self._attempt(body))
                    except _Busy as busy:
                        failure = str(busy)
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # spreads the retries of many clients
                    wait_s = min(MAX_WAIT_S, 2 * wait_s)
        except TimeoutError as error:
            raise VerifierError(
                f"{self._url} gave no verdict within {self._deadline_s:g} s: {failure}", retryable=True
            ) from error

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _attempt(self, body: bytes) -> bytes:
        try:
            async with self._client.stream("POST", self._url, content=body) as response:
                answer = bytearray()
                async for part in response.aiter_bytes():
                    answer += part
                    if len(answer) > MAX_BYTES:
                        raise VerifierError(f"{self._url} answered with more than {MAX_BYTES} bytes")
        except httpx.TransportError as error:
            raise _Busy(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _Busy(f"status {status}: {_start(answer)}")
        if status != httpx.codes.OK:
            raise VerifierError(f"{self._url} answered with status {status}: {_start(answer)}")
        return bytes(answer)

    def _decoded(self, answer: bytes) -> Any:
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise VerifierError(f"{self._url} answered with something else than JSON: {_start(answer)}") from error


def _bearer(token_file: str) -> dict[str, str]:
    if not token_file:
        return {}
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {token_file!r} cannot be read: {error}") from error
    return {"authorization": f"Bearer {token}"}


def _start(answer: bytes | bytearray) -> str:
    return repr(bytes(answer[:80]).decode("utf-8", "replace"))


# ── remote ────────────────────────────────────────────────────────────────────────────────────


class Remote(EndpointOptions, frozen=True, kw_only=True):
    """
    Posts the `VerifierInput` to the service, which answers with a number, or an object with ``score`` and metrics.

        {"prompt": ..., "completion": ..., "answer": ..., "data_source": ..., "extra": {}, "finish_reason": "stop",
         "num_tokens": 117, "turns": [], "episode_reward": null, "scores": {}}                         ─▶ {"score": 1.0}
    """

    async def __call__(self, inputs: VerifierInput, /) -> Any:
        return await self.endpoint.post(inputs)


# ── reward model ──────────────────────────────────────────────────────────────────────────────
# Reward model served by an engine: ``vllm serve MODEL --runner pooling`` and its ``/classify``.


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
        chat = inputs.prompt if isinstance(inputs.prompt, list) else [{"role": "user", "content": inputs.prompt}]
        messages = [*chat, {"role": "assistant", "content": inputs.completion}]
        request = {"model": self.model, "messages": messages, "use_activation": self.activation}
        score = self._score(await self.endpoint.post(request))
        return {"score": score, "correct": float(score > self.threshold)}

    def _score(self, answer: Any) -> float:
        try:
            return msgspec.convert(answer, _Classified).data[0].probs[self.label]
        except (msgspec.ValidationError, IndexError) as error:
            raise VerifierError(f"{self.url} answered {answer!r:.80}, expected data[0].probs[{self.label}]") from error
