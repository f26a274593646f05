"""Plain text: answers are tokenized alone."""

import pytest
from transformers import PreTrainedTokenizerBase

from asyncrl.errors import EngineError
from asyncrl.rollout.engines.seams import make_seam
from asyncrl.rollout.episodes.seam import Seam
from asyncrl.toy.vocabulary import tokenizer_from_words

WORDS = tokenizer_from_words([" a", " b", " c"])


@pytest.fixture
def seam() -> Seam:
    return make_seam(WORDS, is_chat=False)


def ids(tokenizer: PreTrainedTokenizerBase, written: str) -> list[int]:
    return list(tokenizer(written).input_ids)


def test_the_contents_follow_each_other(seam: Seam) -> None:
    messages = [{"role": "tool", "content": " a b"}, {"role": "user", "content": " c"}]
    assert seam.after(messages, ids(WORDS, " c")) == ids(WORDS, " a b c")
    assert seam.opening(messages) == ids(WORDS, " a b c")
    assert seam.after([], ids(WORDS, " c")) == []


def test_nothing_is_retold(seam: Seam) -> None:
    assert seam.retold([{"role": "user", "content": " a"}], []) is None


def test_a_turn_is_its_text(seam: Seam) -> None:
    assert seam.said(ids(WORDS, " a b<eos>"), "length").text == " a b"
    assert seam.said(ids(WORDS, " a b<eos>"), "length").finish_reason == "length"
    assert seam.message(ids(WORDS, " a<eos>")) == {"role": "assistant", "content": " a"}


def test_tools_have_no_place(seam: Seam) -> None:
    with pytest.raises(EngineError, match="plain text has no place for them"):
        seam.opening([{"role": "user", "content": " a"}], '[{"name": "add"}]')
