from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.messages.trajectory import FROM_NOTHING, FROM_PROMPT
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import RowLayout, Trie, branches, collate, turns_of
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SequenceGroup
from tests.trainer.episode_trajectories import episode, episodes, num_unique, rows

#   prompt 5 6 ── 0: [1] 2 3 ─┬─ 1: [4] 5          3: [7 8] 9, after nothing
#                             └─ 2: [] 6 7
TREE = episode([(-1, [1], [2, 3]), (0, [4], [5]), (0, [], [6, 7]), (-2, [7, 8], [9])])


def test_a_branch_is_all_that_was_read_up_to_the_last_token_that_was_written() -> None:
    found = list(branches(TREE))
    assert [branch.read.tolist() for branch in found] == [[5, 6, 1, 2, 3, 4], [5, 6, 1, 2, 3, 6], [7, 8]]
    assert [branch.root for branch in found] == [FROM_PROMPT, FROM_PROMPT, FROM_NOTHING]


def test_each_turn_begins_once_behind_what_it_read() -> None:
    assert [dict(branch.starts) for branch in branches(TREE)] == [{0: 3, 1: 6}, {2: 5}, {3: 2}]


def test_a_completion_is_one_turn_after_its_prompt() -> None:
    plain = TrainingTrajectory(
        7, np.array([5, 6], np.int32), np.array([1, 2], np.int32), np.zeros(2, np.float32), reward=0.0
    )
    (turn,) = turns_of(plain)
    assert (turn.parent, turn.num_context, turn.num_written) == (FROM_PROMPT, 0, 2)
    (branch,) = branches(plain)
    assert (branch.read.tolist(), dict(branch.starts)) == ([5, 6, 1], {0: 2})


def test_nothing_is_read_behind_the_last_token_that_was_written() -> None:
    ends_with_context = episode([(-1, [1], [2]), (0, [3, 4], []), (0, [8], [9])])
    assert [branch.read.tolist() for branch in branches(ends_with_context)] == [[5, 6, 1], [5, 6, 1, 2, 8]]


def test_a_branch_that_writes_nothing_new_is_left_out() -> None:
    ends_with_context = episode([(-1, [1], [2]), (0, [8], [9]), (0, [3, 4], [])])
    assert [branch.read.tolist() for branch in branches(ends_with_context)] == [[5, 6, 1, 2, 8]]


# ── test layout ───────────────────────────────────────────────────────────────────────────────
# Rows of episodes: what is in them, and that a model computes the same as for each turn alone.

CPU = torch.device("cpu")
SHARED = 1.05
"""Most tokens that are computed for each that has to be."""


def test_a_shared_turn_lies_in_the_row_once_and_each_written_token_is_predicted_once() -> None:
    batch = collate([episode([(-1, [1], [2, 3]), (0, [4], [7, 8]), (0, [9], [7])])], device=CPU)
    assert batch.input_ids.tolist() == [[5, 6, 1, 2, 3, 4, 7, 9]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 5]]
    assert batch.token_ids.tolist() == [2, 3, 7, 8, 7]
    assert batch.positions.tolist() == [2, 3, 5, 6, 7]
    assert batch.row.lengths == [6, 7]
    assert batch.lengths == [5]


def test_the_last_token_of_a_turn_predicts_the_next_turn_if_nothing_lies_between() -> None:
    batch = collate([episode([(-1, [], [2, 3]), (0, [], [4])])], device=CPU)
    assert batch.input_ids.tolist() == [[5, 6, 2, 3]]
    assert batch.positions.tolist() == [1, 2, 3]


def test_a_context_that_follows_nothing_begins_at_position_0_and_shares_what_the_prompt_begins_with() -> None:
    batch = collate([episode([(-1, [1], [2]), (-2, [5, 6, 1, 9], [3]), (-2, [8], [4])])], device=CPU)
    assert batch.input_ids.tolist() == [[5, 6, 1, 9, 8]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0]]
    assert batch.positions.tolist() == [2, 3, 4]


def test_a_branch_that_repeats_what_another_wrote_reads_it_there_and_does_not_train_it_again() -> None:
    batch = collate([episode([(-1, [1], [2, 3]), (-1, [1, 2, 3, 4], [7])])], device=CPU)
    assert batch.input_ids.tolist() == [[5, 6, 1, 2, 3, 4]]
    assert batch.token_ids.tolist() == [2, 3, 7]
    assert batch.positions.tolist() == [2, 3, 5]


def test_episodes_of_a_group_share_the_prompt_and_the_first_context() -> None:
    one, other = episode([(-1, [1, 1], [2, 3])]), episode([(-1, [1, 1], [4, 5])])
    assert collate([one, other], device=CPU).input_ids.tolist() == [[5, 6, 1, 1, 2, 4]]


