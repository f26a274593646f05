from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from asyncrl.messages.trajectory import FROM_PROMPT, Span
from asyncrl.trainer.algorithm.mini_batch import as_context, in_untrained_turns, older_than
from asyncrl.trainer.packing.step import TrainingTrajectory
from tests.trainer.episode_trajectories import episode, episodes, rows

TREE = episode([(-1, [1], [2, 3, 4]), (0, [5], [6, 7]), (-2, [8], [9])])


def mask(*bits: int) -> np.ndarray:
    return np.array(bits, np.bool_)


def shape(trajectory: TrainingTrajectory) -> list[tuple[int, int, int]]:
    return [(turn.parent, turn.num_context, turn.num_written) for turn in trajectory.turns]


def test_nothing_changes_if_all_is_trained() -> None:
    assert as_context(TREE, mask(0, 0, 0, 0, 0, 0)) is TREE


def test_a_turn_is_cut_where_untrained_tokens_follow_trained_ones() -> None:
    cut = as_context(TREE, mask(1, 0, 1, 1, 0, 0))
    assert shape(cut) == [(-1, 2, 1), (0, 1, 0), (1, 2, 1), (-2, 1, 1)]
    assert cut.context_ids.tolist() == [1, 2, 4, 5, 6, 8]
    assert cut.completion_ids.tolist() == [3, 7, 9]


def test_a_turn_may_be_all_context_and_its_reward_stays_at_its_end() -> None:
    turns = [structs.replace(turn, reward=0.5 + place) for place, turn in enumerate(TREE.turns)]
    rewarded = replace(TREE, turns=turns)
    cut = as_context(rewarded, mask(0, 1, 0, 1, 1, 0))
    assert shape(cut) == [(-1, 1, 1), (0, 1, 1), (1, 3, 0), (-2, 1, 1)]
    assert [turn.reward for turn in cut.turns] == [0.0, 0.5, 1.5, 2.5]


def test_a_completion_gets_turns() -> None:
    plain = replace(TREE, turns=(), context_ids=np.zeros(0, np.int32))
    cut = as_context(plain, mask(1, 1, 0, 0, 1, 0))
    assert shape(cut) == [(FROM_PROMPT, 2, 2), (0, 1, 1)]
    assert (cut.context_ids.tolist(), cut.completion_ids.tolist()) == ([2, 3, 7], [4, 6, 9])


def test_log_probs_masks_and_versions_are_those_of_the_tokens_that_are_left() -> None:
    one = replace(
        TREE,
        behavior_logprobs=-np.arange(6, dtype=np.float32),
        spans=[Span(3, 0, 2), Span(4, 2, 5), Span(5, 5, 6)],
        mask_counts=np.array([1, 2, 1, 1, 1, 3], np.int32),
        mask_ids=np.arange(9, dtype=np.int32),
    )
    cut = as_context(one, mask(1, 1, 0, 1, 0, 0))
    assert cut.behavior_logprobs.tolist() == [-2, -4, -5]
    assert cut.spans == [Span(3, 0, 0), Span(4, 0, 2), Span(5, 2, 3)], "it did not begin with version 4"
    assert (cut.mask_counts.tolist(), cut.mask_ids.tolist()) == ([1, 1, 3], [3, 5, 6, 7, 8])


def test_old_tokens_are_those_that_an_older_version_wrote() -> None:
    one = replace(TREE, spans=[Span(3, 0, 2), Span(5, 2, 3), Span(4, 3, 6)])
    assert older_than(one, 4).tolist() == [True, True, False, False, False, False]
    assert older_than(one, 5).tolist() == [True, True, False, True, True, True]
    assert not older_than(TREE, 9).any(), "versions are unknown"


def test_tokens_of_untrained_turns_are_marked() -> None:
    turns = [structs.replace(turn, is_trained=place != 1) for place, turn in enumerate(TREE.turns)]
    assert in_untrained_turns(replace(TREE, turns=turns)).tolist() == [False, False, False, True, True, False]


@given(st.integers(0, 2**32 - 1), st.data())
def test_what_is_left_was_read_behind_the_same_tokens(seed: int, data: st.DataObject) -> None:
    (one,) = episodes(num_groups=1, group_size=1, seed=seed)
    untrained = np.array(data.draw(st.lists(st.booleans(), min_size=(n := len(one.completion_ids)), max_size=n)))
    expected = [read for read, is_left_out in zip(readings(one), untrained, strict=True) if not is_left_out]
    assert readings(as_context(one, untrained)) == expected


def readings(one: TrainingTrajectory) -> Sequence[list[int]]:
    """For each written token, all that was read before, and itself."""
    return [
        [*row.prompt_ids.tolist(), *row.completion_ids[: end + 1].tolist()]
        for row in rows(one)
        for end in range(len(row.completion_ids))
    ]
