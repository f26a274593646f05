from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncrl.trainer.packing.batch import collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SequenceGroup

CPU = torch.device("cpu")


def trajectory(prompt: list[int], completion: list[int], logprobs: list[float]) -> TrainingTrajectory:
    arrays = np.array(prompt, np.int32), np.array(completion, np.int32), np.array(logprobs, np.float32)
    return TrainingTrajectory(7, *arrays, reward=1.0)


def test_trajectories_lie_end_to_end_and_states_before_completion_tokens_are_gathered() -> None:
    first, second = trajectory([5, 6], [7, 8, 9], [-1.0, -2.0, -3.0]), trajectory([4], [3, 2], [-0.5, -0.6])
    batch = collate([first, second], device=CPU)

    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 4, 3]], "nothing is to be predicted from last tokens"
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.positions.tolist() == [1, 2, 3, 4, 5]
    assert batch.token_ids.tolist() == [7, 8, 9, 3, 2]
    assert batch.row.lengths == [2, 4]
    assert batch.row.sequences.indices.tolist() == [4, 5, 0, 1, 2, 3]
    assert batch.lengths == [3, 2]


def test_a_prompt_of_several_is_read_once_and_predicts_the_first_token_of_each() -> None:
    completions = [1, 2, 3, 4], [7], [8, 9]
    batch = collate([trajectory([5, 6], tokens, [-1.0] * len(tokens)) for tokens in completions], device=CPU)

    assert batch.input_ids.tolist() == [[5, 6, 1, 2, 3, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 2]]
    assert batch.positions.tolist() == [1, 2, 3, 4, 1, 1, 5]
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 7, 8, 9]
    assert batch.row.lengths == [3, 5], "a sequence that another one continues is a part of it"
    assert batch.row.sequences.indices.tolist() == [0, 1, 5, 0, 1, 2, 3, 4]
    assert batch.lengths == [4, 1, 2]


def test_a_trajectory_without_tokens_is_not_read() -> None:
    batch = collate([trajectory([1, 2], [], []), trajectory([3], [4], [-1.0])], device=CPU)
    assert batch.input_ids.tolist() == [[3]]
    assert batch.positions.tolist() == [0]
    assert batch.lengths == [0, 1]


def test_no_trajectories_are_one_token_that_predicts_nothing() -> None:
    batch = collate([], device=CPU)
    assert batch.input_ids.shape == batch.position_ids.shape == (1, 1)
    assert batch.positions.shape == batch.token_ids.shape == (0,)
    assert batch.row.lengths == [1]
    assert batch.lengths == []


def routed(*first_experts: int) -> TrainingTrajectory:
    """Four tokens that are read, whose first experts these are."""
    experts = np.array([[[first, 4]] for first in first_experts], np.uint8)
    return replace(trajectory([5, 6], [7, 8, 9], [-1.0] * 3), experts=experts)


def test_experts_follow_their_tokens_and_tokens_with_other_experts_are_not_shared() -> None:
    batch = collate([routed(0, 2, 0, 1), routed(0, 2, 0, 1), routed(0, 2, 3, 1), routed(3, 2, 0, 1)], device=CPU)

    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 7, 8, 5, 6, 7, 8]]
    assert batch.routes is not None
    assert batch.routes[:, 0, 0].tolist() == [0, 2, 0, 1, 3, 1, 3, 2, 0, 1]
    assert batch.positions.tolist() == [1, 2, 3, 1, 2, 3, 1, 4, 5, 7, 8, 9]
    assert collate([trajectory([5, 6], [7], [-1.0])], device=CPU).routes is None


def test_a_rank_that_shares_a_row_has_the_experts_of_its_part_and_the_filling_takes_the_first() -> None:
    parts = [collate([routed(3, 2, 0, 1)], device=CPU, group=SequenceGroup(3, index)).routes for index in range(3)]
    assert [part.tolist() for part in parts if part is not None] == [
        [[[3, 4]], [[2, 4]]],
        [[[0, 4]], [[1, 4]]],
        [[[0, 1]], [[0, 1]]],
    ]


