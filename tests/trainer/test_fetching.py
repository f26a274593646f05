"""A batch of two prompts, three trajectories of each and one greedy answer, before a scripted spool."""

import array
import asyncio
from collections.abc import Sequence
from typing import Any

from asyncrl.messages import Batch, ScoredTrajectory, Span, SpoolRef, Trajectory, TrajectorySummary, Unit
from asyncrl.trainer.fetching import FETCH_S, fetch_step
from asyncrl.trainer.packing.step import UNASSIGNED, Step, TrajectoryInfo

GROUP_SIZE = 3


class Spool:
    """Answers at once, as a `PayloadClient` would, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.deadline_s = 0.0

    async def fetch_all(self, refs: Sequence[SpoolRef], deadline_s: float) -> list[Trajectory]:
        self.deadline_s = deadline_s
        self.asked += [(ref.segment, ref.offset) for ref in refs]
        return [trajectory(ref.segment, ref.offset) for ref in refs]


class Owning:
    """Learner with a fixed assignment."""

    def __init__(self, *owner: int) -> None:
        self.owners = list(owner)
        self.infos: Sequence[TrajectoryInfo] = ()

    def assign_ranks(self, infos: Sequence[TrajectoryInfo]) -> list[int]:
        self.infos = infos
        return self.owners


def trajectory(group_id: int, index: int) -> Trajectory:
    """Has ``index + 1`` completion tokens, of which the first identifies it."""
    ids = array.array("i", [10 * group_id + index, *range(index)])
    logprobs = array.array("f", [-0.5] * len(ids))
    prompt = array.array("i", [group_id] * 4)
    tokens = [memoryview(part).cast("B") for part in (prompt, ids, logprobs)]
    return Trajectory(Unit(group_id, index), tokens[0], tokens[1], tokens[2], [Span(5, 0, len(ids))], "stop", "")


def scored(group_id: int, index: int) -> ScoredTrajectory:
    """Its reward identifies it: group before the point, index after it."""
    ref = SpoolRef("spool", group_id, index, 1, 0)
    reward = group_id + index / 10
    return ScoredTrajectory(
        Unit(group_id, index), ref, reward, {"form": reward / 2}, TrajectorySummary(index + 1, 4, 5, 5, 1, "stop")
    )


def batch(*group_ids: int, greedy: bool = True) -> Batch:
    return Batch(8, [scored(group, index) for group in group_ids for index in range(GROUP_SIZE + greedy)])


def fetch(batch: Batch, learner: Owning, spool: Spool, *, rank: int = 0) -> Step:
    fakes: Any = learner, spool
    return asyncio.run(fetch_step(batch, *fakes, rank=rank, group_size=GROUP_SIZE))


def test_every_rank_has_the_metadata_of_all_trajectories() -> None:
    learner = Owning(0, 1, 1, 1, 1, 0)
    step = fetch(batch(7, 2), learner, Spool(), rank=1)

    names = [(7, 0), (7, 1), (7, 2), (2, 0), (2, 1), (2, 2)]
    assert [(one.outcome.group_id, one.index) for one in step.infos] == names
    assert [(one.prompt_length, one.outcome.length) for one in step.infos] == [(4, 1), (4, 2), (4, 3)] * 2
    assert [one.reward for one in step.outcomes] == [7.0, 7.1, 7.2, 2.0, 2.1, 2.2]
    assert step.outcomes[1].metrics == {"form": 3.55}
    assert learner.infos is step.infos
    assert step.owners == learner.owners


def test_a_greedy_answer_is_the_baseline_of_its_own_prompt_and_takes_no_place() -> None:
    step = fetch(batch(7, 2), Owning(0, 0, 0, 0, 0, 0), Spool())
    assert [one.baseline for one in step.outcomes] == [7.3] * 3 + [2.3] * 3
    assert sorted(step.trajectories) == [0, 1, 2, 3, 4, 5]


def test_a_prompt_that_was_not_answered_greedily_has_no_baseline() -> None:
    both = Batch(8, [*batch(7).trajectories, *batch(2, greedy=False).trajectories])
    step = fetch(both, Owning(0, 0, 0, 0, 0, 0), Spool())
    assert [one.baseline for one in step.outcomes] == [7.3] * 3 + [None] * 3


def test_a_rank_asks_for_its_own_and_finds_each_in_its_place() -> None:
    spool = Spool()
    step = fetch(batch(7, 2), Owning(1, 0, 1, UNASSIGNED, 1, 0), spool, rank=1)

    assert spool.asked == [(7, 0), (7, 2), (2, 1)]
    assert spool.deadline_s == FETCH_S
    assert {place: one.completion_ids.tolist() for place, one in step.trajectories.items()} == {
        0: [70],
        2: [72, 0, 1],
        4: [21, 0],
    }


def test_a_trajectory_has_the_tokens_of_the_spool_and_the_verdict_of_the_broker() -> None:
    found = fetch(batch(7), Owning(UNASSIGNED, UNASSIGNED, 0), Spool()).trajectories[2]

    assert (found.group_id, found.index, found.reward, found.metrics) == (7, 2, 7.2, {"form": 3.6})
    assert found.prompt_ids.tolist() == [7, 7, 7, 7]
    assert found.behavior_logprobs.tolist() == [-0.5, -0.5, -0.5]
    assert found.spans == [Span(5, 0, 3)]
