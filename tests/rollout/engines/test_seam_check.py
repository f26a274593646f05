"""What is refused before a run begins."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.seams import make_seam
from asyncrl.toy.vocabulary import tokenizer_from_texts, tokenizer_from_words
from tests.rollout.engines.chat_families import TEXTS

JOINED = "{% for m in messages %}{{ m.content }}{% endfor %}"
WORDS = ["Tom", " a", " b", "+", "-", "=", *"0123456789", " ?", " !", " so far ", " How many now?", " #### "]


def test_words_that_never_join_need_no_special_token() -> None:
    words = tokenizer_from_words(WORDS)
    words.chat_template = JOINED
    seam = make_seam(words)
    assert words.decode(seam.after([{"role": "tool", "content": "+5"}], words(" a ?").input_ids)) == "+5"


def test_tokens_that_would_join_the_answer_are_refused() -> None:
    merging = tokenizer_from_texts(TEXTS * 9, 400)
    merging.chat_template = JOINED
    with pytest.raises(
        ConfigError, match=r"no special token between a turn that ends in .* and an answer of the role user"
    ):
        make_seam(merging)


def test_words_that_overlap_are_refused_as_well() -> None:
    words = tokenizer_from_words(["a", "b", "ab"])
    words.chat_template = JOINED
    with pytest.raises(ConfigError, match="the tokenizer would join 'b' with it"):
        make_seam(words)


def test_a_special_token_at_the_seam_suffices() -> None:
    merging = tokenizer_from_texts(TEXTS * 9, 400, special=["<|end|>"])
    merging.chat_template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"
    make_seam(merging)


def test_a_template_without_the_role_of_tools_is_refused_if_there_are_tools() -> None:
    words = tokenizer_from_words(WORDS, special=["<|end|>"])
    words.chat_template = (
        "{{ tools | tojson if tools else '' }}<tool_call>"
        "{% for m in messages if m.role != 'tool' %}{{ m.content }}<|end|>{% endfor %}"
    )
    make_seam(words)
    with pytest.raises(ConfigError, match="leaves out messages of the role tool"):
        make_seam(words, tools='[{"function": {"name": "look"}}]')


def test_a_template_that_hides_the_turns_of_the_policy_is_refused() -> None:
    words = tokenizer_from_words(WORDS)
    words.chat_template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="does not show where a turn of the policy ends"):
        make_seam(words)
