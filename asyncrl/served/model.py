"""
A model that others serve, as a node asks it: kept answers, a turn within the limits, and attempts until a deadline.

    ask ─▶ kept? ──yes──▶ answer
            │ no
            ├─ an equal request is on its way ─▶ its answer
            └─ a turn: at_once, requests_per_s ─▶ `Endpoint` ─▶ answer, kept if it may be

What a policy wrote is in the requests; nothing of them is logged. The key of the server is in no answer.
"""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.config.sections.models import ServedModel
from asyncrl.errors import ServiceFailed
from asyncrl.log import get_logger
from asyncrl.messages.session import ModelUse
from asyncrl.wire.endpoint import Endpoint, HttpAnswer, bearer, no_pace
from asyncrl.wire.http import start_of

log = get_logger()

MAX_BYTES = 16 << 20
"""Largest answer."""
WAIT_S = 0.2
"""Seconds before the second attempt."""
OK = 200
HIDDEN = b"[key]"
"""Text in place of the key, should a server repeat it."""
SORTED = msgspec.json.Encoder(order="sorted")


# ── limits ────────────────────────────────────────────────────────────────────────────────────


class TokenBucket:
    """
    A limit of ``per_s`` requests a second, of which a second's worth may come at once. Time is an argument, in seconds.
    """

    def __init__(self, per_s: float) -> None:
        self._every_s = 1 / per_s
        self._slack_s = max(1.0 - self._every_s, 0.0)
        self._full_at_s = float("-inf")
        """Time at which the bucket is full again."""

    def take(self, now_s: float) -> float:
        """Take the next token; returns the seconds until it is there."""
        wait_s = max(self._full_at_s - self._slack_s - now_s, 0.0)
        self._full_at_s = max(self._full_at_s, now_s) + self._every_s
        return wait_s


# ── kept answers ──────────────────────────────────────────────────────────────────────────────

SCHEMA = "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, key BLOB UNIQUE, answer BLOB)"
MEMORY = ":memory:"


