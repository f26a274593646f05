"""A trajectory has the pictures of its prompt and of its contexts, and a possible grid for each."""

from hashlib import sha256
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.messages.sound import (
    grid_problem_of,
    image_problem_of,
    num_branches,
    problem_of,
    summary_of,
    summary_problem_of,
    turn_problem_of,
)
from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Image, Span, Trajectory, TrajectoryLimits, Turn, Unit
from tests.messages.damage import as_bytes, through_the_wire
from tests.messages.episode_damage import EPISODE_LIMITS, OF_EPISODES, sound_episode
from tests.messages.test_trajectory import small

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


FILE = b"a file"
SHOWN = Image(sha256(FILE).digest(), 8, 8, len(FILE))


def shown_after(prompt: list[Image], *, parent: int = FROM_PROMPT, **changes: Any) -> Trajectory:
    """An episode of a turn, after a context with the first picture of a prompt again, and another one."""
    images = [*(prompt if parent == FROM_PROMPT else []), RED, SHOWN]
    made = replace(
        SOUND,
        turns=[Turn(parent, 2, 1, num_images=2)],
        context_ids=as_bytes("i", [1, 1]),
        images=images,
        grids=[(1, 1, 1)] * len(images),
        image_files=[memoryview(FILE)],
    )
    return replace(made, **changes)


def test_the_files_of_pictures_that_only_contexts_have_are_in_the_trajectory() -> None:
    assert image_problem_of(shown_after([RED, BLUE]), [RED, BLUE]) == ""
    assert image_problem_of(shown_after([RED]), [RED, BLUE]).startswith("other pictures than the prompt's: ")


def test_an_episode_of_which_nothing_follows_the_prompt_has_none_of_its_pictures_apart() -> None:
    assert image_problem_of(shown_after([RED], parent=FROM_NOTHING), [RED]).startswith("files that are not those of ")
    whole = shown_after([RED], parent=FROM_NOTHING, images=[SHOWN, SHOWN])
    assert image_problem_of(whole, [RED]) == ""


@pytest.mark.parametrize(
    ("files", "finish_reason", "problem"),
    [
        ([], "stop", "0, expected one for each of 1 pictures of its contexts"),
        ([FILE, FILE], "stop", "2, expected one for each of 1 pictures"),
        ([FILE, b"of the answer to come"], "unfinished", ""),
        ([b"another"], "stop", "one of 7 bytes, expected the picture"),
        ([b"A file"], "stop", "one of 6 bytes, expected the picture"),
    ],
)
def test_files_that_are_not_those_of_the_pictures_are_named(
    files: list[bytes], finish_reason: Any, problem: str
) -> None:
    found = grid_problem_of(
        shown_after([RED, BLUE], image_files=[memoryview(file) for file in files], finish_reason=finish_reason)
    )
    assert found.startswith(f"files that are not those of its pictures: {problem}" if problem else "")
    assert bool(found) == bool(problem)


@pytest.mark.parametrize("num_images", [-1, 3])
def test_a_turn_has_no_more_pictures_than_tokens(num_images: int) -> None:
    damaged = shown_after([RED, BLUE], turns=[Turn(FROM_PROMPT, 2, 1, num_images=num_images)])
    assert f"turn 0 has {num_images} pictures, expected 0 .. 2" in turn_problem_of(damaged, TrajectoryLimits())


def test_the_version_of_a_processor_is_not_a_novel() -> None:
    assert grid_problem_of(replace(SOUND, processor="pillow 12")) == ""
    assert grid_problem_of(replace(SOUND, processor="x" * 501)) == (
        "no version of a processor: 501 characters, expected at most 500"
    )


# ── test turns ────────────────────────────────────────────────────────────────────────────────
# Episodes of any shape are sound, and every damage of their turns is named.

NUM_EACH, NUM_SOUND = 100, 1_000


def test_no_sound_episode_has_a_problem() -> None:
    dice = Random(2)
    shapes = set()
    for _ in range(NUM_SOUND):
        made = sound_episode(dice)
        assert problem_of(made, made.unit, summary_of(made), EPISODE_LIMITS) == ""
        assert summary_problem_of(summary_of(made), EPISODE_LIMITS) == ""
        shapes.add((len(made.turns), num_branches(made.turns)))
    assert {(1, 1), (2, 1), (2, 2), (12, 5)} <= shapes


def test_an_unfinished_episode_may_have_a_snapshot_and_no_turn_yet() -> None:
    unfinished = replace(sound_episode(Random(3)), finish_reason="unfinished", snapshot=memoryview(b"state"))
    assert problem_of(unfinished, unfinished.unit, summary_of(unfinished), EPISODE_LIMITS) == ""
    begun = small(finish_reason="unfinished")
    assert turn_problem_of(begun, EPISODE_LIMITS) == ""


