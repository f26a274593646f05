"""A trajectory has the pictures of its prompt, and a possible grid for each."""

import pytest
from msgspec.structs import replace

from asyncrl.checks.images import grid_problem_of, image_problem_of
from asyncrl.messages.trajectory import Image, Span, Trajectory, Unit

RED, BLUE = (Image(bytes([number]) * 32, 8, 8, 100) for number in (1, 2))
SOUND = Trajectory(
    unit=Unit(0, 0),
    prompt_ids=memoryview(bytes(8 * 4)),
    completion_ids=memoryview(bytes(4)),
    behavior_logprobs=memoryview(bytes(4)),
    spans=[Span(0, 0, 1)],
    finish_reason="stop",
    text="",
    images=[RED, BLUE],
    grids=[(1, 4, 4), (1, 2, 2)],
)


def test_the_prompts_pictures_in_order_are_sound() -> None:
    assert image_problem_of(SOUND, [RED, BLUE]) == ""
    assert image_problem_of(replace(SOUND, images=[], grids=[]), []) == ""


@pytest.mark.parametrize("images", [[BLUE, RED], [RED], []])
def test_other_pictures_than_the_prompts_are_named(images: list[Image]) -> None:
    problem = image_problem_of(SOUND, images)
    assert problem.startswith("other pictures than the prompt's: 010101010101, 020202020202, expected ")


@pytest.mark.parametrize(
    "grids", [[], [(1, 4, 4)], [(1, 4, 4), (1, 0, 2)], [(1, 4, 4), (-1, -4, 4)], [(1, 4, 4), (1, 400, 400)]]
)
def test_each_picture_has_one_grid_that_fits_the_prompt(grids: list[tuple[int, int, int]]) -> None:
    assert grid_problem_of(replace(SOUND, grids=grids)).startswith("impossible grids of pictures: ")


def test_the_version_of_a_processor_is_not_a_novel() -> None:
    assert grid_problem_of(replace(SOUND, processor="pillow 12")) == ""
    assert grid_problem_of(replace(SOUND, processor="x" * 501)) == (
        "no version of a processor: 501 characters, expected at most 500"
    )
