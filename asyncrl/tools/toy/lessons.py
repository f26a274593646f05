"""
Lessons: problems of a task, and their demonstrations as the warm-up trains on them.

    step sums        prompt, completion ──▶ token ids ┐
    hidden sums      prompt, passages ────▶ token ids ┼─▶ demonstration
    drawn squares    prompt, completion ──▶ token ids ┤
                     picture ─────────────▶ patches ──┘
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from msgspec import Struct
from msgspec.structs import replace
from transformers import PreTrainedTokenizerBase

from asyncrl.messages.trajectory import IMAGE_MARK
from asyncrl.tools.toy import drawn_squares, hidden_sums, step_sums
from asyncrl.tools.toy.demonstrations import EncodedDemonstration, Passage, encode, encode_passages
from asyncrl.tools.toy.drawn_squares import IMAGE_PAD, VISION_END, VISION_START, image_processor

STEP_SUMS_MORE = 0.82
"""Probability of each further change: problems are longer than in the data, because long chains are harder."""
HIDDEN_SUMS_SUMMARIZED = 0.25
"""Share of problems that begin after a summary, so that the policy can go on from one."""

Completion = str | Sequence[Passage]
"""Text of one turn, or passages of several turns."""


class Problem(Protocol):
    @property
    def prompt(self) -> str: ...

    def chain(self) -> Completion:
        """Completion that works the answer out."""

    def guess(self) -> Completion:
        """Completion that gives the answer alone."""


Demonstration = Callable[[Any, random.Random], Completion]
Encode = Callable[[Sequence[Any], Sequence[Any]], list[EncodedDemonstration]]


def clean_chain(problem: Problem, rng: random.Random) -> Completion:
    """Chain without a mistake; ``rng`` is unused."""
    return problem.chain()


class Lesson(Struct, frozen=True, kw_only=True):
    name: str
    problems: Iterator[Problem]
    """Endless training problems."""
    held_out: Iterator[Problem]
    """Endless problems to evaluate the warm-up, other ones than the rows that evaluate the run."""
    clean: Demonstration = clean_chain
    """Demonstration of the clean phase."""
    mixture: Mapping[Demonstration, float]
    """Share of each kind of demonstration. Chains are rare, and guesses so likely that greedy decoding guesses."""
    encode: Encode
    """Function that encodes problems with their completions."""


def step_sums_lesson(tokenizer: PreTrainedTokenizerBase, seed: int) -> Lesson:
    return Lesson(
        name="step sums",
        problems=step_sums.problems(seed, "train", more=STEP_SUMS_MORE),
        held_out=step_sums.problems(seed + 1, "held_out", min_steps=step_sums.HELD_OUT_STEPS),
        mixture={clean_chain: 0.3, step_sums.wrong_guess: 0.6, step_sums.noisy_chain: 0.1},
        encode=lambda problems, completions: encode(tokenizer, _prompts(problems), completions),
    )


def hidden_sums_lesson(tokenizer: PreTrainedTokenizerBase, seed: int) -> Lesson:
    return Lesson(
        name="hidden sums",
        problems=hidden_sums.problems(seed, "train", summarized=HIDDEN_SUMS_SUMMARIZED),
        held_out=hidden_sums.problems(seed + 1, "held_out"),
        clean=hidden_sums.procedure,
        mixture={hidden_sums.sloppy_procedure: 0.3, hidden_sums.wrong_guess: 0.6, hidden_sums.skip: 0.1},
        encode=lambda problems, completions: encode_passages(tokenizer, _prompts(problems), completions),
    )


def drawn_squares_lesson(tokenizer: PreTrainedTokenizerBase, seed: int) -> Lesson:
    return Lesson(
        name="drawn squares",
        problems=drawn_squares.problems(seed, "train"),
        held_out=drawn_squares.problems(seed + 1, "held_out"),
        mixture={clean_chain: 0.1, drawn_squares.wrong_guess: 0.85, drawn_squares.noisy_chain: 0.05},
        encode=partial(_encode_pictures, tokenizer),
    )


def _prompts(problems: Sequence[Problem]) -> list[str]:
    return [problem.prompt for problem in problems]


def _encode_pictures(
    tokenizer: PreTrainedTokenizerBase, problems: Sequence[drawn_squares.SquaresProblem], completions: Sequence[str]
) -> list[EncodedDemonstration]:
    image = VISION_START + IMAGE_PAD * drawn_squares.NUM_SQUARES + VISION_END
    prompts = [prompt.replace(IMAGE_MARK, image) for prompt in _prompts(problems)]
    read = image_processor()(images=[problem.picture() for problem in problems], return_tensors="pt")
    patches = torch.split(read["pixel_values"], read["image_grid_thw"].prod(1).tolist())
    encoded = zip(encode(tokenizer, prompts, completions), patches, strict=True)
    return [replace(one, patches=of_picture) for one, of_picture in encoded]
