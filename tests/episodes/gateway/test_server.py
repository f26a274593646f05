import asyncio
import json
import socket
import sys

import httpx
import pytest

pytest.importorskip("uvicorn")

from asyncrl.episodes.gateway.app import serve
from asyncrl.episodes.gateway.gateway import Gateway
from asyncrl.errors import ConfigError
from tests.episodes.gateway.doubles import Episode, user


def test_programs_are_served_on_a_free_port_until_the_end() -> None:
    async def main() -> None:
        gateway = Gateway()
        async with serve(gateway, "tcp://127.0.0.1:0") as url, httpx.AsyncClient(trust_env=False) as client:
            episode = Episode(lambda _: "Hello.", gateway=gateway).open
            assert episode.base_url.startswith(url)
            answer = await client.post(
                f"{episode.base_url}/chat/completions", content=json.dumps({"messages": [user("Hi")]})
            )
            assert answer.json()["choices"][0]["message"]["content"] == "Hello."
        with pytest.raises(OSError, match=r"refused|Connect"):
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1)

    asyncio.run(main())


def test_an_address_that_is_taken_is_told() -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"environment.gateway: port {port} is in use; 0 takes a free one"):
                async with serve(Gateway(), f"tcp://127.0.0.1:{port}"):
                    pass

    asyncio.run(main())


def test_a_missing_uvicorn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        with pytest.raises(ConfigError, match=r"pip install 'asyncrl\[agents\]'"):
            async with serve(Gateway(), "tcp://127.0.0.1:0"):
                pass

    asyncio.run(main())


def test_stopping_does_not_wait_for_open_connections() -> None:
    async def main() -> None:
        async with serve(Gateway(), "tcp://127.0.0.1:0") as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /heal")
            await reader.readuntil(b"}")
        assert await reader.read() == b""
        writer.close()

    asyncio.run(main())
