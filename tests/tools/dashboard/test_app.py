import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncrl.records.run_directory import RunDirectory
from asyncrl.tools.dashboard.app import COOKIE, HEARTBEAT, MAX_SUBSCRIBERS, Access, Changes, DashboardApp, static_files
from asyncrl.tools.dashboard.query import RefusedAnswer
from tests.recorded_runs import MakeRun
from tests.tools.dashboard.browser_free import HOST, a_sample, call, get, write

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:8460", "127.9.9.9", "[::1]:8460", "[::1]"])
def test_without_a_token_loopback_names_are_answered(host: str) -> None:
    assert Access().accepts_host(host)
    assert Access().accepts("", "")


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8460", "10.0.0.1", "localhost.evil.example", "0.0.0.0"]
)
def test_without_a_token_other_names_are_not_answered_unless_the_host_app_says_so(host: str) -> None:
    assert not Access().accepts_host(host)
    assert Access(any_host=True).accepts_host(host)
    assert Access(TOKEN).accepts_host(host)


def test_every_request_needs_the_token_as_a_header_or_as_the_cookie_of_the_first_visit() -> None:
    access = Access(TOKEN)
    cookie = access.cookie("/dash").partition(";")[0]
    assert access.accepts(f"Bearer {TOKEN}", "")
    assert access.accepts("", f"other=1; {cookie}")
    for authorization, cookies in [
        ("", ""), (TOKEN, ""), ("Bearer", ""), ("Bearer é", ""), (f"Basic {TOKEN}", ""), ("", f"{COOKIE}={TOKEN}"),
        ("", f"{COOKIE}=é"), ("", ";;=="), ("", Access("another-token-here").cookie("").partition(";")[0]),
    ]:  # fmt: skip
        assert not access.accepts(authorization, cookies)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites_and_does_not_hold_the_token() -> None:
    cookie = Access(TOKEN).cookie("/dash")
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/dash"))
    assert TOKEN not in cookie


# ── test app ──────────────────────────────────────────────────────────────────────────────────

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(1)</script>"


@pytest.fixture
def directory(make_run: MakeRun) -> RunDirectory:
    return make_run()


@pytest.fixture
def app(directory: RunDirectory) -> DashboardApp:
    return DashboardApp([directory.path])


