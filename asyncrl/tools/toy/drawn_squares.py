"""
Drawn squares: a counting task that needs a picture, with unlimited problems.

    picture      3 x 3 coloured squares, 24 x 24 pixels, shaded and noisy
    prompt       <image>How many red?
    clean chain   red 1 blue 1 red 2 pink 2 green 2 blue 2 red 3 cyan 3 pink 3 #### 3
    wrong guess   #### 7
    noisy chain  a chain with one square misread, and the mistake carried to the end

A chain names the colour of each square, row by row, with the running count; a guess gives only the answer. The count is
drawn first, evenly from 0 to 9, so a policy that does not see the picture is right one time in ten.

Invariants:
* The split of a problem depends on its colours alone, not on shades and noise, so no drawing is in both splits.
* Prompts without their mark, and demonstrations, are sequences of `WORDS`.
"""

import io
import random
import zlib
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from PIL import Image
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from asyncrl.data.prepare.published import write as write_parquet
from asyncrl.messages.trajectory import IMAGE_MARK
from asyncrl.messages.words import Split

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (40, 50, 230),
    "yellow": (230, 220, 40),
    "pink": (240, 100, 220),
    "cyan": (40, 220, 220),
}
SIDE = 3
"""Squares along each side of a picture."""
SQUARE_PIXELS = 8
"""Width and height of a square; one image token stands for one square."""
DARKEST = 0.6
"""Least brightness of a square, as a share of its colour."""
NOISE_STD = 12.0
"""Standard deviation of the noise on each channel, of 255."""

NUM_SQUARES = SIDE * SIDE
QUESTION = "How many"
ANSWER = " ####"
COLOUR_WORDS = {colour: f" {colour}" for colour in COLOURS}
NUMBER_WORDS = tuple(f" {number}" for number in range(NUM_SQUARES + 1))
WORDS = (QUESTION, "?", ANSWER, *COLOUR_WORDS.values(), *NUMBER_WORDS)
"""Vocabulary of prompts and demonstrations; a space belongs to the word after it."""

DATA_SOURCE, SHOWN_SOURCE = "drawn_squares", "shown_squares"
NUM_ROWS: dict[Split, int] = {"train": 2048, "held_out": 256}


class SquaresProblem(Struct, frozen=True):
    """A picture of squares, and the colour to count in it."""

    asked: str
    squares: tuple[str, ...]
    """Colours, row by row."""
    seed: int
    """Seed of shades and noise."""

    @property
    def prompt(self) -> str:
        return f"{IMAGE_MARK}{QUESTION}{COLOUR_WORDS[self.asked]}?"

    @property
    def answer(self) -> str:
        return str(self.squares.count(self.asked))

    @property
    def split(self) -> Split:
        """Split by a checksum of the colours, the same on every machine: one drawing in ten is held out."""
        return "held_out" if zlib.crc32(" ".join((self.asked, *self.squares)).encode()) % 10 == 0 else "train"

    def chain(self, seen: tuple[str, ...] = ()) -> str:
        """Completion with the running count at each square, then the answer; ``seen`` replaces the true colours."""
        seen = seen or self.squares
        counts = list(accumulate(colour == self.asked for colour in seen))
        named = (COLOUR_WORDS[colour] + NUMBER_WORDS[count] for colour, count in zip(seen, counts, strict=True))
        return "".join(named) + ANSWER + NUMBER_WORDS[counts[-1]]

    def guess(self) -> str:
        """Completion with the right answer and no chain."""
        return f"{ANSWER} {self.answer}"

    def picture(self) -> NDArray[np.uint8]:
        """Draw the squares with their shades and noise, [24, 24, 3] RGB."""
        rng = np.random.default_rng(self.seed)
        shades = rng.uniform(DARKEST, 1.0, (NUM_SQUARES, 1))
        squares = np.array([COLOURS[colour] for colour in self.squares]) * shades
        drawn = squares.reshape(SIDE, SIDE, 3).repeat(SQUARE_PIXELS, 0).repeat(SQUARE_PIXELS, 1)
        return (drawn + rng.normal(0, NOISE_STD, drawn.shape)).clip(0, 255).astype(np.uint8)


def wrong_guess(problem: SquaresProblem, rng: random.Random) -> str:
    """Completion with a wrong count and no chain; a right one would make reinforcement learning reward guessing."""
    return ANSWER + rng.choice([number for number in NUMBER_WORDS if number.strip() != problem.answer])


