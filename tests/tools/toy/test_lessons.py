"""Lessons: shares of the mixtures, and problems as token ids and patches."""

import random
from itertools import islice

import pytest
import torch

from asyncrl.tools.toy import drawn_squares, hidden_sums, step_sums
from asyncrl.tools.toy.demonstrations import exact_match_share, loss
from asyncrl.tools.toy.drawn_squares import VISION_WORDS, image_processor, random_vision_model
from asyncrl.tools.toy.lessons import Lesson, drawn_squares_lesson, hidden_sums_lesson, step_sums_lesson
from asyncrl.tools.toy.models import tokenizer_from_words

SUMS = tokenizer_from_words(step_sums.WORDS)
HIDDEN = tokenizer_from_words(hidden_sums.WORDS)
SQUARES = tokenizer_from_words(drawn_squares.WORDS, special=VISION_WORDS)


LESSONS = {
    "sums": (step_sums_lesson, SUMS),
    "hidden": (hidden_sums_lesson, HIDDEN),
    "squares": (drawn_squares_lesson, SQUARES),
}


@pytest.fixture(params=LESSONS.values(), ids=list(LESSONS))
def lesson(request: pytest.FixtureRequest) -> Lesson:
    make, tokenizer = request.param
    made: Lesson = make(tokenizer, 0)
    return made


def test_guessing_is_the_likeliest_habit_and_some_demonstrations_are_right(lesson: Lesson) -> None:
    assert sum(lesson.mixture.values()) == pytest.approx(1.0)
    assert max(lesson.mixture, key=lesson.mixture.__getitem__).__name__ == "wrong_guess"
    problem, rng = next(lesson.held_out), random.Random(0)
    right = [kind for kind in lesson.mixture if str(kind(problem, rng)) == str(problem.chain())]
    assert len(right) == 1


def test_the_clean_phase_shows_how_the_answer_is_worked_out(lesson: Lesson) -> None:
    problem = next(lesson.held_out)
    assert lesson.clean(problem, random.Random(0)) == problem.chain()


def test_observations_of_hidden_sums_have_no_loss() -> None:
    problem = hidden_sums.HiddenSum("Tom", (5, 4))
    (row,) = hidden_sums_lesson(HIDDEN, 0).encode([problem], [problem.chain()])
    learned = [token for token in row.labels if token >= 0]
    assert HIDDEN.decode(learned) == " a ?0+5 ! b ?5+4 ! #### 9<eos>"
    assert HIDDEN.decode(row.completion_ids) == " a ?+50+5 !=5 b ?+45+4 !=9 #### 9<eos>"


def test_problems_are_encoded_without_an_unknown_word(lesson: Lesson) -> None:
    drawn = [*islice(lesson.problems, 20), *islice(lesson.held_out, 20)]
    for completions in ([one.chain() for one in drawn], [one.guess() for one in drawn]):
        for row in lesson.encode(drawn, completions):
            assert SUMS.unk_token_id not in row.prompt_ids + row.completion_ids


def test_the_held_out_problems_are_not_those_of_the_file() -> None:
    lesson = drawn_squares_lesson(SQUARES, 0)
    assert list(islice(lesson.held_out, 5)) != list(islice(drawn_squares.problems(0, "held_out"), 5))


def test_a_picture_becomes_nine_image_tokens_and_its_patches() -> None:
    problem = next(drawn_squares.problems(0, "train"))
    (row,) = drawn_squares_lesson(SQUARES, 0).encode([problem], [problem.guess()])
    assert SQUARES.decode(row.prompt_ids) == (
        "<|vision_start|>" + "<|image_pad|>" * 9 + f"<|vision_end|>How many {problem.asked}?"
    )
    assert row.patches is not None
    expected = image_processor()(images=[problem.picture()], return_tensors="pt")["pixel_values"]
    assert torch.equal(row.patches, expected)


def test_the_loss_depends_on_the_picture() -> None:
    problem = next(drawn_squares.problems(0, "train"))
    other = drawn_squares.SquaresProblem(problem.asked, problem.squares[::-1], problem.seed)
    model, lesson = random_vision_model(SQUARES, seed=0), drawn_squares_lesson(SQUARES, 0)
    here, there = (loss(model, lesson.encode([shown], [problem.chain()])) for shown in (problem, other))
    assert (here - there).abs() > 1e-4


def test_pictures_stay_with_their_rows_in_a_batch() -> None:
    model, lesson = random_vision_model(SQUARES, seed=0), drawn_squares_lesson(SQUARES, 0)
    drawn = list(islice(lesson.problems, 3))
    rows = lesson.encode(drawn, [problem.chain() for problem in drawn])
    together = loss(model, rows)
    torch.testing.assert_close(together, torch.stack([loss(model, [row]) for row in rows]).mean())
    assert exact_match_share(model, rows) == 0.0
