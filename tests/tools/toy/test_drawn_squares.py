"""Drawn squares: pictures, prompts, demonstrations and splits."""

import io
import random
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import PreTrainedTokenizerBase

from asyncrl.reward.verifier import VerifierInput
from asyncrl.reward.verifiers.gsm8k import Gsm8k
from asyncrl.tools.toy import drawn_squares
from asyncrl.tools.toy.drawn_squares import (
    COLOURS,
    VISION_WORDS,
    SquaresProblem,
    image_processor,
    noisy_chain,
    png,
    problems,
    random_vision_model,
    wrong_guess,
)
from asyncrl.tools.toy.models import tokenizer_from_words

FLAG = SquaresProblem("red", ("red", "blue", "red", "pink", "green", "blue", "red", "cyan", "pink"), seed=4)
seeds = st.integers(0, 2**32)


def drawn(seed: int, count: int = 20) -> list[SquaresProblem]:
    return list(islice(problems(seed, "train"), count))


def score(problem: SquaresProblem, completion: str) -> object:
    inputs = VerifierInput(
        completion=completion, answer=problem.answer, prompt=problem.prompt, data_source="", extra={}
    )
    return Gsm8k()(inputs)["score"]


def test_a_problem_reads_as_the_module_says() -> None:
    assert FLAG.prompt == "<image>How many red?"
    assert FLAG.answer == "3"
    assert FLAG.chain() == " red 1 blue 1 red 2 pink 2 green 2 blue 2 red 3 cyan 3 pink 3 #### 3"
    assert FLAG.guess() == " #### 3"


def test_a_picture_shows_the_squares_row_by_row() -> None:
    """Each square's mean colour points to its own colour more than to any other."""
    names, rgb = list(COLOURS), np.array(list(COLOURS.values()), float)
    for problem in (FLAG, *drawn(0)):
        picture = problem.picture()
        assert picture.shape == (24, 24, 3)
        assert picture.dtype == np.uint8
        means = picture.reshape(3, 8, 3, 8, 3).mean((1, 3)).reshape(9, 3)
        likeness = (means / np.linalg.norm(means, axis=1)[:, None]) @ (rgb / np.linalg.norm(rgb, axis=1)[:, None]).T
        assert tuple(names[index] for index in likeness.argmax(1)) == problem.squares


def test_a_picture_is_a_function_of_the_problem_and_another_seed_changes_it() -> None:
    again = SquaresProblem(FLAG.asked, FLAG.squares, seed=FLAG.seed)
    other = SquaresProblem(FLAG.asked, FLAG.squares, seed=FLAG.seed + 1)
    assert np.array_equal(FLAG.picture(), again.picture())
    assert not np.array_equal(FLAG.picture(), other.picture())


def test_a_file_holds_the_picture_without_loss() -> None:
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png(FLAG)))), FLAG.picture())


@given(seeds)
def test_the_verifier_rewards_chains_and_right_guesses_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed):
        assert score(problem, problem.chain()) == score(problem, problem.guess()) == 1.0
        assert score(problem, wrong_guess(problem, rng)) == score(problem, noisy_chain(problem, rng)) == 0.0


@given(seeds)
def test_a_noisy_chain_misreads_one_square_and_counts_on(seed: int) -> None:
    rng = random.Random(seed)
    for problem in drawn(seed):
        body, _, given_answer = noisy_chain(problem, rng).partition(" #### ")
        seen = re.findall(r" ([a-z]+) (\d)", body)
        assert sum(colour != right for (colour, _), right in zip(seen, problem.squares, strict=True)) == 1
        assert [int(count) for _, count in seen] == list(np.cumsum([colour == problem.asked for colour, _ in seen]))
        assert given_answer == seen[-1][1]


@given(seeds)
def test_every_text_is_made_of_the_words(seed: int) -> None:
    words = "|".join(map(re.escape, drawn_squares.WORDS))
    rng = random.Random(seed)
    for problem in drawn(seed):
        for text in (problem.chain(), problem.guess(), wrong_guess(problem, rng), noisy_chain(problem, rng)):
            assert re.fullmatch(f"(?:{words})+", text)
        assert re.fullmatch(f"<image>(?:{words})+", problem.prompt)


def test_each_count_is_equally_likely_so_that_guessing_pays_a_tenth() -> None:
    counts = np.bincount([int(problem.answer) for problem in drawn(0, 5000)], minlength=10) / 5000
    assert counts.min() > 0.08
    assert counts.max() < 0.12


def test_the_split_is_a_checksum_of_the_colours_alone() -> None:
    """zlib.crc32 of "red red blue red ..." is 4051163308, of ten times "blue" 389347610: the last digit decides."""
    assert {SquaresProblem(FLAG.asked, FLAG.squares, seed).split for seed in range(9)} == {"train"}
    assert {SquaresProblem("blue", ("blue",) * 9, seed).split for seed in range(9)} == {"held_out"}


def test_about_one_drawing_in_ten_is_held_out() -> None:
    rng = random.Random(0)
    drawings = {tuple(rng.choices(list(COLOURS), k=9)) for _ in range(5000)}
    share = sum(SquaresProblem("red", squares, 0).split == "held_out" for squares in drawings) / len(drawings)
    assert 0.08 < share < 0.12


def test_problems_are_a_function_of_seed_and_split() -> None:
    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert {problem.split for problem in drawn(3)} == {"train"}
    assert {problem.split for problem in islice(problems(3, "held_out"), 5)} == {"held_out"}


def test_rows_have_the_picture_in_the_form_of_verl(tmp_path: Path) -> None:
    drawn_squares.write(tmp_path / "train.parquet", "train", 0, num_rows=5)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert [row["prompt"] for row in rows] == [problem.prompt for problem in drawn(0, 5)]
    assert [row["answer"] for row in rows] == [problem.answer for problem in drawn(0, 5)]
    assert [row["images"] for row in rows] == [[{"bytes": png(problem)}] for problem in drawn(0, 5)]
    assert {row["data_source"] for row in rows} == {"drawn_squares"}


def test_the_same_seed_writes_the_same_rows(tmp_path: Path) -> None:
    for name in ("one", "two"):
        drawn_squares.write(tmp_path / name, "held_out", 7, num_rows=5)
    assert pq.read_table(tmp_path / "one").equals(pq.read_table(tmp_path / "two"))


# ── test vision model ─────────────────────────────────────────────────────────────────────────
# The small Qwen3-VL: its size, and the pictures that its processor reads.


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