class KeptAnswers:
    """
    Answers by the digest of their request, at most ``max_bytes`` of them; the oldest go first.

    A file that cannot be used is no reason to fail: answers are kept in memory then, or not at all.

    Args:
        path: SQLite file; None keeps them in memory.
    """

    def __init__(self, path: Path | None, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._database = _opened(path)
        (self._num_bytes,) = self._database.execute("SELECT coalesce(sum(length(answer)), 0) FROM answers").fetchone()

    def get(self, key: bytes) -> bytes | None:
        """The answer; None if it is not kept."""
        try:
            found = self._database.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            log.warning("model.answers_unreadable", cause=str(error))
            return None
        return bytes(found[0]) if found else None

    def put(self, key: bytes, answer: bytes) -> None:
        """Keep an answer, unless there is one, or it is larger than all may be."""
        if len(answer) > self._max_bytes:
            return
        try:
            with self._database:
                done = self._database.execute(
                    "INSERT OR IGNORE INTO answers (key, answer) VALUES (?, ?)", (key, answer)
                )
                self._num_bytes += len(answer) if done.rowcount > 0 else 0
                while self._num_bytes > self._max_bytes:
                    self._num_bytes -= self._drop_oldest()
        except sqlite3.Error as error:
            log.warning("model.answer_not_kept", cause=str(error))

    def close(self) -> None:
        self._database.close()

    def _drop_oldest(self) -> int:
        number, size = self._database.execute(
            "SELECT number, length(answer) FROM answers ORDER BY number LIMIT 1"
        ).fetchone()
        self._database.execute("DELETE FROM answers WHERE number = ?", (number,))
        return int(size)


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        for _ in range(2):  # a damaged file is begun anew
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                return _connected(str(path))
            except (sqlite3.Error, OSError) as error:
                log.warning("model.answers_damaged", path=str(path), cause=str(error))
                with suppress(OSError):
                    path.unlink(missing_ok=True)
    return _connected(MEMORY)


def _connected(where: str) -> sqlite3.Connection:
    database = sqlite3.connect(where)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is asked again
        database.execute(SCHEMA)
        database.commit()
    except sqlite3.Error:
        database.close()
        raise
    return database


# ── model ─────────────────────────────────────────────────────────────────────────────────────


COUNTED = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
"""Numbers of tokens, by the names of Chat Completions and of Responses."""
MOST_TOKENS = 1 << 32
"""Tokens of one answer from which on a server's count is not believed."""


class AskedModel:
    """
    One model of ``[models]``, for one event loop.

    Args:
        key: Key of its server; empty sends none.
        path: File of kept answers; None keeps them in memory.
        clock: Gives seconds, from which ``sleep`` waits.
    """

    def __init__(
        self,
        name: str,
        settings: ServedModel,
        *,
        key: str = "",
        path: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self._settings = settings
        self._key = key.encode()
        self._clock = clock
        self._answers = KeptAnswers(path, settings.cache_bytes)
        self._endpoint = Endpoint(
            settings.url.rstrip("/"),
            headers=bearer(key),
            deadline_s=settings.deadline_s,
            attempt_s=settings.timeout_s,
            wait_s=WAIT_S,
            max_bytes=MAX_BYTES,
            connections=settings.at_once,
            pace=TokenBucket(settings.requests_per_s).take if settings.requests_per_s else no_pace,
            clock=clock,
            sleep=sleep,
        )
        self._turns = asyncio.Semaphore(settings.at_once)
        self._asking: dict[bytes, asyncio.Task[HttpAnswer]] = {}
        """Requests on their way whose answers may be shared."""
        self._requests = self._cached = self._failed = self._tokens = 0
        self._seconds = 0.0

    @property
    def use(self) -> ModelUse:
        """Counts so far."""
        return ModelUse(
            requests=self._requests,
            cached=self._cached,
            repeated=self._endpoint.repeated,
            failed=self._failed,
            seconds=self._seconds,
            tokens=self._tokens,
        )

    async def ask(self, api: str, request: Mapping[str, Any]) -> HttpAnswer:
        """
        Ask for an answer, and keep it if the settings say so.

        Args:
            api: Path below the URL, such as ``chat/completions``.
            request: The model's name in it is replaced.

        Returns:
            The server's answer, of any status that another attempt would not change.

        Raises:
            ServiceFailed: There was none in time, or it is no JSON; the message names the model.
        """
        self._requests += 1
        body = SORTED.encode({**request, "model": self._settings.model or self.name})
        if not self._may_share(request):
            return await self._asked(api, body)
        digest = sha256(f"{self._settings.url} {api} ".encode() + body).digest()
        if answer := self._answers.get(digest):
            self._cached += 1
            return HttpAnswer(OK, answer)
        if asking := self._asking.get(digest):
            self._cached += 1
        else:
            asking = self._asking[digest] = asyncio.create_task(self._asked_once(digest, api, body))
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # who asked may be gone
        return await asyncio.shield(asking)  # others may wait for it, or ask for it soon

    async def aclose(self) -> None:
        """Give up what is on its way, and close files and connections."""
        for asking in list(self._asking.values()):
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._endpoint.aclose()
        self._answers.close()

    def _may_share(self, request: Mapping[str, Any]) -> bool:
        kept = self._settings.cache
        return kept == "all" or (kept == "greedy" and request.get("temperature") == 0)

    async def _asked_once(self, digest: bytes, api: str, body: bytes) -> HttpAnswer:
        try:
            answer = await self._asked(api, body)
            if answer.status == OK:
                self._answers.put(digest, answer.body)
            return answer
        finally:
            del self._asking[digest]

    async def _asked(self, api: str, body: bytes) -> HttpAnswer:
        began_s = self._clock()
        try:
            answer = await self._in_turn(api, body, began_s + self._settings.deadline_s)
            status, content = answer.status, self._without_key(answer.body)
            tokens = _tokens(content) if status == OK else 0
        except ServiceFailed as error:
            self._failed += 1
            cause = self._without_key(str(error).encode()).decode("utf-8", "replace")
            raise ServiceFailed(f"model {self.name!r}: {cause}", retryable=error.retryable) from error
        finally:
            self._seconds += self._clock() - began_s
        self._failed += status != OK
        self._tokens += tokens
        return HttpAnswer(status, content)

    async def _in_turn(self, api: str, body: bytes, until_s: float) -> HttpAnswer:
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                await self._turns.acquire()
        except TimeoutError:
            raise ServiceFailed(
                f"{self._settings.url} was not asked within {self._settings.deadline_s:g} s: other requests took all "
                f"that time (models.{self.name}.at_once = {self._settings.at_once})"
            ) from None
        try:
            return await self._endpoint.post(body, f"/{api}", until_s=until_s)
        finally:
            self._turns.release()

    def _without_key(self, text: bytes) -> bytes:
        return text.replace(self._key, HIDDEN) if self._key else text


def _tokens(answer: bytes) -> int:
    """Tokens that an answer tells of; raises `ServiceFailed` if it is no JSON object."""
    try:
        usage = msgspec.json.decode(answer, type=dict[str, Any]).get("usage")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceFailed(f"the answer is no JSON object: {start_of(answer)}", retryable=False) from error
    found = [usage.get(key) for key in COUNTED] if isinstance(usage, dict) else []
    return sum(count for count in found if isinstance(count, int) and 0 <= count <= MOST_TOKENS)
