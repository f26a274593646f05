"""
The dashboard as an ASGI application, for any server, or mounted in a host's.

    GET /             the page            GET /api/...      JSON about the runs, see `asyncrl.tools.dashboard.api`
    GET /static/...   its files           GET /changes      server-sent events

It only reads. Everything is served from here: the page's policy lets it fetch nothing else and run no inline script, so
that a text of a run that a policy wrote stays a text.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec

from asyncrl.errors import ConfigError
from asyncrl.log import get_logger
from asyncrl.runtime.process import configure_logging
from asyncrl.terminal import echo
from asyncrl.tools.dashboard.api import Api, Content
from asyncrl.tools.dashboard.query import Query, RefusedAnswer
from asyncrl.wire import http
from asyncrl.wire.addresses import is_loopback, tcp
from asyncrl.wire.http import Header, Receive, Scope, Send, lifespan

# ── access ────────────────────────────────────────────────────────────────────────────────────
# Rules about who may see a dashboard.
#
#   no token     requests to a loopback name only, so that no page elsewhere can read it through a name of its own
#   token        every request carries it: `Authorization: Bearer`, or a cookie set by the first visit with ``?token=``

COOKIE = "asyncrl_dashboard"
REFUSED_HOST = (
    "this dashboard answers to a loopback name only, such as localhost; start it with a token to reach it by another"
)
REFUSED_TOKEN = "this dashboard needs its token: open the address that was printed with ?token=..."


class Access:
    """
    Rules for one dashboard.

    Args:
        token: Empty: none is needed.
        any_host: Without a token, accept requests to any name: the application that mounts this one has checked them.
    """

    def __init__(self, token: str = "", *, any_host: bool = False) -> None:
        self.token = token
        self._any_host = any_host
        self._cookie = hashlib.sha256(f"{COOKIE}:{token}".encode()).hexdigest()

    def accepts_host(self, host: str) -> bool:
        """True if a request may name ``host`` (with or without a port); a token makes up for any name."""
        return bool(self.token) or self._any_host or _is_loopback(host)

    def accepts_token(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(errors="replace"), self.token.encode())

    def accepts(self, authorization: str, cookies: str) -> bool:
        """True if the headers ``authorization`` and ``cookie`` of a request carry the token, or none is needed."""
        if not self.token:
            return True
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.accepts_token(key.strip()):
            return True
        return secrets.compare_digest(_cookie(cookies).encode(errors="replace"), self._cookie.encode())

    def cookie(self, path: str) -> str:
        """Header ``set-cookie`` after the right token; scripts cannot read it, and it goes to no other site."""
        return f"{COOKIE}={self._cookie}; Path={path or '/'}; HttpOnly; SameSite=Strict"


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


# ── changes ───────────────────────────────────────────────────────────────────────────────────
# Changes of runs for pages that are open: one look a second at the files while anybody listens, none otherwise.
#
#     poll ─ revisions ─▶ changed? ─▶ every subscriber's event: `data: {"runs": [...]}`      a comment now and then

POLL_S = 1.0
HEARTBEAT_S = 15.0
"""Seconds without an event after which a comment is sent, so that a connection that broke is noticed."""
MAX_SUBSCRIBERS = 32
HEARTBEAT = b": here\n\n"

Revisions = list[dict[str, Any]]


class Changes:
    """
    Tells open pages when their runs have changed.

    Args:
        look: Reads what is new and returns the runs' revisions.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Revisions]],
        *,
        poll_s: float = POLL_S,
        heartbeat_s: float = HEARTBEAT_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look = look
        self._poll_s = poll_s
        self._heartbeat_s = heartbeat_s
        self._sleep = sleep
        self._subscribers: set[asyncio.Event] = set()
        self._runs: Revisions = []
        self._polling: asyncio.Task[None] | None = None

    def check_room(self) -> None:
        """Raise `Refused` if there are too many subscribers."""
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            raise RefusedAnswer(503, f"{MAX_SUBSCRIBERS} pages are open already; close one, or reload this page later")

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield an event at once, at each change, and a comment at least every ``heartbeat_s`` seconds."""
        changed = asyncio.Event()
        self._subscribers.add(changed)
        try:
            await self._renew()
            changed.clear()  # The first event has it.
            if self._polling is None or self._polling.done():
                self._polling = asyncio.create_task(self._poll(), name="dashboard changes")
            yield self._event()
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await changed.wait()
                except TimeoutError:
                    yield HEARTBEAT
                    continue
                changed.clear()
                yield self._event()
        finally:
            self._subscribers.discard(changed)
            if not self._subscribers and self._polling is not None:
                self._polling.cancel()
                self._polling = None

    async def _poll(self) -> None:
        while True:
            await self._sleep(self._poll_s)
            await self._renew()

    async def _renew(self) -> None:
        """Look, and wake every subscriber if something has changed."""
        runs = await self._look()
        if runs != self._runs:
            self._runs = runs
            for changed in self._subscribers:
                changed.set()

    def _event(self) -> bytes:
        return b"data: %b\n\n" % msgspec.json.encode({"runs": self._runs})


# ── app ───────────────────────────────────────────────────────────────────────────────────────

log = get_logger()

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE: tuple[Header, ...] = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


@cache
def static_files() -> dict[str, Content]:
    """The page's files by name."""
    folder = files("asyncrl.tools.dashboard") / "static"
    return {
        file.name: (KINDS[Path(file.name).suffix], file.read_bytes())
        for file in folder.iterdir()
        if Path(file.name).suffix in KINDS
    }


