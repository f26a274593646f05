"""One HTTP exchange over ASGI: a bounded body with a deadline, an answer, and whether the client went away."""

import asyncio
from collections.abc import Iterable, Sequence

from asyncrl.rollout.gateway.refusal import Refused
from asyncrl.web.asgi import Header, Receive, Scope, Send

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
EVENTS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"))


class Disconnected(Exception):
    """The client went away."""


class BodyBudget:
    """Memory for bodies that are being received, of all connections together."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, num_bytes: int) -> None:
        if num_bytes > self._left:
            raise Refused(503, "busy", "too many bodies are being received; try again", retry=True)
        self._left -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        self._left += num_bytes


class Exchange:
    """A request without its path, and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.is_started = False
        """True once the status was sent."""
        self.is_read = False
        """True once all of the body has arrived."""
        self._headers: Sequence[Header] = scope["headers"]
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self._headers if key.lower() == name), None)

    async def body(self, limit: int, budget: BodyBudget, timeout_s: float) -> bytes:
        """
        The body of the request.

        Raises:
            Refused: It is too large, or did not arrive in time.
            Disconnected: The client went away meanwhile.
        """
        if (length := self.header(b"content-length")) and length.isdigit() and int(length[:20]) > limit:
            raise _too_large(limit)
        taken = 0
        parts = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    event = await self._receive()
                    if event["type"] != "http.request":
                        raise Disconnected
                    part = event.get("body", b"")
                    budget.take(len(part))
                    taken += len(part)
                    if taken > limit:
                        raise _too_large(limit)
                    parts.append(part)
                    if not event.get("more_body", False):
                        self.is_read = True
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "timeout", f"the body did not arrive within {timeout_s:g} s") from None
        finally:
            budget.give_back(taken)

    async def until_gone(self) -> None:
        """Wait until the client goes away; called after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, status: int, body: bytes, headers: Iterable[Header] = (JSON,)) -> None:
        await self.start(status, (*headers, (b"content-length", b"%d" % len(body))))
        await self._send({"type": "http.response.body", "body": b"" if self.method == "HEAD" else body})

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, part: bytes, *, is_last: bool = False) -> None:
        """Send a part of an answer that was started."""
        await self._send({"type": "http.response.body", "body": part, "more_body": not is_last})


def _too_large(limit: int) -> Refused:
    return Refused(413, "body_too_large", f"the body has more than {limit} bytes")
