"""Whatever strangers and broken programs send is refused, and an honest program is served throughout."""

import asyncio
import resource
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from asyncrl.episodes.gateway.app import ALL_BODIES_BYTES, BODY_S, MAX_BODY_BYTES, GatewayApp, serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.episodes.gateway.request import MAX_DEPTH, MAX_STOP_CHARS, MAX_STOPS, MAX_TOOLS_CHARS
from asyncrl.wire.http import CONNECTIONS, HEAD_BYTES
from tests.episodes.gateway.doubles import Connection, Episode, chat, user
from tests.episodes.gateway.hostile import Hostile, requests

ROOT = Path(__file__).parents[3]
NUM_REQUESTS = 6000
NUM_RAW = 300
"""Requests over sockets."""
EVERY = 50
"""Hostile requests between two honest ones."""
HEADROOM_BYTES = 100 << 20


def test_thousands_of_hostile_requests_are_refused_and_sample_nothing() -> None:
    async def main() -> None:
        gateway = Gateway("http://test")
        app = GatewayApp(gateway, body_s=5.0)
        target, honest = Episode(lambda _: "x", gateway=gateway), Episode(lambda _: "Hello.", gateway=gateway)
        talk, statuses = [user("Hi")], Counter[int]()
        before = peak_bytes()
        for number, hostile in enumerate(islice(requests(7, target.open.key), NUM_REQUESTS)):
            connection = Connection(app, hostile.method, hostile.path, hostile.body, hostile.headers)
            answer = await connection.run()
            assert 400 <= answer.status < 500, hostile
            statuses[answer.status] += 1
            if not number % EVERY:
                said = await chat(app, honest, talk)
                assert said.status == 200
                talk += [said.message, user(f"more {number}")]
        assert (target.engine.requests, target.record.turns) == ([], [])
        assert [turn.parent for turn in honest.record.turns] == list(range(-1, NUM_REQUESTS // EVERY - 1))
        assert set(statuses) == {400, 401, 404, 405}
        assert min(statuses.values()) > NUM_REQUESTS // 20
        assert peak_bytes() - before < HEADROOM_BYTES

    asyncio.run(main())


def test_hostile_bytes_on_sockets_leave_the_server_unharmed() -> None:
    pytest.importorskip("uvicorn")

    async def main() -> None:
        gateway = Gateway()
        async with asyncio.timeout(60), serve(gateway, "tcp://127.0.0.1:0") as url:
            episode = Episode(lambda _: "x", gateway=gateway)
            port = int(url.rpartition(":")[2])
            hostile = [raw(one) for one in islice(requests(8, episode.open.key), NUM_RAW)] + MALFORMED
            for sent in hostile:
                status = await exchanged(port, sent)
                assert status is None or 400 <= status < 500, sent[:200]
            assert episode.engine.requests == []
            assert await exchanged(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") == 200

    asyncio.run(main())


def test_endless_heads_and_bodies_are_cut_off() -> None:
    pytest.importorskip("uvicorn")

    async def main() -> None:
        gateway = Gateway()
        async with asyncio.timeout(60), serve(gateway, "tcp://127.0.0.1:0") as url:
            key = Episode(lambda _: "x", gateway=gateway).open.key.encode()
            port = int(url.rpartition(":")[2])
            before = peak_bytes()
            for head, part in [
                (b"GET /", b"a" * 65_536),
                (b"GET / HTTP/1.1\r\n", b"a: " + b"b" * 60_000 + b"\r\n"),
                (b"POST /e/%s/v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % key,
                 b"10000\r\n" + b"a" * 65_536 + b"\r\n"),
                (b"POST /e/x/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n",
                 b"a" * 65_536),
            ]:  # fmt: skip
                assert await bytes_taken(port, head, part) < 64 << 20
            assert peak_bytes() - before < HEADROOM_BYTES

    asyncio.run(main())


def test_the_bounds_that_pages_promise_are_those_of_the_code() -> None:
    security, guide = (" ".join((ROOT / page).read_text().split()) for page in ("SECURITY.md", "docs/gateway.md"))
    body, every, s = f"{MAX_BODY_BYTES >> 20} MiB", f"{ALL_BODIES_BYTES >> 20} MiB", f"{BODY_S:g}"
    assert f"at most {body}, within {s} s; heads of {HEAD_BYTES >> 10} KiB" in security
    assert f"use up its {CONNECTIONS:,} connections" in security
    assert f"Requests have at most {body}, arrive within {s} seconds, and are all together at most {every};" in guide
    assert f"{MAX_STOPS} texts of {MAX_STOP_CHARS} characters at most" in guide
    assert f"Tools have at most {MAX_TOOLS_CHARS >> 10} KiB, and schemas {MAX_DEPTH} levels." in guide


MALFORMED: list[bytes] = [
    b"\x00" * 100, b"\r\n" * 50, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 2\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /e/%ff%fe/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", b"GET http://elsewhere/e/x HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nna\x00me: x\r\n\r\n", b"GET /healthz\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /e/x/v1/models HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
]  # fmt: skip


def raw(hostile: Hostile) -> bytes:
    path = hostile.path.encode("utf-8", "replace").replace(b"\x00", b"%00").replace("é".encode(), b"%C3%A9") or b"/"
    head = [b"%s %s HTTP/1.1" % (hostile.method.encode(), path), b"host: x", b"connection: close"]
    head += [b"content-length: %d" % len(hostile.body)]
    head += [b"%s: %s" % header for header in hostile.headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + hostile.body


async def exchanged(port: int, sent: bytes) -> int | None:
    """Status of the answer to bytes after which nothing more is sent; None if the connection was closed without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        writer.write_eof()
        line = await reader.readline()
        return int(line.split()[1]) if line else None
    except ConnectionError:
        return None
    finally:
        writer.close()


async def bytes_taken(port: int, head: bytes, part: bytes) -> int:
    """Bytes that were sent of an endless request until the connection was closed, or no more were taken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    taken = len(head)
    try:
        while not reader.at_eof() and taken < 1 << 30:
            writer.write(part)
            async with asyncio.timeout(1.0):
                await writer.drain()
            taken += len(part)
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return taken


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
