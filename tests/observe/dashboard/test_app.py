import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.observe.dashboard.app import DashboardApp, static_files
from asyncrl.observe.run_directory import RunDirectory
from tests.observe.conftest import MakeRun
from tests.observe.dashboard.browser_free import HOST, a_sample, call, get, write

TOKEN = "a-token-of-some-length"
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


def test_it_can_be_mounted_below_a_path(app: DashboardApp) -> None:
    bare = get(app, "", root="/dash")
    assert (bare.status, bare.headers["location"]) == (308, "/dash/")
    assert get(app, "/api/runs", root="/dash").status == 200
    with_token = DashboardApp([app._api.runs[0].directory.path], token=TOKEN)
    assert "Path=/dash" in get(with_token, f"/?token={TOKEN}", root="/dash").headers["set-cookie"]


def test_a_fault_in_one_view_is_told_and_the_others_go_on(app: DashboardApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("asyncrl.observe.dashboard.overview.overview", broken)
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
