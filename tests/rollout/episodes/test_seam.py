"""All seams have the same methods."""

import pytest

from asyncrl.rollout.engines.seams import make_seam
from asyncrl.rollout.episodes.seam import Seam
from asyncrl.testing import FakeSeam
from tests.rollout.engines.chat_families import tokenizer

SEAMS: dict[str, Seam] = {
    "chat": make_seam(tokenizer("qwen3")),
    "text": make_seam(tokenizer("qwen3"), is_chat=False),
    "fake": FakeSeam(),
}


@pytest.mark.parametrize("seam", SEAMS.values(), ids=SEAMS)
def test_an_answer_follows_a_turn(seam: Seam) -> None:
    chat = [{"role": "user", "content": "a b"}]
    turn = seam.opening(chat)
    assert seam.after(chat, turn)
    assert seam.said(turn, "stop").text == seam.text(turn)
    assert seam.message(turn)["role"] == "assistant"
    assert seam.quoted(chat) == chat, "nothing in it is a control token"
    retold = seam.retold([*chat, seam.message(turn), *chat], turn)
    assert retold is None or seam.text(retold)
