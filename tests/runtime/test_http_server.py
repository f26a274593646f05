"""Pages for programs: a good request gets its page, nonsense a 4xx, and nobody holds the server up."""

import asyncio
from http import HTTPStatus

import pytest

from asyncrl.errors import ConfigError, LinkError
from asyncrl.runtime import http_server
from asyncrl.runtime.http_server import (
    INTERVAL_S,
    MAX_HEAD_BYTES,
    WINDOW_S,
    LoopLag,
    RefusedPage,
    Response,
    parsed,
    serve,
    watch,
)


def broken(_headers):
    raise KeyError("a bug")


PAGES = {
    "/hello": lambda headers: Response(HTTPStatus.OK, headers.get("accept", "none").encode()),
    "/broken": broken,
}


def ask(*requests: bytes) -> list[tuple[int, bytes, bytes]]:
    """Status, head and body of the answer to each request, each on a connection of its own."""

    async def one(port: int, request: bytes) -> tuple[int, bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ")[1]), head, body

    async def main():
        async with serve(PAGES, "127.0.0.1", 0) as port:
            return [await one(port, request) for request in requests]

    return asyncio.run(main())


def test_a_page_gets_the_headers_and_its_query_is_ignored():
    ((status, head, body),) = ask(b"GET /hello?a=b HTTP/1.1\r\nHost: x\r\nACCEPT: text/plain\r\n\r\n")
    assert (status, body) == (200, b"text/plain")
    assert b"Content-Length: 10" in head
    assert b"Connection: close" in head


def test_head_has_the_length_of_the_body_and_no_body():
    ((status, head, body),) = ask(b"HEAD /hello HTTP/1.0\r\n\r\n")
    assert (status, body) == (200, b"")
    assert b"Content-Length: 4" in head


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404, b"no page '/nothing': expected one of /hello, /broken"),
        (b"POST /hello HTTP/1.1\r\n\r\n", 405, b"method 'POST': expected GET or HEAD"),
        (b"GET /hello HTTP/2\r\n\r\n", 400, b"'HTTP/2' is no version"),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400, b"'http://x/' is no path"),
        (b"GET /hello HTTP/1.1\r\nno header\r\n\r\n", 400, b"'no header' is no header"),
        (b"GET /hello HTTP/1.1\r\n folded: 1\r\n\r\n", 400, b"is no header"),
        (b"\x16\x03\x01 TLS\r\n\r\n", 400, b"the first line is no request"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, b"the first line is no request"),
        (b"\r\n\r\n", 400, b"the first line is no request"),
        (b"GET /hello HTTP/1.1\r\nx: " + b"y" * 2 * MAX_HEAD_BYTES + b"\r\n\r\n", 431, b"larger than 8192 bytes"),
    ],
)
def test_nonsense_is_answered_with_its_mistake(request_, status, reason):
    ((found, _, body),) = ask(request_)
    assert (found, reason in body) == (status, True), body


def test_a_page_that_fails_is_a_500_and_the_server_goes_on():
    failed, worked = ask(b"GET /broken HTTP/1.1\r\n\r\n", b"GET /hello HTTP/1.1\r\n\r\n")
    assert (failed[0], worked[0]) == (500, 200)
    assert b"a bug" not in failed[2], "the text of an error is for the log"


def test_a_client_that_sends_no_request_is_cut_off(monkeypatch):
    monkeypatch.setattr(http_server, "DEADLINE_S", 0.01)
    ((status, _, body),) = ask(b"GET /hello HT")
    assert (status, body) == (408, b"no complete request in 0.01 s\n")


def test_a_crowd_is_turned_away_and_a_client_that_hangs_ends_with_the_server(monkeypatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 1)

    async def main():
        async with serve(PAGES, "127.0.0.1", 0) as port:
            idle, *writers = await asyncio.open_connection("127.0.0.1", port)
            crowd, *more = await asyncio.open_connection("127.0.0.1", port)
            first_line = (await crowd.read()).split(b"\r\n")[0]
        rest = await idle.read()
        for writer in (*writers, *more):
            writer.close()
        return first_line, rest

    assert asyncio.run(main()) == (b"HTTP/1.1 503 Service Unavailable", b"")


def test_a_port_that_is_taken_is_named_and_may_be_free_later():
    async def main():
        async with serve(PAGES, "127.0.0.1", 0) as port:
            with pytest.raises(LinkError, match=f"port {port}: Address already in use; choose another port"):
                async with serve(PAGES, "127.0.0.1", port):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\n: x\r\n\r\n", b"GET /\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n"])
def test_a_head_that_is_none_is_refused(head):
    with pytest.raises(RefusedPage):
        parsed(head)


def test_a_host_that_does_not_exist_is_named():
    async def main():
        with pytest.raises(ConfigError, match=r"nothing can listen at no-such-host\.invalid, port 0: "):
            async with serve(PAGES, "no-such-host.invalid", 0):
                pass

    asyncio.run(main())


# ── test loop lag ─────────────────────────────────────────────────────────────────────────────
# The longest delay of a loop is that of the last seconds, one that is still going on included.


def test_the_longest_delay_is_remembered_for_the_window():
    lag = LoopLag()
    for due_s, woke_s in ((1.0, 1.1), (2.0, 5.0), (6.0, 6.2)):
        lag.awaits(due_s)
        lag.woke(woke_s)
    assert lag.longest_s(6.2) == pytest.approx(3.0)
    assert lag.longest_s(5.0 + WINDOW_S) == pytest.approx(3.0)
    assert lag.longest_s(5.1 + WINDOW_S) == pytest.approx(0.2)
    assert lag.longest_s(60.0) == 0.0


def test_a_wake_up_that_is_overdue_counts_before_it_comes():
    lag = LoopLag()
    lag.awaits(1.0)
    assert lag.longest_s(0.5) == 0.0
    assert lag.longest_s(9.0) == 8.0


def test_the_imports_of_a_process_that_starts_do_not_count():
    class Enough(Exception): ...

    now_s, seen = 0.0, []
    lag = LoopLag()

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        seen.append(lag.longest_s(now_s))
        now_s += seconds + (30.0 if len(seen) == 1 else 0.25)
        if len(seen) == 4:
            raise Enough

    with pytest.raises(Enough):
        asyncio.run(watch(lag, lambda: now_s, is_starting=lambda: len(seen) < 2, sleep=sleep))
    assert INTERVAL_S > 0
    assert seen == [0.0, 0.0, 0.0, 0.25]