@pytest.mark.parametrize("name", OF_EPISODES)
def test_every_damage_of_an_episode_is_named_by_its_cause(name: str) -> None:
    cause, damage = OF_EPISODES[name]
    dice = Random(name)
    for number in range(NUM_EACH):
        whole = sound_episode(dice)
        damaged, summary = damage((whole, summary_of(whole)), dice)
        problem = problem_of(through_the_wire(damaged), whole.unit, summary, EPISODE_LIMITS)
        assert problem.startswith(f"{cause}: "), f"episode {number}: {problem or 'no problem was found'}"
        assert "expected" in problem


def episode(*turns: Turn, context: int, **changes: object) -> Trajectory:
    """Three written tokens, as `small`."""
    return small(turns=list(turns), context_ids=as_bytes("i", [8] * context), **changes)


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        (
            episode(Turn(FROM_PROMPT, 0, 2), Turn(1, 1, 1), context=1),
            "turn 1 has parent 1, expected -2 .. 0",
        ),
        (
            episode(Turn(FROM_NOTHING, 0, 3), context=0),
            "turn 0 has 0 tokens of context and 3 written, expected 1 and 1 or more",
        ),
        (
            episode(Turn(FROM_PROMPT, 0, 2), Turn(0, 1, 2), context=1),
            "1 tokens of context and 4 written, expected 1 of context and 3 written",
        ),
        (
            episode(Turn(FROM_PROMPT, 0, 2), Turn(0, 0, 1), Turn(1, 0, 1), Turn(2, 0, 1), context=0),
            "4 turns, expected at most 3 (environment.max_turns)",
        ),
        (
            episode(Turn(FROM_PROMPT, 0, 3, reward=float("nan")), context=0),
            "turn 0 has reward nan, expected a finite number of at most 1e+06 either way",
        ),
        (
            episode(Turn(FROM_PROMPT, 0, 3), context=0, snapshot=memoryview(b"12345")),
            "a snapshot of 5 bytes, expected none of a finished episode",
        ),
        (episode(context=0), "none, expected 1 .. 3 (environment.max_turns)"),
    ],
)
def test_a_problem_of_turns_is_one_sentence_with_what_was_found_and_expected(damaged: Trajectory, problem: str) -> None:
    limits = TrajectoryLimits(max_turns=3)
    assert turn_problem_of(damaged, limits) == f"turns that do not fit the tokens: {problem}"


def test_without_an_environment_no_trajectory_has_turns() -> None:
    one = episode(Turn(FROM_PROMPT, 0, 3), context=0)
    assert turn_problem_of(one, TrajectoryLimits()) == ""
    assert "1 turns, expected at most 0" in turn_problem_of(one, TrajectoryLimits(max_turns=0))


def test_a_branch_ends_with_a_turn_that_no_other_follows() -> None:
    tree = [Turn(FROM_PROMPT, 0, 1), Turn(0, 1, 1), Turn(0, 1, 1), Turn(FROM_NOTHING, 1, 1)]
    assert num_branches(tree) == 3
    assert num_branches([]) == 1


def test_the_summary_of_an_episode_counts_its_turns() -> None:
    turns = (Turn(FROM_PROMPT, 0, 1, call_s=0.5), Turn(0, 2, 1, call_s=0.25), Turn(0, 1, 1))
    summary = summary_of(episode(*turns, context=3))
    assert (summary.num_turns, summary.num_branches, summary.context_tokens) == (3, 2, 3)
    assert summary.environment_s == 0.75


@pytest.mark.parametrize(
    "changes",
    [
        {"num_turns": 0},
        {"num_turns": 4},
        {"num_branches": 0},
        {"num_branches": 3},
        {"context_tokens": -1},
        {"context_tokens": 6},
        {"environment_s": -1.0},
        {"environment_s": float("nan")},
        {"environment_s": float("inf")},
    ],
)
def test_a_summary_that_no_episode_can_have_is_refused_without_its_payload(changes: dict[str, float]) -> None:
    limits = TrajectoryLimits(10, 8, 8, 4, max_turns=3)
    summary = summary_of(episode(Turn(FROM_PROMPT, 0, 2), Turn(0, 5, 1), context=5))
    assert summary_problem_of(summary, limits) == summary_problem_of(summary, TrajectoryLimits()) == ""
    assert summary_problem_of(replace(summary, **changes), limits).startswith("impossible summary: ")
    assert summary_problem_of(summary, replace(limits, max_turns=0)).startswith("impossible summary: ")
