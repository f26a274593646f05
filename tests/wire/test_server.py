import asyncio
import socket
import sys
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from asyncrl.errors import ConfigError
from asyncrl.wire.http import AddressTaken, Receive, Scope, Send, serve


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def at(address: str) -> Any:
    return serve(hello, address, setting="--port", needed_by="the page", extra="pages")


def test_an_app_is_served_on_a_free_port_until_the_end() -> None:
    async def main() -> None:
        async with at("tcp://127.0.0.1:0") as url:
            port = int(url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /there HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"/there" in await reader.read()
            writer.close()
        with pytest.raises(OSError, match=r"refused|Connect"):
            socket.create_connection(("127.0.0.1", port), timeout=1)

    asyncio.run(main())


def test_an_address_that_is_taken_is_told() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(AddressTaken, match=r"--port: port \d+ is in use; 0 takes a free one"):
                async with at(f"tcp://127.0.0.1:{taken.getsockname()[1]}"):
                    pass

    asyncio.run(main())


def test_a_missing_uvicorn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        with pytest.raises(ConfigError, match=r"the page needs uvicorn: pip install 'asyncrl\[pages\]'"):
            async with at("tcp://127.0.0.1:0"):
                pass

    asyncio.run(main())
