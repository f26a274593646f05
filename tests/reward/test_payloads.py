"""Fetching out of a spool, many at once."""

import asyncio

import pytest

from asyncrl.errors import LinkClosed, LinkError, LinkReset
from asyncrl.messages import Fetch, Fetched, SpoolRef, Stop
from asyncrl.reward.payloads import MAX_REFS, Payloads

from .scripted import ScriptedLink


def ref(offset: int) -> SpoolRef:
    return SpoolRef("spool-0", 0, offset, 4, 0)


async def heard(link: ScriptedLink) -> Fetch:
    message = await link.hear()
    assert isinstance(message, Fetch)
    return message


def test_what_waits_travels_in_one_request_and_answers_may_come_in_any_order() -> None:
    async def fetch() -> list[memoryview]:
        link = ScriptedLink()
        payloads = Payloads(link)
        running = [asyncio.create_task(payloads.ask()), asyncio.create_task(payloads.hear())]
        fetching = [asyncio.create_task(payloads.fetch(ref(offset))) for offset in range(MAX_REFS + 2)]
        first, second = await heard(link), await heard(link)
        assert [len(first.refs), len(second.refs)] == [MAX_REFS, 2]
        for request in (second, first):
            told = [memoryview(str(ref.offset).encode()) for ref in request.refs]
            link.say(Stop("not an answer"), Fetched(99, told), Fetched(request.request_id, told))
        found = await asyncio.gather(*fetching)
        for task in running:
            task.cancel()
        return found

    assert [int(bytes(payload)) for payload in asyncio.run(fetch())] == list(range(MAX_REFS + 2))


@pytest.mark.parametrize(("broken", "seen"), [(LinkClosed("closed"), LinkError), (LinkReset("reset"), LinkReset)])
def test_a_lost_spool_is_an_error_but_never_the_quiet_end_of_a_run(broken: LinkError, seen: type[LinkError]) -> None:
    link = ScriptedLink()
    link.say(broken)

    with pytest.raises(LinkError) as caught:
        asyncio.run(Payloads(link).hear())

    assert type(caught.value) is seen
