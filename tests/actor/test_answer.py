import asyncio

import pytest

from asyncrl.actor import answer
from asyncrl.actor.answer import receive_answer
from asyncrl.actor.memory import MemoryHub
from asyncrl.errors import LinkError
from asyncrl.messages.session import Stop
from asyncrl.messages.weights import WeightsList


def test_the_answer_is_of_the_kind_that_was_asked_for() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        link = hub.connect("rollout-0.1")
        hub.send("rollout-0.1", WeightsList([]))
        assert await receive_answer(link, WeightsList) == WeightsList([])
        hub.send("rollout-0.1", Stop("now"))
        with pytest.raises(LinkError, match="the spool answered with Stop, expected WeightsList"):
            await receive_answer(link, WeightsList)

    asyncio.run(scene())


def test_a_spool_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "ANSWER_S", 0.01)
    link = MemoryHub().connect("rollout-0.1")
    with pytest.raises(LinkError, match=r"the spool did not answer within 0\.01 s"):
        asyncio.run(receive_answer(link, WeightsList))
