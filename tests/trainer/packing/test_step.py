from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.algo.outcomes import Outcome
from asyncrl.errors import AsyncrlError, ConfigError
from asyncrl.messages.trajectory import Turn
from asyncrl.trainer.packing.step import (
    TrainingStep,
    TrainingTrajectory,
    TrajectoryInfo,
    TrajectorySize,
    all_gather_per_token,
    assign_ranks,
    first_sharing,
    local_step,
    micro_batches,
    num_tokens,
    rank_micro_batches,
)
from asyncrl.trainer.ranks.ranks import SequenceGroup, SingleRank
from tests.trainer.episode_trajectories import episode


def step(*group_ids: int) -> TrainingStep:
    infos = [TrajectoryInfo(i, 2, Outcome(group_id=group, length=3, reward=0.0)) for i, group in enumerate(group_ids)]
    return TrainingStep(infos, {}, [0] * len(infos))


def test_mini_batches_are_whole_groups_as_equal_as_can_be() -> None:
    five = step(7, 7, 3, 3, 9, 9, 1, 1, 4)
    assert five.mini_batches(1) == [list(range(9))]
    assert five.mini_batches(2) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert five.mini_batches(99) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]], "no more than there are groups"


def test_scattered_groups_are_refused():
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        step(1, 2, 1)


def test_a_step_of_no_samples_is_refused():
    with pytest.raises(AsyncrlError, match="expected whole groups"):
        local_step([])


def test_a_step_without_some_groups_keeps_the_tokens_and_ranks_of_the_others():
    ids = np.arange(4, dtype=np.int32)
    tokens = {place: TrainingTrajectory(place, ids[:1], ids, np.zeros(4, np.float32), 0.5) for place in (0, 2, 4)}
    whole = replace(step(7, 7, 3, 3, 9, 9), trajectories=tokens, owners=[0, 1, 0, 1, 0, 1])

    rest = whole.without([3])

    assert [outcome.group_id for outcome in rest.outcomes] == [7, 7, 9, 9]
    assert {place: one.group_id for place, one in rest.trajectories.items()} == {0: 0, 2: 4}
    assert rest.owners == [0, 1, 0, 1]
    assert whole.without([]) is whole
    assert whole.without([7, 3, 9]).infos == []


class Fourth(SingleRank):
    """The last of four ranks, of which two each share a row."""

    rank, size, sequence = 3, 4, SequenceGroup(2, 1)


def test_ranks_that_share_a_row_have_the_same_micro_batches_with_the_tokens_of_both() -> None:
    whole = replace(step(7, 7, 3, 3), owners=[2, 2, 0, 2])  # each has 2 + 3 tokens
    assert whole.micro_batches(range(4), Fourth(), 5) == [[0, 1], [3]]
    assert whole.micro_batches(range(4), Fourth(), 3) == [[0], [1], [3]]


def test_a_step_of_samples_has_all_of_their_tokens() -> None:
    ids = np.arange(4, dtype=np.int32)
    trajectory = TrainingTrajectory(5, ids[:1], ids, np.zeros(4, np.float32), 0.5, index=2, metrics={"form": 0.1})
    made = local_step([trajectory])

    assert (made.infos[0].index, made.infos[0].size) == (2, TrajectorySize(5, prompt=1, completion=4))
    assert (made.outcomes[0].group_id, made.outcomes[0].reward, made.outcomes[0].metrics) == (5, 0.5, {"form": 0.1})
    assert made.trajectories == {0: trajectory}
    assert made.owners == [0]


# ── test trajectory ───────────────────────────────────────────────────────────────────────────


def trajectory(prompt: list[int], completion: list[int], logprobs: list[float]) -> TrainingTrajectory:
    arrays = np.array(prompt, np.int32), np.array(completion, np.int32), np.array(logprobs, np.float32)
    return TrainingTrajectory(7, *arrays, reward=1.0)


@pytest.mark.parametrize(
    ("prompt", "completion", "logprobs"),
    [
        pytest.param([], [1], [-1.0], id="nothing predicts the first token"),
        pytest.param([1], [1, 2], [-1.0], id="a token without a log-prob"),
    ],
)
def test_a_trajectory_that_does_not_hold_together_is_refused(prompt, completion, logprobs):
    with pytest.raises(AsyncrlError, match="group 7 is inconsistent"):
        trajectory(prompt, completion, logprobs)


