"""
Asks a service over HTTP, again and again until a deadline.

    ask ── POST ──▶ 200 ─▶ answer
         ▲          429, 5xx, no connection ─┐      busy, or not there yet: another try may help
         └──────── wait, twice as long ◀─────┘
                    anything else ─▶ VerifierError           asking again would be told the same

httpx, because it keeps connections open, and because a request of it can be cancelled: `urllib` in threads would leave
one behind for every request that hangs.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import msgspec

from asyncrl.errors import ConfigError, VerifierError

MAX_BYTES = 1 << 20
"""Of an answer: a number and some metrics."""
MAX_WAIT_S = 2.0
"""Between two tries."""
CONNECTIONS = 64
"""As many as a worker is given samples at once."""


class _Busy(Exception):
    """Not now."""


class Endpoint:
    """
    One URL. Used in one event loop.

    Args:
        url: ``http://`` or ``https://``.
        token_file: Holds what is sent as ``Authorization: Bearer``; empty sends none.
        deadline_s: For one question, all tries together.
        wait_s: Before the second try.

    Raises:
        ConfigError: It is no such URL, or the file cannot be read.
    """

    def __init__(self, url: str, *, token_file: str = "", deadline_s: float, wait_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"url is {url!r}, expected http://HOST:PORT/PATH or https://...")
        self._url = url
        self._deadline_s = deadline_s
        self._wait_s = wait_s
        self._client = httpx.AsyncClient(
            headers={"content-type": "application/json"} | _bearer(token_file),
            timeout=None,  # the deadline is around all tries
            limits=httpx.Limits(max_connections=CONNECTIONS),
            trust_env=False,
        )

    async def ask(self, question: object) -> Any:
        """
        What the service answers, read as JSON.

        Args:
            question: Sent as JSON.

        Raises:
            VerifierError: It answered that it cannot, or not in JSON, or not at all in time; says which.
        """
        body = msgspec.json.encode(question)
        trouble, wait_s = "no answer yet", self._wait_s
        try:
            async with asyncio.timeout(self._deadline_s):
                while True:
                    try:
                        return self._read(await self._post(body))
                    except _Busy as busy:
                        trouble = str(busy)
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # not all at the same moment
                    wait_s = min(MAX_WAIT_S, 2 * wait_s)
        except TimeoutError as error:
            raise VerifierError(
                f"{self._url} gave no verdict within {self._deadline_s:g} s: {trouble}", retryable=True
            ) from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post(self, body: bytes) -> bytes:
        """The answer of one try."""
        try:
            async with self._client.stream("POST", self._url, content=body) as response:
                said = bytearray()
                async for part in response.aiter_bytes():
                    said += part
                    if len(said) > MAX_BYTES:
                        raise VerifierError(f"{self._url} answered with more than {MAX_BYTES} bytes")
        except httpx.TransportError as error:
            raise _Busy(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status == httpx.codes.TOO_MANY_REQUESTS or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise _Busy(f"status {status}: {_start(said)}")
        if status != httpx.codes.OK:
            raise VerifierError(f"{self._url} answered with status {status}: {_start(said)}")
        return bytes(said)

    def _read(self, said: bytes) -> Any:
        try:
            return msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise VerifierError(f"{self._url} answered with what is not JSON: {_start(said)}") from error


def _bearer(token_file: str) -> dict[str, str]:
    if not token_file:
        return {}
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token_file {token_file!r} cannot be read: {error}") from error
    return {"authorization": f"Bearer {token}"}


def _start(said: bytes | bytearray) -> str:
    """For a log line."""
    return repr(bytes(said[:80]).decode("utf-8", "replace"))
