"""Prompts with pictures, as text and as chats."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Image, Prompt
from asyncrl.rollout.engines import text
from asyncrl.rollout.engines.text import encode
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import PICTURE_TOKENS, make_vision_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    make_vision_model(found)
    return found


@pytest.fixture
def words(path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


@pytest.fixture
def processor(path: Path) -> ImageProcessor:
    return ImageProcessor.load(path) or pytest.fail("reads no pictures")


def image(width: int, height: int) -> Image:
    return Image(digest=bytes(32), width=width, height=height, num_bytes=1)


def spelled(words: PreTrainedTokenizerBase, ids: list[int]) -> str:
    begin, end, pad, _ = PICTURE_TOKENS
    return " ".join(words.convert_ids_to_tokens(ids)).replace(begin, "[").replace(end, "]").replace(pad, ".")


def test_text_has_every_token_of_a_picture_at_its_mark(
    words: PreTrainedTokenizerBase, processor: ImageProcessor
) -> None:
    prompt = Prompt(text="<image> a <image> How many", images=[image(16, 8), image(24, 16)])
    assert spelled(words, encode(words, prompt, processor=processor)) == "[ . . ] a [ . . . . . . ] How many"


def test_a_chat_has_them_where_its_template_puts_pictures(
    words: PreTrainedTokenizerBase, processor: ImageProcessor
) -> None:
    chat = [{"role": "system", "content": "a"}, {"role": "user", "content": "b <image> c"}]
    prompt = Prompt(chat=chat, images=[image(16, 8)])
    found = spelled(words, encode(words, prompt, processor=processor))
    assert found == "<user> a <user> b [ . . ] c <assistant>"


def test_a_prompt_without_pictures_is_the_same_with_and_without_a_processor(
    words: PreTrainedTokenizerBase, processor: ImageProcessor
) -> None:
    for prompt in (Prompt(text="a b"), Prompt(chat=[{"role": "user", "content": "a b"}])):
        assert encode(words, prompt, processor=processor) == encode(words, prompt)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (Prompt(text="<image> a", images=[image(8, 8)] * 2), "has 2 pictures, but 1 marks <image>"),
        (Prompt(text="<image> <|image_pad|>", images=[image(8, 8)]), "has 2 tokens for pictures .* but 1 pictures"),
        (Prompt(text="<|image_pad|>"), "has 1 tokens for pictures .* but 0 pictures"),
        (Prompt(text="<image>", images=[image(2000, 1)]), "2000 x 1 pixels cannot be cut into patches"),
    ],
)
def test_pictures_that_cannot_be_placed_are_refused_for_good(
    words: PreTrainedTokenizerBase, processor: ImageProcessor, prompt: Prompt, reason: str
) -> None:
    with pytest.raises(EngineError, match=reason) as caught:
        encode(words, prompt, processor=processor)
    assert not caught.value.retryable


def test_a_model_that_reads_no_pictures_refuses_them(words: PreTrainedTokenizerBase) -> None:
    with pytest.raises(EngineError, match="has pictures, but the model reads none"):
        encode(words, Prompt(text="<image>", images=[image(8, 8)]))


# ── test text ─────────────────────────────────────────────────────────────────────────────────


def test_plain_text_is_given_to_the_tokenizer_as_it_is(tokenizer):
    assert text.encode_text(tokenizer, Prompt(text="w5 w9 w7")) == [5, 9, 7]


def test_a_chat_goes_through_the_template_with_a_generation_prompt(tokenizer):
    assert text.encode_text(tokenizer, Prompt(chat=[{"role": "user", "content": "w5 w9"}])) == [1, 5, 9, 2]


def test_a_template_gets_its_arguments(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}{% if thinking %} w7{% endif %}")
    chat = Prompt(chat=[{"role": "user", "content": "w5"}])

    assert text.encode_text(tokenizer, chat) == [5]
    assert text.encode_text(tokenizer, chat, {"thinking": True}) == [5, 7]


def test_decoding_leaves_special_tokens_out(tokenizer):
    assert text.decode(tokenizer, [5, 9, 0]) == "w5 w9"


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        (Prompt(), "neither"),
        (Prompt(text="w5", chat=[{"role": "user", "content": "w5"}]), "both"),
    ],
    ids=["empty", "two forms"],
)
def test_a_prompt_has_one_form(tokenizer, prompt, why):
    with pytest.raises(EngineError, match=why):
        text.encode_text(tokenizer, prompt)


def test_a_chat_needs_a_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", None)

    with pytest.raises(EngineError, match="no chat template"):
        text.encode_text(tokenizer, Prompt(chat=[{"role": "user", "content": "w5"}]))


def test_the_template_shows_the_tools_of_the_prompt(tokenizer, monkeypatch):
    monkeypatch.setattr(
        tokenizer, "chat_template", "{{ messages[0].content }} {% for t in tools or [] %}{{ t.name }}{% endfor %}"
    )
    chat = [{"role": "user", "content": "w5"}]

    assert text.encode_text(tokenizer, Prompt(chat=chat)) == [5]
    assert text.encode_text(tokenizer, Prompt(chat=chat, tools='[{"name": "w9"}]')) == [5, 9]


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        (Prompt(text="w5", tools='[{"name": "w9"}]'), "plain text has no place for them"),
        (Prompt(chat=[{"role": "user", "content": "w5"}], tools="{"), "no JSON list of objects"),
    ],
    ids=["plain text", "damaged"],
)
def test_tools_that_cannot_be_shown_are_refused_for_good(tokenizer, prompt, why):
    with pytest.raises(EngineError, match=why) as caught:
        text.encode_text(tokenizer, prompt)
    assert not caught.value.retryable