def test_masks_or_experts_of_other_tokens_are_refused() -> None:
    whole = trajectory([5, 6], [7, 8, 9], [-1.0] * 3)
    with pytest.raises(
        AsyncrlError, match=r"group 7 has 2 sampling masks of 3 ids for 3 completion tokens, but 3 mask"
    ):
        replace(whole, mask_counts=np.array([1, 2], np.int32), mask_ids=np.array([7, 8, 9], np.int32))
    with pytest.raises(AsyncrlError, match=r"group 7 has experts of 5 tokens, expected those of all 4 but the last"):
        replace(whole, experts=np.zeros((5, 1, 2), np.uint8))


def test_turns_of_other_tokens_are_refused() -> None:
    whole = episode([(-1, [1], [2, 3]), (0, [4], [5])])
    with pytest.raises(
        AsyncrlError, match=r"group 7 has turns of 2 tokens of context and 2 written, but 2 and 3 tokens \(expected"
    ):
        replace(whole, turns=[Turn(-1, 1, 1), Turn(0, 1, 1)])
    with pytest.raises(AsyncrlError, match="0 tokens of context and 0 written, but 2 and 0 tokens"):
        replace(whole, turns=[])


# ── assignment ──────────────────────────────────────────────────────────────────────────────────
# Every trajectory is assigned to one rank, loads are balanced, and all ranks run equally many micro-batches.


SIZES = st.lists(st.builds(TrajectorySize, st.integers(0, 6), st.just(7), st.integers(0, 90)), max_size=40)
RANKS = st.integers(1, 5)


def sizes(*lengths: int) -> list[TrajectorySize]:
    """Sizes of trajectories of different groups."""
    return [TrajectorySize(place, 1, length - 1) for place, length in enumerate(lengths)]


def loads(given: list[TrajectorySize], owners: list[int], ranks: int) -> list[int]:
    return [num_tokens(size for size, by in zip(given, owners, strict=True) if by == rank) for rank in range(ranks)]


def test_the_longest_go_first_to_the_least_loaded_rank() -> None:
    assert assign_ranks(sizes(5, 9, 1, 7, 2), 2) == [1, 0, 0, 1, 0]  # 9 | 7, then 5 to the second, 2 and 1 to the first


def test_groups_stay_together_where_ranks_are_not_the_worse_for_it() -> None:
    groups = [TrajectorySize(group, 10, length) for group in range(4) for length in (3, 5)]
    assert assign_ranks(groups, 2) == [0, 0, 1, 1, 0, 0, 1, 1]
    assert max(loads(groups, assign_ranks(groups, 2), 2)) == 2 * (10 + 3 + 5)


def test_a_group_is_parted_before_a_rank_has_nothing_to_do() -> None:
    group = [TrajectorySize(0, 2, 50), TrajectorySize(0, 2, 40), TrajectorySize(0, 2, 10)]
    assert assign_ranks(group, 2) == [0, 1, 1]


@given(SIZES, RANKS)
def test_no_rank_has_more_than_its_share_and_one_trajectory(given, ranks):
    alone = [size.total for size in given]
    most = max(loads(given, assign_ranks(given, ranks), ranks))
    assert most <= sum(alone) / ranks + max(alone, default=0)


@given(SIZES, RANKS, st.data())
def test_all_ranks_together_pass_every_trajectory_once_in_equally_many_passes(given, ranks, data):
    owners = assign_ranks(given, ranks)
    places = data.draw(st.lists(st.sampled_from(range(len(given))), unique=True)) if given else []
    made = [
        rank_micro_batches(places, given, owners, rank=rank, num_ranks=ranks, max_tokens=100) for rank in range(ranks)
    ]

    assert len({len(one) for one in made}) == 1
    assert sorted(place for one in made for batch in one for place in batch) == sorted(places)
    for rank, one in enumerate(made):
        assert all(owners[place] == rank for batch in one for place in batch)
        assert all(num_tokens(given[place] for place in batch) <= 100 for batch in one)


@given(SIZES, RANKS)
def test_ranks_that_share_their_rows_count_as_one_by_the_name_of_the_first(given, ranks):
    assert assign_ranks(given, 4 * ranks, sequence_parallel=4) == [4 * owner for owner in assign_ranks(given, ranks)]
    assert [first_sharing(rank, 4) for rank in (0, 3, 4, 7)] == [0, 0, 4, 4]


