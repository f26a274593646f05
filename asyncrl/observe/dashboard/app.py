"""
The dashboard as an ASGI application, for any server, or mounted in a host's.

    GET /             the page            GET /api/...      JSON about the runs, see `asyncrl.observe.dashboard.api`
    GET /static/...   its files           GET /changes      server-sent events

It only reads. Everything is served from here: the page's policy lets it fetch nothing else and run no inline script, so
that a text of a run that a policy wrote stays a text.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs

import msgspec

from asyncrl.log import get_logger
from asyncrl.observe.dashboard.access import REFUSED_HOST, REFUSED_TOKEN, Access
from asyncrl.observe.dashboard.api import Api, Content
from asyncrl.observe.dashboard.changes import Changes, Revisions
from asyncrl.observe.dashboard.query import Query, Refused
from asyncrl.web.asgi import Header, Receive, Scope, Send, lifespan

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
    folder = files("asyncrl.observe.dashboard") / "static"
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
        except Refused as refused:
            await _refuse(refused, scope, send)
        except Exception as error:  # noqa: BLE001  a fault in one view must not end the others
            log.error("dashboard.failed", path=scope["path"], error=f"{type(error).__name__}: {error}")
            await _refuse(Refused(500, "the dashboard failed here; its log has more"), scope, send)
        return None

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, f"the method is {scope['method']}, expected GET: a dashboard only reads")
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
        raise Refused(404, "there is nothing at this address")

    def _admit(self, scope: Scope, root: str) -> list[Header] | None:
        """
        None if the request may be answered; headers of a redirect that sets the cookie, if it brought the token.

        Raises:
            Refused: It may not.
        """
        if not self._access.accepts_host(_header(scope, b"host")):
            raise Refused(403, REFUSED_HOST)
        sent = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if sent and self._access.needs_token and self._access.accepts_token(sent):
            return [(b"location", f"{root}/".encode()), (b"set-cookie", self._access.cookie(root).encode())]
        if not self._access.accepts(_header(scope, b"authorization"), _header(scope, b"cookie")):
            raise Refused(401, REFUSED_TOKEN)
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


async def _refuse(refused: Refused, scope: Scope, send: Send) -> None:
    body = msgspec.json.encode({"error": refused.message})
    await _answer(scope, send, refused.status, body, [(b"content-type", b"application/json")])


async def _answer(scope: Scope, send: Send, status: int, body: bytes, headers: Sequence[Header]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*SAFE, *headers, length]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _header(scope: Scope, name: bytes) -> str:
    """Value of a header; empty if it is absent. Of several cookie headers, all."""
    return "; ".join(value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name)
