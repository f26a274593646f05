import asyncio
from typing import Any

import pytest

from asyncrl.rollout.gateway.exchange import BodyBudget, Disconnected, Exchange
from asyncrl.rollout.gateway.refusal import Refused


def received(
    events: list[dict[str, Any]], *, limit: int = 10, budget: int = 100, headers: Any = ()
) -> tuple[bytes, BodyBudget]:
    """Body of a request whose parts arrive as ``events``; nothing more arrives after them."""
    memory = BodyBudget(budget)

    async def receive() -> dict[str, Any]:
        if not events:
            await asyncio.Event().wait()
        return events.pop(0)

    async def main() -> bytes:
        async def send(event: Any) -> None:
            raise AssertionError(event)

        return await Exchange({"method": "POST", "headers": headers}, receive, send).body(limit, memory, 0.01)

    return asyncio.run(main()), memory


def part(body: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_arrives_in_parts() -> None:
    body, memory = received([part(b"ab"), part(b""), part(b"cd", more=False)])
    assert body == b"abcd"
    memory.take(100)  # all was given back


@pytest.mark.parametrize("events", [[part(b"a" * 11, more=False)], [part(b"a" * 6), part(b"a" * 6)]])
def test_a_large_body_is_refused_before_all_of_it_has_arrived(events: list[dict[str, Any]]) -> None:
    with pytest.raises(Refused, match="more than 10 bytes"):
        received(events)


@pytest.mark.parametrize("length", [b"11", b"9" * 1000])
def test_a_large_body_is_refused_by_its_announced_length(length: bytes) -> None:
    with pytest.raises(Refused, match="more than 10 bytes"):
        received([], headers=[(b"content-length", length)])


def test_a_slow_body_is_refused() -> None:
    with pytest.raises(Refused, match=r"did not arrive within 0.01 s") as refused:
        received([part(b"a")])
    assert refused.value.status == 408


def test_all_bodies_together_have_a_budget() -> None:
    with pytest.raises(Refused) as refused:
        received([part(b"aaaa", more=False)], budget=3)
    assert (refused.value.status, refused.value.retry) == (503, True)


def test_a_client_may_go_away_before_its_body_has_arrived() -> None:
    with pytest.raises(Disconnected):
        received([part(b"a"), {"type": "http.disconnect"}])