def test_unassigned_trajectories_are_in_no_micro_batch() -> None:
    assert rank_micro_batches([0, 1], sizes(3, 4), [-1, 0], rank=0, num_ranks=1, max_tokens=10) == [[1]]


# ── test micro batches ────────────────────────────────────────────────────────────────────────

SIZES_MICRO_BATCHES = st.lists(
    st.builds(TrajectorySize, st.integers(0, 9), st.just(10), st.integers(0, 40)), max_size=60
)
BUDGETS = st.integers(50, 400)


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_every_trajectory_goes_once_into_a_micro_batch_within_the_budget(sizes, max_tokens):
    batches = micro_batches(sizes, max_tokens)

    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    assert all(num_tokens(sizes[index] for index in batch) <= max_tokens for batch in batches)


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_none_is_closed_while_the_next_trajectory_fits(sizes, max_tokens):
    for batch, following in pairwise(micro_batches(sizes, max_tokens)):
        assert num_tokens(sizes[index] for index in (*batch, following[0])) > max_tokens


@given(SIZES_MICRO_BATCHES, BUDGETS)
def test_a_group_is_begun_once_and_gone_on_with_until_it_is_done(sizes, max_tokens):
    order = [sizes[index].group_id for batch in micro_batches(sizes, max_tokens) for index in batch]
    assert order == sorted(order, key=[size.group_id for size in sizes].index)


def test_a_prompt_counts_once_in_each_micro_batch() -> None:
    a, b = [TrajectorySize(0, 5, 4), TrajectorySize(0, 5, 3)], [TrajectorySize(1, 6, 2), TrajectorySize(1, 6, 1)]
    assert num_tokens(a + b) == 5 + 4 + 3 + 6 + 2 + 1
    assert micro_batches(a + b, 21) == [[0, 1, 2, 3]]
    assert micro_batches(a + b, 20) == [[0, 1, 2], [3]]
    assert micro_batches(a + b, 11) == [[0], [1], [2, 3]]


def test_a_trajectory_over_the_budget_is_refused_with_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"trajectory 1 has 9 tokens.*at least 9"):
        micro_batches([TrajectorySize(0, 1, 2), TrajectorySize(1, 4, 5)], 8)


def test_nothing_needs_no_micro_batch() -> None:
    assert micro_batches([], 8) == []


# ── per token ───────────────────────────────────────────────────────────────────────────────────


LENGTHS, OWNERS = [2, 0, 3, 1], [1, 0, 0, 1]
VALUES = {
    "logprobs": [np.array(part, np.float32) for part in ([0.1, 0.2], [], [0.3, 0.4, 0.5], [0.6])],
    "values": [np.array(part, np.float32) for part in ([1.0, 2.0], [], [3.0, 4.0, 5.0], [6.0])],
}


class Both(SingleRank):
    """Two ranks, asked one after the other: the second time, both have sent what they know."""

    size = 2

    def __init__(self) -> None:
        super().__init__()
        self.rank = 0
        self.sent = [b"", b""]

    def all_gather(self, sent: bytes) -> list[bytes]:
        self.sent[self.rank] = sent
        return self.sent


def of_rank(rank: int) -> dict[str, dict[int, np.ndarray]]:
    return {name: {i: parts[i] for i in range(4) if OWNERS[i] == rank} for name, parts in VALUES.items()}


def test_every_rank_gets_the_numbers_of_all_ranks_in_the_order_of_the_step() -> None:
    ranks = Both()
    ranks.sent[1] = b"".join(VALUES[name][i].tobytes() for name in sorted(VALUES) for i in (0, 3))
    found = all_gather_per_token(of_rank(0), lengths=LENGTHS, owners=OWNERS, ranks=ranks)

    for name, parts in VALUES.items():
        assert [part.tolist() for part in found[name]] == [part.astype(np.float64).tolist() for part in parts]


def test_a_single_rank_gets_its_own_numbers() -> None:
    own = {name: dict(enumerate(parts)) for name, parts in VALUES.items()}
    found = all_gather_per_token(own, lengths=LENGTHS, owners=[0] * 4, ranks=SingleRank())
    assert [part.dtype for part in found["values"]] == [np.float64] * 4
    assert found["values"][2].tolist() == [3.0, 4.0, 5.0]