def noisy_chain(problem: SquaresProblem, rng: random.Random) -> str:
    """Chain with one square misread so that its answer is wrong, because not every chain should be rewarded."""
    at = rng.randrange(NUM_SQUARES)
    is_asked = problem.squares[at] == problem.asked
    misread = rng.choice(_others(problem.asked)) if is_asked else problem.asked
    return problem.chain((*problem.squares[:at], misread, *problem.squares[at + 1 :]))


def problems(seed: int, split: Split) -> Iterator[SquaresProblem]:
    """Yield problems of one split, endlessly."""
    rng = random.Random(f"drawn squares {split} {seed}")
    while True:
        problem = _draw(rng)
        if problem.split == split:
            yield problem


def png(problem: SquaresProblem) -> bytes:
    """Encode the picture without loss."""
    file = io.BytesIO()
    Image.fromarray(problem.picture()).save(file, "PNG")
    return file.getvalue()


def write(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """Write problems of one split as parquet: ``prompt``, ``images``, ``answer``, ``data_source``."""
    drawn = islice(problems(seed, split), num_rows or NUM_ROWS[split])
    rows = [
        {
            "prompt": problem.prompt,
            "images": [{"bytes": png(problem)}],
            "answer": problem.answer,
            "data_source": DATA_SOURCE,
        }
        for problem in drawn
    ]
    write_parquet(rows, path)


def write_shown(path: Path, split: Split, seed: int, *, num_rows: int | None = None) -> None:
    """
    Write the same problems for an environment that shows the picture: ``prompt``, ``answer``, ``data_source`` and
    ``extra_info``, which reaches the environment and not the policy.
    """
    drawn = islice(problems(seed, split), num_rows or NUM_ROWS[split])
    rows = [
        {
            "prompt": f"{QUESTION}?",
            "answer": problem.answer,
            "data_source": SHOWN_SOURCE,
            "extra_info": {"asked": problem.asked, "squares": " ".join(problem.squares), "seed": problem.seed},
        }
        for problem in drawn
    ]
    write_parquet(rows, path)


def _draw(rng: random.Random) -> SquaresProblem:
    asked = rng.choice(list(COLOURS))
    count = rng.randint(0, NUM_SQUARES)
    squares = [asked] * count + rng.choices(_others(asked), k=NUM_SQUARES - count)
    rng.shuffle(squares)
    return SquaresProblem(asked, tuple(squares), rng.getrandbits(32))


def _others(colour: str) -> list[str]:
    return [other for other in COLOURS if other != colour]


# ── vision model ──────────────────────────────────────────────────────────────────────────────
# A Qwen3-VL with random weights, small enough for one core: 163,000 parameters.
#
#     24 x 24 pixels ─▶ 6 x 6 patches ─▶ vision tower ─▶ 3 x 3 image tokens ─▶ language model
#                                           └─▶ states of its first layer, added to the language model's first layer
#
# An image token stands for 8 x 8 pixels.

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
VISION_WORDS = (VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
"""Special tokens of the model's vocabulary."""

PATCH, MERGE, FRAMES = 4, 2, 2
"""Pixels along a patch, patches along an image token, and frames of a patch; a picture counts as two frames."""
NUM_PATCHES = (SIDE * SQUARE_PIXELS // PATCH) ** 2
HIDDEN_SIZE, VISION_HIDDEN_SIZE = 64, 32
MAX_POSITIONS = 4096
"""Most tokens of a sequence; rotary positions need no parameters."""


def image_processor() -> Qwen2VLImageProcessorPil:
    """Image processor that scales every picture to about 24 x 24 pixels, the size of the drawn ones."""
    pixels = NUM_PATCHES * PATCH**2
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=FRAMES,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": pixels, "longest_edge": pixels},
    )


def random_vision_model(tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A Qwen3-VL with random weights, a function of its arguments; the process's random state stays as it was."""
    ids = dict(zip(VISION_WORDS, tokenizer.convert_tokens_to_ids(list(VISION_WORDS)), strict=True))
    config = Qwen3VLConfig(
        text_config=_text(tokenizer),
        vision_config=_vision(),
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        image_token_id=ids[IMAGE_PAD],
        video_token_id=ids[VIDEO_PAD],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLForConditionalGeneration(config).eval()


def _text(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 3 * HIDDEN_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [4, 2, 2],  # half of head_dim: pairs that turn with time, height and width
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _vision() -> dict[str, object]:
    return {
        "depth": 1,
        "hidden_size": VISION_HIDDEN_SIZE,
        "intermediate_size": 2 * VISION_HIDDEN_SIZE,
        "num_heads": 4,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "out_hidden_size": HIDDEN_SIZE,
        "num_position_embeddings": NUM_PATCHES,
        "deepstack_visual_indexes": [0],
    }