def test_the_page_and_its_files_are_served(app: DashboardApp) -> None:
    page = get(app, "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for name in re.findall(r'(?:src|href)="static/([^"]+)"', page.body.decode()):
        assert get(app, f"/static/{name}").status == 200
    assert get(app, "/static/main.js").headers["content-type"].startswith("text/javascript")


def test_nothing_may_come_from_elsewhere_and_no_inline_script_runs(app: DashboardApp) -> None:
    for path in ("/", "/api/runs", "/static/main.js", "/nothing"):
        headers = get(app, path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_never_parses_text_as_markup_and_names_no_other_server() -> None:
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser")
    for name, (_, content) in static_files().items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert [word for word in forbidden if word in text] == [], name
        assert "://" not in text, name
        assert not re.search(r'<script(?! type="module" src=)|\son\w+="|style="', text), name


def test_hostile_texts_leave_as_json_that_no_browser_takes_for_a_page(
    app: DashboardApp, directory: RunDirectory
) -> None:
    write(directory.samples, a_sample(prompt=HOSTILE, completion=HOSTILE))
    directory.append_event("node.lost", node=HOSTILE, cause=HOSTILE)
    for path in ("/api/runs/0/group?file=step_000000.parquet&group=0", "/api/runs/0/events"):
        answer = get(app, path)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert HOSTILE in str(answer.json)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404), ("/static/", 404), ("/static/../app.py", 404), ("/static/app.py", 404), ("/x//", 404),
        ("/static/%2e%2e/app.py", 404), ("/api", 404), ("/api/runs/7/overview", 404), ("/api/runs?a=1&a=2", 400),
    ],
)  # fmt: skip
def test_other_requests_are_refused_with_a_sentence(app: DashboardApp, path: str, status: int) -> None:
    answer = get(app, path)
    assert answer.status == status
    assert answer.json["error"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_a_dashboard_only_reads(app: DashboardApp, method: str) -> None:
    answer = get(app, "/api/runs", method=method)
    assert (answer.status, "only reads" in answer.json["error"]) == (405, True)


def test_head_has_no_body(app: DashboardApp) -> None:
    assert get(app, "/", method="HEAD").body == b""


def test_a_page_elsewhere_cannot_read_it_through_a_name_of_its_own(app: DashboardApp, directory: RunDirectory) -> None:
    evil = [(b"host", b"evil.example")]
    assert get(app, "/api/runs", headers=evil).status == 403
    assert get(app, "/api/runs", headers=[]).status == 403
    assert get(DashboardApp([directory.path], any_host=True), "/api/runs", headers=evil).status == 200


def test_with_a_token_every_request_needs_it_and_the_first_visit_leaves_a_cookie(directory: RunDirectory) -> None:
    app = DashboardApp([directory.path], token=TOKEN)
    for path in ("/", "/static/main.js", "/api/runs", "/changes", "/?token=wrong", "/nothing"):
        assert get(app, path).status == 401
    visit = get(app, f"/?token={TOKEN}")
    assert (visit.status, visit.headers["location"]) == (303, "/")
    cookie = visit.headers["set-cookie"].partition(";")[0].encode()
    assert get(app, "/api/runs", headers=[HOST, (b"cookie", cookie)]).status == 200
    assert get(app, "/api/runs", headers=[HOST, (b"authorization", f"Bearer {TOKEN}".encode())]).status == 200
    assert get(app, "/api/runs", headers=[(b"host", b"gpu-1.example"), (b"cookie", cookie)]).status == 200


def test_it_can_be_mounted_below_a_path(app: DashboardApp, directory: RunDirectory) -> None:
    bare = get(app, "", root="/dash")
    assert (bare.status, bare.headers["location"]) == (308, "/dash/")
    assert get(app, "/api/runs", root="/dash").status == 200
    with_token = DashboardApp([directory.path], token=TOKEN)
    assert "Path=/dash" in get(with_token, f"/?token={TOKEN}", root="/dash").headers["set-cookie"]


def test_a_fault_in_one_view_is_told_and_the_others_go_on(app: DashboardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("asyncrl.tools.dashboard.overview.overview", broken)
    assert get(app, "/api/runs/0/overview").status == 500
    assert get(app, "/api/runs/0/curves").status == 200


def streamed(app: DashboardApp, scene: Callable[["Stream"], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scene(Stream(app))

    asyncio.run(main())


class Stream:
    """A client of `/changes` that stays until it leaves."""

    def __init__(self, app: DashboardApp) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._left = asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": "/changes", "query_string": b"", "headers": [HOST]}
        self.task = asyncio.ensure_future(app(scope, self._receive, self.sent.put))

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def leave(self) -> None:
        self._left.set()
        await self.task


def test_changes_are_streamed_until_the_client_leaves(app: DashboardApp) -> None:
    async def scene(stream: Stream) -> None:
        start = await stream.sent.get()
        assert (b"content-type", b"text/event-stream") in start["headers"]
        event = await stream.sent.get()
        assert event["body"].startswith(b'data: {"runs":[{"name":"tiny"')
        assert event["more_body"]
        await stream.leave()

    streamed(app, scene)


def test_streams_end_when_the_app_is_closed(app: DashboardApp) -> None:
    async def scene(stream: Stream) -> None:
        await stream.sent.get()
        await stream.sent.get()
        app.close()
        await stream.task
        assert not (await stream.sent.get()).get("more_body")

    streamed(app, scene)


def test_a_host_app_may_start_and_stop_it_and_websockets_are_closed(app: DashboardApp) -> None:
    async def main() -> list[Any]:
        sent: list[Any] = []
        incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            return incoming.pop(0)

        async def send(event: Any) -> None:
            sent.append(event)

        await app({"type": "lifespan"}, receive, send)
        await app({"type": "websocket"}, receive, send)
        return sent

    sent = asyncio.run(main())
    assert [event["type"] for event in sent][-1] == "websocket.close"
    assert len(sent) == 3


def test_requests_at_once_are_answered_one_after_the_other(app: DashboardApp) -> None:
    async def main() -> list[int]:
        answers = await asyncio.gather(
            *(call(app, f"/api/runs/0/{name}") for name in ("overview", "curves", "cluster"))
        )
        return [answer.status for answer in answers]

    assert asyncio.run(main()) == [200, 200, 200]


# ── test changes ──────────────────────────────────────────────────────────────────────────────

Scene = Callable[[Changes, list[dict[str, Any]], "Clock"], Awaitable[None]]


class Clock:
    """`sleep` returns at `tick`."""

    def __init__(self) -> None:
        self._ticked = asyncio.Event()
        self.asleep = asyncio.Event()

    async def sleep(self, _: float) -> None:
        self._ticked.clear()
        self.asleep.set()
        await self._ticked.wait()

    async def tick(self) -> None:
        await self.asleep.wait()
        self.asleep.clear()
        self._ticked.set()


def play(scene: Scene, heartbeat_s: float = 10.0) -> None:
    async def main() -> None:
        runs: list[dict[str, Any]] = [{"revision": 1}]

        async def look() -> list[dict[str, Any]]:
            return [dict(run) for run in runs]

        clock = Clock()
        changes = Changes(look, heartbeat_s=heartbeat_s, sleep=clock.sleep)
        async with asyncio.timeout(20):
            await scene(changes, runs, clock)

    asyncio.run(main())


def test_an_event_comes_at_once_and_then_at_each_change() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        stream = changes.stream()
        assert await anext(stream) == b'data: {"runs":[{"revision":1}]}\n\n'
        coming = asyncio.ensure_future(anext(stream))
        await clock.tick()  # nothing has changed
        await clock.asleep.wait()
        assert not coming.done()
        runs[0]["revision"] = 2
        await clock.tick()
        assert await coming == b'data: {"runs":[{"revision":2}]}\n\n'
        await stream.aclose()

    play(scene)


def test_nothing_is_polled_once_nobody_listens() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        streams = [changes.stream(), changes.stream()]
        for stream in streams:
            await anext(stream)
        await clock.asleep.wait()
        tasks = {task for task in asyncio.all_tasks() if task.get_name() == "dashboard changes"}
        assert len(tasks) == 1
        for stream in streams:
            await stream.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    play(scene)


def test_a_quiet_stream_has_heartbeats() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        stream = changes.stream()
        await anext(stream)
        assert await anext(stream) == HEARTBEAT
        await stream.aclose()

    play(scene, heartbeat_s=0.001)


def test_subscribers_are_limited() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        streams = [changes.stream() for _ in range(MAX_SUBSCRIBERS)]
        for stream in streams:
            changes.check_room()
            await anext(stream)
        with pytest.raises(RefusedAnswer, match="32 pages are open already") as refused:
            changes.check_room()
        assert refused.value.status == 503
        for stream in streams:
            await stream.aclose()

    play(scene)


def test_a_change_that_a_new_page_sees_first_is_told_to_those_that_were_open() -> None:
    async def scene(changes: Changes, runs: list[dict[str, Any]], clock: Clock) -> None:
        first, second = changes.stream(), changes.stream()
        await anext(first)
        coming = asyncio.ensure_future(anext(first))
        await clock.asleep.wait()
        runs[0]["revision"] = 2
        assert await anext(second) == b'data: {"runs":[{"revision":2}]}\n\n'
        assert await coming == b'data: {"runs":[{"revision":2}]}\n\n'
        for stream in (first, second):
            await stream.aclose()

    play(scene)
