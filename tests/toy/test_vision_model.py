"""The small Qwen3-VL: its size, and the pictures that its processor reads."""

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from asyncrl.toy import drawn_squares
from asyncrl.toy.vision_model import VISION_WORDS, image_processor, random_vision_model
from asyncrl.toy.vocabulary import tokenizer_from_words


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    return tokenizer_from_words(drawn_squares.WORDS, special=VISION_WORDS)


def test_a_picture_of_24_pixels_keeps_its_size_and_becomes_nine_image_tokens() -> None:
    picture = np.arange(24 * 24 * 3, dtype=np.uint32).reshape(24, 24, 3).astype(np.uint8)
    read = image_processor()(images=[picture], return_tensors="pt")
    assert read["image_grid_thw"].tolist() == [[1, 6, 6]]
    first = torch.from_numpy(picture[:4, :4].copy()).permute(2, 0, 1) / 127.5 - 1
    torch.testing.assert_close(read["pixel_values"][0].view(3, 2, 4, 4)[:, 0], first, atol=1e-6, rtol=0)


def test_the_model_knows_the_tokens_of_its_pictures(tokenizer: PreTrainedTokenizerBase) -> None:
    config = random_vision_model(tokenizer, seed=0).config
    ids = (config.vision_start_token_id, config.vision_end_token_id, config.image_token_id, config.video_token_id)
    assert tokenizer.convert_ids_to_tokens(ids) == list(VISION_WORDS)
    assert config.text_config.vocab_size == len(tokenizer)
    assert config.text_config.eos_token_id == tokenizer.eos_token_id


def test_the_same_seed_makes_the_same_weights_and_another_does_not(tokenizer: PreTrainedTokenizerBase) -> None:
    one, same, other = (random_vision_model(tokenizer, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(weight, same[name]) for name, weight in one.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_making_leaves_the_random_state_of_the_process_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    before = torch.get_rng_state()
    random_vision_model(tokenizer, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
