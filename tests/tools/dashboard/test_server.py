import asyncio
import socket
from pathlib import Path

import httpx
import pytest

pytest.importorskip("uvicorn")

from asyncrl.errors import ConfigError
from asyncrl.tools.dashboard import app
from asyncrl.tools.dashboard.app import serve
from tests.recorded_runs import MakeRun

TOKEN = "a-token-of-some-length"


async def fetched(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        return (await client.get(url)).status_code


def test_the_printed_address_opens_the_page(make_run: MakeRun) -> None:
    async def main() -> None:
        async with serve([make_run().path], port=0) as url:
            assert url.startswith("http://127.0.0.1:")
            assert await fetched(url) == 200

    asyncio.run(main())


def test_with_a_token_the_printed_address_holds_it(make_run: MakeRun) -> None:
    async def main() -> None:
        async with serve([make_run().path], port=0, token=TOKEN) as url:
            assert url.endswith(f"/?token={TOKEN}")
            assert await fetched(url) == 200
            assert await fetched(url.partition("?")[0]) == 401

    asyncio.run(main())


def test_a_taken_port_is_left_to_whoever_has_it(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            monkeypatch.setattr(app, "PORT", port)
            async with serve([make_run().path]) as url:
                assert f":{port}/" not in url
            with pytest.raises(ConfigError, match="--port: port"):
                async with serve([make_run("b").path], port=port):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0"}, "--host is 0.0.0.0, which other machines can reach.*of at least 16 characters"),
        ({"token": "short"}, "has 5 characters, expected at least 16"),
    ],
)
def test_what_would_not_be_safe_is_refused(make_run: MakeRun, options: dict[str, str], message: str) -> None:
    async def main() -> None:
        async with serve([make_run().path], **options):  # type: ignore[arg-type]
            pass

    with pytest.raises(ConfigError, match=message):
        asyncio.run(main())


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve([tmp_path / "none"], port=0):
            pass

    with pytest.raises(ConfigError, match="not a run directory"):
        asyncio.run(main())