def masked() -> list[TrainingTrajectory]:
    """Three tokens with masks of 2, 1 and 3 ids, and two tokens without."""
    counts, ids = np.array([2, 1, 3], np.int32), np.array([7, 9, 8, 0, 3, 9], np.int32)
    first = trajectory([5, 6], [7, 8, 9], [-1.0] * 3)
    return [replace(first, mask_counts=counts, mask_ids=ids), trajectory([4], [3, 2], [-0.5] * 2)]


def test_masks_follow_their_tokens_and_a_trajectory_without_any_leaves_the_vocabulary() -> None:
    mask = collate(masked(), device=CPU).mask

    assert mask is not None
    assert (mask.counts.tolist(), mask.ids.tolist()) == ([2, 1, 3, 0, 0], [7, 9, 8, 0, 3, 9])
    assert mask.ends == [0, 2, 3, 6, 6, 6]
    assert collate(masked()[1:], device=CPU).mask is None


def test_a_rank_that_shares_a_row_has_the_masks_of_its_tokens() -> None:
    parts = [collate(masked(), device=CPU, group=SequenceGroup(2, index)) for index in range(2)]

    assert [part.token_ids.tolist() for part in parts] == [[7, 8], [9, 3, 2]]
    found = [(part.mask.counts.tolist(), part.mask.ids.tolist(), part.mask.ends) for part in parts if part.mask]
    assert found == [([2, 1], [7, 9, 8], [0, 2, 3]), ([3, 0, 0], [0, 3, 9], [0, 3, 3, 3])]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_share_a_row_have_equal_parts_of_it_and_score_each_token_once(size: int) -> None:
    trajectories = [trajectory([5, 6], tokens, [-1.0] * len(tokens)) for tokens in ([1, 2, 3, 4], [7], [8, 9])]
    whole = collate(trajectories, device=CPU)
    parts = [collate(trajectories, device=CPU, group=SequenceGroup(size, index)) for index in range(size)]

    width = whole.input_ids.numel()
    for name in ("input_ids", "position_ids"):
        joined = torch.cat([getattr(part, name) for part in parts], 1)[0].tolist()
        assert joined[:width] == getattr(whole, name)[0].tolist()
        assert joined[width:] == [*(range(len(joined) - width) if name == "position_ids" else [0] * (-width % size))]
    assert len({part.input_ids.shape for part in parts}) == 1
    assert {part.num_packed for part in parts} == {width + -width % size}

    places = torch.cat([part.places for part in parts])
    assert sorted(places.tolist()) == [*range(len(whole.token_ids))]
    assert torch.equal(torch.cat([part.token_ids for part in parts]), whole.token_ids[places])
    of_row = [part.positions + part.row.group.own(part.num_packed).start for part in parts]
    assert torch.equal(torch.cat(of_row), whole.positions[places])
    assert {tuple(part.lengths) for part in parts} == {(4, 1, 2)}


def test_what_fills_a_row_up_is_a_sequence_of_its_own() -> None:
    batch = collate([trajectory([1, 2], [3, 4, 5], [-1.0] * 3)], device=CPU, group=SequenceGroup(3, 2))
    assert batch.input_ids.tolist() == [[0, 0]]
    assert batch.position_ids.tolist() == [[0, 1]]
    assert batch.row.sequences.indices.tolist() == [4, 5, 0, 1, 2, 3]
    assert batch.positions.shape == batch.places.shape == (0,)


def test_ranks_that_share_a_row_of_nothing_have_one_token_each() -> None:
    batch = collate([], device=CPU, group=SequenceGroup(4, 3))
    assert batch.input_ids.shape == (1, 1)
    assert (batch.row.lengths, batch.lengths) == ([4], [])
