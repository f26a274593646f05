from asyncrl.rollout.engines.special_tokens import special_tokens, without_last
from tests.rollout.engines.chat_families import tokenizer


def test_special_tokens_are_those_that_text_has_not() -> None:
    texts = set(special_tokens(tokenizer("qwen3")).values())
    assert {"<|im_end|>", "<eos>"} <= texts
    assert "<think>" not in texts


def test_only_the_special_tokens_at_the_end_are_dropped() -> None:
    assert without_last([7, 1, 8, 1, 2], {1: "a", 2: "b"}) == [7, 1, 8]
    assert without_last([1, 2], {1: "a", 2: "b"}) == []
