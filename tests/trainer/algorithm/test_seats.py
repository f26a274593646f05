"""An episode of several seats is trained as a trajectory for each."""

from dataclasses import replace

import numpy as np
from msgspec import structs

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT, Span
from asyncrl.trainer.algorithm.estimates import token_rewards
from asyncrl.trainer.algorithm.mini_batch import by_seat, of_seat
from asyncrl.trainer.packing.step import TrainingTrajectory, local_step
from asyncrl.trainer.ranks.ranks import SingleRank
from tests.trainer.episode_trajectories import episode

TURNS = [(-1, [1], [2, 3]), (-2, [4, 5], [6]), (0, [7], [8]), (1, [], [9, 10]), (-2, [11], [12])]
SEATS = [0, 1, 0, 1, 1]
REWARDS = [0.5, -1.0, 0.25, -0.5, 2.0]


def game(group_id: int = 7, index: int = 0, shift: float = 0.0) -> TrainingTrajectory:
    whole = episode(TURNS)
    turns = [
        structs.replace(turn, seat=seat, reward=reward + shift)
        for turn, seat, reward in zip(whole.turns, SEATS, REWARDS, strict=True)
    ]
    return replace(
        whole,
        group_id=group_id,
        index=index,
        turns=turns,
        behavior_logprobs=-np.arange(7, dtype=np.float32),
        spans=[Span(3, 0, 3), Span(4, 3, 7)],
        mask_counts=np.array([1, 2, 1, 1, 1, 3, 1], np.int32),
        mask_ids=np.arange(10, dtype=np.int32),
    )


def test_a_seat_keeps_its_own_turns_contexts_and_tokens() -> None:
    first, second = of_seat(game(), 0), of_seat(game(), 1)
    assert [turn.parent for turn in first.turns] == [FROM_PROMPT, 0]
    assert [turn.parent for turn in second.turns] == [FROM_NOTHING, 0, FROM_NOTHING]
    assert (first.context_ids.tolist(), first.completion_ids.tolist()) == ([1, 7], [2, 3, 8])
    assert (second.context_ids.tolist(), second.completion_ids.tolist()) == ([4, 5, 11], [6, 9, 10, 12])


def test_log_probs_masks_and_versions_are_those_of_its_tokens() -> None:
    second = of_seat(game(), 1)
    assert second.behavior_logprobs.tolist() == [-2, -4, -5, -6]
    assert second.mask_counts.tolist() == [1, 1, 3, 1]
    assert second.mask_ids.tolist() == [3, 5, 6, 7, 8, 9]
    assert second.spans == [Span(3, 0, 1), Span(4, 1, 4)]


def test_the_rewards_of_a_seat_lie_at_the_ends_of_its_turns_and_are_its_own() -> None:
    first, second = of_seat(game(), 0), of_seat(game(), 1)
    assert (first.reward, second.reward) == (0.75, 0.5)
    assert token_rewards(first).tolist() == [0, 0.5, 0.25]
    assert token_rewards(second).tolist() == [-1, 0, -0.5, 2]


def test_a_step_has_a_trajectory_for_each_seat_that_spoke() -> None:
    silent = replace(game(index=1), turns=[structs.replace(turn, seat=0) for turn in game().turns])
    step = by_seat(local_step([game(), silent, game(group_id=8)]), 2, SingleRank())
    outcomes = step.outcomes
    assert [(one.group_id, one.seat, one.length, one.reward) for one in outcomes] == [
        (7, 0, 3, 0.75), (7, 1, 4, 0.5), (7, 0, 7, 1.25), (8, 0, 3, 0.75), (8, 1, 4, 0.5),
    ]  # fmt: skip
    assert [info.index for info in step.infos] == [0, 1, 2, 0, 1]
    assert [info.context_length for info in step.infos] == [2, 3, 5, 2, 3]
    assert [len(step.trajectories[place].completion_ids) for place in range(5)] == [3, 4, 7, 3, 4]
    assert step.owners == [0] * 5
