"""A node keeps one link to each spool, and what it asked for or puts survives the loss of a link."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from asyncrl.errors import SpoolAway
from asyncrl.messages.spool import Fetch, Fetched, Put, SpoolAddress, SpoolRef, SpoolSet
from asyncrl.wire import spools as client
from asyncrl.wire.memory import MemoryHub
from asyncrl.wire.spools import SpoolLinks

DEADLINE_S = 30.0
A, B = SpoolAddress("a", "memory-a"), SpoolAddress("b", "memory-b")
PUT = Put("r", "1", [])
HELLO = memoryview(b"hello")


class Stage:
    """Links of one node, and the hubs of the spools a and b at the other end."""

    def __init__(self, spools: SpoolSet) -> None:
        self.hubs = {"memory-a": MemoryHub(), "memory-b": MemoryHub()}
        self.links = SpoolLinks(lambda spool: self.hubs[spool.address].connect("r.1"), spools)

    def hub(self, name: str) -> MemoryHub:
        return self.hubs[f"memory-{name}"]

    async def asked(self, name: str) -> Fetch:
        message = (await self.hub(name).receive())[1]
        assert isinstance(message, Fetch)
        return message

    def answer(self, name: str, fetch: Fetch) -> None:
        self.hub(name).send("r.1", Fetched(fetch.request_id, [HELLO] * len(fetch.refs)))


def ref(name: str) -> SpoolRef:
    return SpoolRef(name, 0, 16, len(HELLO), 0)


def play(scene: Callable[[Stage], Awaitable[None]], spools: SpoolSet = SpoolSet([A, B], "a")) -> None:  # noqa: B008
    async def run() -> None:
        stage = Stage(spools)
        running = asyncio.create_task(stage.links.run())
        async with asyncio.timeout(DEADLINE_S):
            await scene(stage)
        running.cancel()
        await asyncio.wait([running])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RECONNECT_S", 0.0)


def test_each_payload_is_asked_of_the_spool_that_stores_it() -> None:
    async def scene(stage: Stage) -> None:
        payloads = [stage.links.request(ref(name), waits=True) for name in "ab"]
        for name in "ba":
            fetch = await stage.asked(name)
            assert [one.spool for one in fetch.refs] == [name]
            stage.answer(name, fetch)
        assert [await payload for payload in payloads] == [HELLO, HELLO]

    play(scene)


def test_a_put_goes_to_the_nodes_own_spool_and_to_another_once_the_broker_says_so() -> None:
    async def scene(stage: Stage) -> None:
        await stage.links.put(PUT)
        assert (await stage.hub("a").receive())[1] == PUT
        stage.links.update(SpoolSet([B], "b"))
        await stage.links.put(PUT)
        assert (await stage.hub("b").receive())[1] == PUT

    play(scene)


def test_a_put_waits_for_a_spool() -> None:
    async def scene(stage: Stage) -> None:
        putting = asyncio.create_task(stage.links.put(PUT))
        await asyncio.sleep(0)
        assert not putting.done()
        stage.links.update(SpoolSet([A], "a"))
        await putting
        assert (await stage.hub("a").receive())[1] == PUT

    play(scene, SpoolSet())


def test_a_link_that_is_lost_is_opened_again_with_what_it_has_not_answered() -> None:
    async def scene(stage: Stage) -> None:
        payload = stage.links.request(ref("a"), waits=True)
        first = await stage.asked("a")
        stage.hub("a").forget("r.1")
        again = await stage.asked("a")
        assert again.refs == first.refs
        stage.answer("a", first)
        stage.answer("a", again)
        assert await payload == HELLO

    play(scene)


def test_a_spool_at_another_address_is_used_there() -> None:
    async def scene(stage: Stage) -> None:
        await stage.links.put(PUT)
        stage.links.update(SpoolSet([SpoolAddress("a", "memory-b")], "a"))
        await stage.links.put(PUT)
        assert (await stage.hub("b").receive())[1] == PUT

    play(scene)


def test_while_a_spool_is_away_requests_wait_or_end() -> None:
    async def scene(stage: Stage) -> None:
        patient, hasty = (stage.links.request(ref("b"), waits=waits) for waits in (True, False))
        await stage.asked("b")
        stage.links.update(SpoolSet([A], "a"))
        with pytest.raises(SpoolAway, match="the spool b is away"):
            await hasty
        with pytest.raises(SpoolAway, match="the spool b is away"):
            await stage.links.request(ref("b"), waits=False)
        assert not patient.done()
        stage.links.update(SpoolSet([A, B], "a"))
        stage.answer("b", await stage.asked("b"))
        assert await patient == HELLO

    play(scene)


def test_nothing_is_waited_for_in_a_spool_that_is_lost() -> None:
    async def scene(stage: Stage) -> None:
        early = stage.links.request(ref("b"), waits=True)
        stage.links.update(SpoolSet([A], "a", lost=["b"]))
        assert await early is None
        assert await stage.links.request(ref("b"), waits=True) is None

    play(scene)


def test_a_request_for_a_spool_that_was_never_named_waits_for_it() -> None:
    async def scene(stage: Stage) -> None:
        payload = stage.links.request(ref("b"), waits=True)
        stage.links.update(SpoolSet([B]))
        stage.answer("b", await stage.asked("b"))
        assert await payload == HELLO

    play(scene, SpoolSet())
