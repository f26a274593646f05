"""The load is that of the newest step; preemptions are added up."""

from types import SimpleNamespace

import pytest

from asyncrl.engine import EngineLoad
from asyncrl.rollout.engines.vllm.load import LoadMeter


@pytest.fixture
def meter() -> LoadMeter:
    return LoadMeter(SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=16)))


def a_step(running: int, waiting: int, usage: float, **more: int) -> SimpleNamespace:
    return SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage, **more)


def preempted(count: int) -> SimpleNamespace:
    return SimpleNamespace(num_preempted_reqs=count)


def test_before_the_first_step_the_engine_is_empty(meter: LoadMeter) -> None:
    assert meter.load() == EngineLoad(0.0, 0, 0, 0, kv_tokens=1600)


def test_the_load_is_that_of_the_newest_step_and_preemptions_are_added_up(meter: LoadMeter) -> None:
    meter.record(a_step(4, 2, 0.5), preempted(1), None, engine_idx=0)
    meter.record(scheduler_stats=a_step(6, 1, 0.75), iteration_stats=preempted(2), mm_cache_stats=None, engine_idx=0)

    assert meter.load() == EngineLoad(0.75, 3, 6, 1, kv_tokens=1600)


def test_a_step_without_statistics_changes_nothing(meter: LoadMeter) -> None:
    meter.record(a_step(4, 2, 0.5), preempted(1))
    meter.record(None, None)

    assert meter.load() == EngineLoad(0.5, 1, 4, 2, kv_tokens=1600)


def test_requests_that_are_held_back_wait_too(meter: LoadMeter) -> None:
    meter.record(a_step(4, 2, 0.5, num_skipped_waiting_reqs=3), None)

    assert meter.load().num_waiting == 5
