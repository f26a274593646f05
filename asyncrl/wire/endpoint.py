"""
A client of a service over HTTP (extra ``remote``), which repeats a request until a deadline.

    post ── POST ──▶ any other status ─▶ HttpAnswer
         ▲           408, 429, 5xx, no connection ─┐      busy, or not started yet
         └── wait: twice as long, or `Retry-After` ◀┘     no answer in time ─▶ `ServiceFailed`

httpx keeps connections open, and its requests can be cancelled: `urllib` in threads would leave a thread behind for
every request that hangs. It is imported here alone.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import httpx

from asyncrl.errors import ServiceFailed
from asyncrl.wire.http import start_of

MAX_WAIT_S = 2.0
"""Longest wait between two attempts, unless the service asks for a longer one."""
MAX_RETRY_AFTER_S = 86_400.0
BUSY = (408, 429)
"""Statuses below 500 that a later attempt may not get."""


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class _Busy(Exception):
    """The service may answer a later attempt, after ``wait_s`` seconds if it says so."""

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.wait_s = wait_s


def no_pace(now_s: float) -> float:
    """Seconds to wait before an attempt that nothing limits."""
    return 0.0


class Endpoint:
    """
    Client of the addresses below one URL, for one event loop.

    Args:
        deadline_s: Seconds for a request, all attempts together.
        attempt_s: Seconds for one attempt; None leaves it the rest of the deadline.
        wait_s: Seconds before the second attempt; doubled for each further one, up to `MAX_WAIT_S`.
        max_bytes: Size of the largest answer.
        connections: Most connections at a time.
        pace: Gives the seconds to wait before an attempt at a time of the ``clock``.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float,
        attempt_s: float | None = None,
        wait_s: float,
        max_bytes: int,
        connections: int,
        pace: Callable[[float], float] = no_pace,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = url
        self.deadline_s = deadline_s
        self.repeated = 0
        """Attempts so far that were not the first of their request."""
        self._attempt_s = attempt_s
        self._wait_s = wait_s
        self._max_bytes = max_bytes
        self._pace, self._clock, self._sleep = pace, clock, sleep
        self._client = httpx.AsyncClient(
            headers={"content-type": "application/json", **(headers or {})},
            timeout=None,  # deadlines cover whole attempts
            limits=httpx.Limits(max_connections=connections),
            trust_env=False,
        )

    async def post(self, body: bytes, path: str = "", *, until_s: float | None = None) -> HttpAnswer:
        """
        Send JSON to ``path`` below the URL, and return the answer, whatever its status.

        Args:
            until_s: Time of the clock that ends the request; by default ``deadline_s`` from now.

        Raises:
            ServiceFailed: There was no answer in time, or a busy one each time; or one that is too large.
        """
        until_s = self._clock() + self.deadline_s if until_s is None else until_s
        cause, wait_s, pause_s = "", self._wait_s, 0.0
        while True:
            await self._pause(pause_s, until_s)
            await self._pause(self._pace(self._clock()), until_s)
            if (left_s := until_s - self._clock()) <= 0:
                raise ServiceFailed(
                    f"{self.url} gave no answer within {self.deadline_s:g} s: {cause or 'its turn never came'}"
                )
            limit_s = min(self._attempt_s or left_s, left_s)
            pause_s = wait_s * random.uniform(0.5, 1.0)  # spreads the retries of many clients
            try:
                return await self._attempt(body, path, limit_s)
            except _Busy as busy:
                cause, pause_s = str(busy), max(busy.wait_s, pause_s)
            except TimeoutError:  # one that the deadline cuts short tells less than those before it
                cause = cause if limit_s == left_s and cause else f"no answer in {limit_s:.3g} s"
            wait_s = min(MAX_WAIT_S, 2 * wait_s)
            self.repeated += 1

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _pause(self, seconds: float, until_s: float) -> None:
        """Wait, at most until the end: who failed at once would only be asked again, as early as before."""
        if seconds > 0:
            await self._sleep(min(seconds, max(until_s - self._clock(), 0.0)))

    async def _attempt(self, body: bytes, path: str, limit_s: float) -> HttpAnswer:
        answer = bytearray()
        try:
            async with (
                asyncio.timeout(limit_s),
                self._client.stream("POST", self.url + path, content=body) as response,
            ):
                async for part in response.aiter_bytes():
                    answer += part
                    if len(answer) > self._max_bytes:
                        raise ServiceFailed(
                            f"{self.url} answered with more than {self._max_bytes} bytes", retryable=False
                        )
        except httpx.TransportError as error:
            raise _Busy(f"{type(error).__name__}: {error}") from error
        status = response.status_code
        if status in BUSY or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            wait_s = seconds_of(response.headers.get("retry-after", ""), time.time())
            raise _Busy(f"status {status}: {start_of(answer)}", wait_s)
        return HttpAnswer(status, bytes(answer))


def bearer(key: str) -> dict[str, str]:
    """Header with a key; none without one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def status_of(url: str, headers: Mapping[str, str], timeout_s: float) -> int:
    """Status of the answer to a GET; raises `ServiceFailed` if there is none in time."""
    try:
        return httpx.get(url, headers=dict(headers), timeout=timeout_s, trust_env=False).status_code
    except httpx.TransportError as error:
        raise ServiceFailed(f"{url} does not answer: {type(error).__name__}: {error}") from error


def seconds_of(retry_after: str, now_s: float) -> float:
    """Seconds that a ``Retry-After`` asks for, a number or a date; 0 if it is neither. ``now_s`` is since 1970."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - now_s
        except ValueError:
            return 0.0
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else 0.0  # NaN compares false
