from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from asyncrl.messages.trajectory import Span
from asyncrl.trainer.algorithm.trained_part import TrainedPart
from asyncrl.trainer.packing.micro_batches import Size
from asyncrl.trainer.packing.step import Step, local_step
from asyncrl.trainer.packing.trajectory import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import SingleRank
from tests.trainer.episode_trajectories import episode

MASK = {"max_staleness": 1, "on_straggler": "mask", "order": "completion"}
TURNS = {"function": "unused.py:Unused"}


def completion(*spans: Span) -> TrainingTrajectory:
    ids = np.arange(1, 1 + spans[-1].end, dtype=np.int32)
    return TrainingTrajectory(0, ids[:1], ids, np.full(len(ids), -1.0, np.float32), 1.0, spans)


def part_of(config: Any, step: Step, number: int) -> tuple[Step, dict[str, float]]:
    return TrainedPart(config).of_step(step, number, SingleRank())


def test_a_run_without_either_trains_everything(config) -> None:
    step = local_step([completion(Span(0, 0, 8))])
    part, metrics = part_of(config(), step, 9)
    assert part is step
    assert metrics == {}
    assert TrainedPart(config()).is_whole


def test_tokens_more_than_max_staleness_versions_old_are_context(config) -> None:
    step = local_step([completion(Span(3, 0, 3), Span(4, 3, 8)), completion(Span(4, 0, 4))])
    for number, left in ((4, [8, 4]), (5, [5, 4]), (6, [0, 0])):
        part, metrics = part_of(config(schedule=MASK), step, number)
        assert [info.outcome.length for info in part.infos] == left
        assert [len(part.trajectories[place].completion_ids) for place in (0, 1)] == left
        assert [info.size for info in part.infos] == [Size(0, 1, 8), Size(0, 1, 4)], "they are still read"
        assert metrics["untrained/old_tokens"] == 12 - sum(left)


def test_the_version_of_a_step_is_the_number_of_publishes_before_it(config) -> None:
    step = local_step([completion(Span(3, 0, 8))])
    schedule = MASK | {"steps_per_publish": 4}
    assert [part_of(config(schedule=schedule), step, n)[0].infos[0].outcome.length for n in (16, 19, 20)] == [8, 8, 0]


def test_old_tokens_are_counted_by_quarters_of_their_trajectories(config) -> None:
    step = local_step([completion(Span(0, 0, 5), Span(9, 5, 8)), completion(Span(0, 0, 1), Span(9, 1, 4))])
    _, metrics = part_of(config(schedule=MASK), step, 9)
    assert [metrics[f"untrained/old_quarter_{n}"] for n in (1, 2, 3, 4)] == [3, 2, 1, 0]
    assert "untrained/turn_tokens" not in metrics


def test_turns_that_are_not_trained_are_context(config) -> None:
    one = episode([(-1, [1], [2, 3]), (0, [4], [5, 6, 7])])
    one = replace(one, turns=[one.turns[0], structs.replace(one.turns[1], is_trained=False)])
    part, metrics = part_of(config(environment=TURNS), local_step([one]), 0)
    assert metrics == {"untrained/turn_tokens": 3.0}
    assert part.trajectories[0].completion_ids.tolist() == [2, 3]
    assert part.infos[0].size == Size(7, prompt=2, completion=7)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_token_may_be_untrained_for_both_reasons(config, order: tuple[int, int]) -> None:
    one = episode([(-1, [1], [2, 3]), (0, [4], [5, 6, 7])])
    turns = [structs.replace(turn, is_trained=bool(order[place])) for place, turn in enumerate(one.turns)]
    one = replace(one, turns=turns, spans=[Span(0, 0, 3), Span(9, 3, 5)])
    part, _ = part_of(config(environment=TURNS, schedule=MASK), local_step([one]), 9)
    assert part.trajectories[0].completion_ids.tolist() == ([6, 7] if order[1] else [])