class DashboardApp:
    """
    ASGI application that shows runs.

    Args:
        runs: Run directories.
        token: Every request must carry it; empty: none, and only requests to a loopback name are answered.
        any_host: Without a token, answer requests to any name: the application that mounts this one decides who may.

    Raises:
        ConfigError: There is no run, or one is not a directory.

    Example:
        Mount("/dashboard", DashboardApp([Path("runs/quickstart")], any_host=True))
    """

    def __init__(self, runs: Sequence[Path], *, token: str = "", any_host: bool = False) -> None:
        self._api = Api(runs)
        self._access = Access(token, any_host=any_host)
        self._changes = Changes(self._revisions)
        self._closing = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held while files are read: one request at a time, so one core at most."""

    def close(self) -> None:
        """End the streams of open pages, which would keep a server waiting for them."""
        self._closing.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await lifespan(receive, send)
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        try:
            await self._serve(scope, receive, send)
        except RefusedAnswer as refused:
            await _refuse(refused, scope, send)
        except Exception as error:  # noqa: BLE001  a fault in one view must not end the others
            log.error("dashboard.failed", path=scope["path"], error=f"{type(error).__name__}: {error}")
            await _refuse(RefusedAnswer(500, "the dashboard failed here; its log has more"), scope, send)
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise RefusedAnswer(405, f"the method is {scope['method']}, expected GET: a dashboard only reads")
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if (moved := self._admit(scope, root)) is not None:
            return await _answer(scope, send, 303, b"", moved)
        match path.split("/")[1:]:
            case []:
                return await _answer(scope, send, 308, b"", [(b"location", f"{root}/".encode())])
            case [""]:
                return await _send_content(scope, send, static_files()["index.html"])
            case ["static", name] if name in static_files():
                return await _send_content(scope, send, static_files()[name])
            case ["changes"]:
                return await self._stream(scope, receive, send)
            case ["api", *parts]:
                query = Query(scope["query_string"])
                async with self._turn:
                    content = await asyncio.to_thread(self._api.answer, parts, query)
                return await _send_content(scope, send, content)
        raise RefusedAnswer(404, "there is nothing at this address")

    def _admit(self, scope: Scope, root: str) -> list[Header] | None:
        """
        None if the request may be answered; headers of a redirect that sets the cookie, if it brought the token.

        Raises:
            Refused: It may not.
        """
        if not self._access.accepts_host(_header(scope, b"host")):
            raise RefusedAnswer(403, REFUSED_HOST)
        sent = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if sent and self._access.token and self._access.accepts_token(sent):
            return [(b"location", f"{root}/".encode()), (b"set-cookie", self._access.cookie(root).encode())]
        if not self._access.accepts(_header(scope, b"authorization"), _header(scope, b"cookie")):
            raise RefusedAnswer(401, REFUSED_TOKEN)
        return None

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._changes.check_room()
        headers = [*SAFE, (b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] == "HEAD":
            return await send({"type": "http.response.body", "body": b""})
        ends = (_until_gone(receive), self._closing.wait(), self._write_changes(send))
        tasks = [asyncio.create_task(end) for end in ends]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return await send({"type": "http.response.body", "body": b""})

    async def _write_changes(self, send: Send) -> None:
        async with contextlib.aclosing(self._changes.stream()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _revisions(self) -> Revisions:
        async with self._turn:
            return await asyncio.to_thread(self._api.revisions)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_content(scope: Scope, send: Send, content: Content) -> None:
    kind, body = content
    await _answer(scope, send, 200, body, [(b"content-type", kind.encode())])


async def _refuse(refused: RefusedAnswer, scope: Scope, send: Send) -> None:
    body = msgspec.json.encode({"error": refused.message})
    await _answer(scope, send, refused.status, body, [(b"content-type", b"application/json")])


async def _answer(scope: Scope, send: Send, status: int, body: bytes, headers: Sequence[Header]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*SAFE, *headers, length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _header(scope: Scope, name: bytes) -> str:
    """Value of a header; empty if it is absent. Of several cookie headers, all."""
    return "; ".join(value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)


# ── server ────────────────────────────────────────────────────────────────────────────────────
# Serves a dashboard at an address, until it is told to stop.

PORT = 8460
"""Port that is tried first, so that the address can be kept open in a browser."""
MIN_TOKEN = 16
"""Fewest characters of a token."""


@asynccontextmanager
async def serve(
    runs: Sequence[Path], *, host: str = "127.0.0.1", port: int | None = None, token: str = ""
) -> AsyncIterator[str]:
    """
    Serve until the block ends.

    Args:
        port: None takes `PORT`, or a free one if that is taken; 0 takes a free one.
        token: Every request must carry it; empty: none, and ``host`` must be loopback.

    Yields:
        The URL to open, with the token.

    Raises:
        ConfigError: A run does not exist, the address cannot be bound or needs a token, or uvicorn is not installed.
    """
    if not token and not is_loopback(tcp(host, 0)):
        raise ConfigError(
            f"--host is {host}, which other machines can reach: expected 127.0.0.1 (and an ssh tunnel), or a token of "
            f"at least {MIN_TOKEN} characters in ASYNCRL_DASHBOARD_TOKEN"
        )
    if token and len(token) < MIN_TOKEN:
        raise ConfigError(f"the dashboard's token has {len(token)} characters, expected at least {MIN_TOKEN}")
    app = DashboardApp(runs, token=token)
    ports = [PORT, 0] if port is None else [port]
    async with AsyncExitStack() as stack:
        url = await _first_free(stack, app, host, ports)
        stack.callback(app.close)
        yield f"{url}/?token={quote(token)}" if token else f"{url}/"


async def _first_free(stack: AsyncExitStack, app: DashboardApp, host: str, ports: Sequence[int]) -> str:
    """Serve at the first port where that is possible; the URL."""
    for port in ports[:-1]:
        with suppress(http.AddressTaken):
            return await _enter(stack, app, host, port)
    return await _enter(stack, app, host, ports[-1])


async def _enter(stack: AsyncExitStack, app: DashboardApp, host: str, port: int) -> str:
    serving = http.serve(app, tcp(host, port), setting="--port", needed_by="the dashboard", extra="dashboard")
    return await stack.enter_async_context(serving)


# ── the command ────────────────────────────────────────────────────────────────────────────────
# `asyncrl dashboard`: serves the dashboard of some runs until it is interrupted.

TOKEN = "ASYNCRL_DASHBOARD_TOKEN"
"""Environment variable of the token: other users can read the arguments of a process."""


def show(runs: Sequence[Path], host: str, port: int | None) -> None:
    """Print the address, and serve until SIGINT or SIGTERM. Raises as `serve`."""
    configure_logging("dashboard")
    asyncio.run(_show(runs, host, port))


async def _show(runs: Sequence[Path], host: str, port: int | None) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with serve(runs, host=host, port=port, token=os.environ.get(TOKEN, "")) as url:
        echo(url)
        await stopping.wait()