def test_masks_follow_the_tokens_of_their_turns() -> None:
    one = episode([(-1, [1], [2]), (-2, [8], [3])])
    one = replace(one, mask_counts=np.array([1, 2], np.int32), mask_ids=np.array([2, 3, 9], np.int32))
    mask = collate([one], device=CPU).mask
    assert mask is not None
    assert (mask.counts.tolist(), mask.ids.tolist()) == ([1, 2], [2, 3, 9])


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_no_beginning_is_computed_twice(seed: int, vocab: int) -> None:
    trajectories = episodes(seed=seed, vocab=vocab)
    layout = RowLayout(None)
    for trajectory in trajectories:
        layout.add(trajectory)
    assert layout.width <= SHARED * num_unique(trajectories)
    assert np.unique(np.concatenate(layout.sequences)).tolist() == list(range(layout.width))


@given(st.integers(0, 2**32 - 1))
def test_each_token_is_predicted_behind_all_that_the_policy_read(seed: int) -> None:
    for trajectory in episodes(num_groups=1, seed=seed, vocab=3):
        layout = RowLayout(None)
        layout.add(trajectory)
        ids = np.concatenate(layout.ids)
        before = {
            int(path[end]): ids[path[: end + 1]].tolist() for path in layout.sequences for end in range(len(path))
        }
        found = [before[int(place)] for place in layout.predicting[0]]
        expected = [
            [*row.prompt_ids, *row.completion_ids[:end]]
            for row in rows(trajectory)
            for end in range(len(row.completion_ids))
        ]
        assert found == expected


def scored(
    policy: Policy, trajectories: list[TrainingTrajectory], weights: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs of all written tokens, and the gradient of their weighted sum."""
    logprobs = policy.score(collate(trajectories, device=CPU), temperature=1.0).logprobs
    policy.model.zero_grad()
    (logprobs * weights).sum().backward()
    gradients = {name: weight.grad for name, weight in policy.parameters().items()}
    return logprobs.detach(), {name: grad.clone() for name, grad in gradients.items() if grad is not None}


@pytest.mark.parametrize("seed", range(4))
def test_log_probs_and_gradient_are_those_of_each_turn_in_a_row_of_its_own(model_path, seed: int) -> None:
    policy, trajectories = Policy(model_path), episodes(seed=seed)
    alone = [row for one in trajectories for row in rows(one)]
    lengths = [len(row.completion_ids) for row in alone]
    weights = torch.linspace(0.5, 1.5, sum(lengths))
    logprobs, gradients = scored(policy, trajectories, weights)
    parts = [scored(policy, [row], own) for row, own in zip(alone, weights.split(lengths), strict=True)]

    assert torch.allclose(logprobs, torch.cat([part for part, _ in parts]), rtol=0, atol=2e-6)
    summed = {name: torch.stack([part[name] for _, part in parts]).sum(0) for name in gradients}
    scale = max(float(gradient.abs().max()) for gradient in summed.values())
    assert scale > 1.0
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, summed[name], rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_a_row_score_each_token_once(size: int) -> None:
    trajectories = episodes()
    whole = collate(trajectories, device=CPU)
    parts = [collate(trajectories, device=CPU, group=SequenceGroup(size, index)) for index in range(size)]
    places = torch.cat([part.places for part in parts])
    assert sorted(places.tolist()) == [*range(len(whole.token_ids))]
    of_row = [part.positions + part.row.group.own(part.num_packed).start for part in parts]
    assert torch.equal(torch.cat(of_row), whole.positions[places])


# ── test trie ─────────────────────────────────────────────────────────────────────────────────

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)


def symbols(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_equal_beginnings_have_the_same_places_and_new_symbols_the_next_ones() -> None:
    trie = Trie()
    found = [trie.insert((), symbols(*ids)) for ids in ([1, 2, 3, 4], [1, 2, 5], [1, 2, 3, 4, 6], [1, 2], [9])]
    assert [places.tolist() for places, _ in found] == [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2, 3, 5], [0, 1], [6]]
    assert [known for _, known in found] == [0, 2, 4, 2, 0]
    assert trie.size == 7


def test_sequences_with_other_roots_share_nothing() -> None:
    trie = Trie()
    assert trie.insert("picture", symbols(1, 2))[0].tolist() == [0, 1]
    assert trie.insert("other", symbols(1, 2))[0].tolist() == [2, 3]
    assert trie.insert("picture", symbols(1, 2))[1] == 2


def test_nothing_takes_no_place() -> None:
    places, known = Trie().insert((), symbols())
    assert (len(places), known) == (0, 0)


@given(SEQUENCES)
def test_each_beginning_has_one_place_however_sequences_branch(sequences: list[list[int]]) -> None:
    trie = Trie()
    place_of: dict[tuple[int, ...], int] = {}
    for sequence in sequences:
        beginnings = [tuple(sequence[: end + 1]) for end in range(len(sequence))]
        num_known = sum(beginning in place_of for beginning in beginnings)
        places, known = trie.insert((), symbols(*sequence))
        assert known == num_known
        for beginning, place in zip(beginnings, places.tolist(), strict=True):
            assert place_of.setdefault(beginning, place) == place
    assert sorted(place_of.values()) == list(range(trie.size))
