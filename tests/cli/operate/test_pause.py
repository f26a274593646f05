import asyncio

import pytest

from asyncrl.cli.operate.pause import PAUSED, RESUMED, pause
from asyncrl.messages.session import Bye, Hello
from asyncrl.messages.supervisor import Pause, Paused
from tests.cli.operate.conversation import with_broker


@pytest.mark.parametrize(("is_paused", "sentence"), [(True, PAUSED), (False, RESUMED)])
def test_the_broker_is_told_and_its_answer_awaited(is_paused: bool, sentence: str) -> None:
    answers = {Pause: [Paused(not is_paused, "told on joining"), Paused(is_paused, "operator")]}
    told, heard = asyncio.run(with_broker(lambda run: pause(run, is_paused=is_paused), answers))
    assert told == sentence
    assert [type(message) for message in heard] == [Hello, Pause, Bye]
    assert heard[1] == Pause(is_paused)
