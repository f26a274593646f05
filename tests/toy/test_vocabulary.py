"""Toy tokenizers: encoded text decodes to the same text."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from asyncrl.errors import ConfigError
from asyncrl.toy.vocabulary import PLAIN_CHAT, tokenizer_from_texts, tokenizer_from_words

TEXTS = ["She sold 48 clips.", "She sold 24 clips , and more."] * 20


def test_words_keep_their_spaces() -> None:
    tokenizer = tokenizer_from_words(["Tom", " a", " #### ", "+", "5"])
    ids = tokenizer("Tom a+5 #### 5").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["Tom", " a", "+", "5", " #### ", "5"]
    assert tokenizer.decode(ids) == "Tom a+5 #### 5"


def test_a_longer_word_wins_over_its_own_beginning() -> None:
    tokenizer = tokenizer_from_words([" a", " ab"])
    assert tokenizer.convert_ids_to_tokens(tokenizer(" ab a").input_ids) == [" ab", " a"]


def test_a_plain_chat_has_the_tokens_of_its_text(tmp_path: Path) -> None:
    tokenizer_from_words(["Tom", " a", " ?"], chat_template=PLAIN_CHAT).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "Tom a"}, {"role": "assistant", "content": " a ?"}]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert rendered == tokenizer("Tom a a ?").input_ids


def test_an_unknown_word_is_marked() -> None:
    tokenizer = tokenizer_from_words(["Tom"])
    assert tokenizer.unk_token_id in tokenizer("Tomato").input_ids


def test_special_tokens_vanish_from_decoded_text() -> None:
    tokenizer = tokenizer_from_words([" #### ", "7"])
    ids = [*tokenizer(" #### 7").input_ids, tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " #### 7"


def test_special_words_are_encoded_as_one_token_and_left_out_of_decoded_text() -> None:
    tokenizer = tokenizer_from_words([" #### ", "7"], special=["<|image_pad|>"])
    ids = tokenizer("<|image_pad|><|image_pad|> #### 7").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["<|image_pad|>", "<|image_pad|>", " #### ", "7"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == " #### 7"


def test_pieces_of_text_give_back_any_text() -> None:
    tokenizer = tokenizer_from_texts(TEXTS, 300)
    for text in ("She sold", "snowman ☃ , ok .", "\n  #### 12"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_pieces_are_at_most_as_many_as_asked() -> None:
    assert len(tokenizer_from_texts(TEXTS, 270)) == 270
    assert len(tokenizer_from_texts(TEXTS, 5000)) < 400


def test_the_same_text_gives_the_same_pieces() -> None:
    assert tokenizer_from_texts(TEXTS, 280).get_vocab() == tokenizer_from_texts(TEXTS, 280).get_vocab()


def test_a_size_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 100"):
        tokenizer_from_texts(TEXTS, 100)


@pytest.mark.parametrize("made", [tokenizer_from_words(["Tom", " a"]), tokenizer_from_texts(TEXTS, 300)])
def test_a_saved_tokenizer_comes_back_the_same(made: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    made.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    ids = made("Tom a").input_ids
    assert loaded("Tom a").input_ids == ids
    assert loaded.decode(ids) == made.decode(ids) == "Tom a"
    assert (loaded.eos_token_id, loaded.pad_token_id) == (made.eos_token_id, made.pad_token_id)
