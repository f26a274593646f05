import asyncio
from typing import Any

from asyncrl.wire.http import lifespan


def test_start_and_shutdown_are_answered() -> None:
    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(event: Any) -> None:
        sent.append(event["type"])

    asyncio.run(lifespan(receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
