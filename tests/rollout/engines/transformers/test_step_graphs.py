"""Graphs of decode steps: captured by a stand-in that computes the same step again on the same memory."""

import asyncio

import pytest
import torch

from asyncrl.engine import Completion, Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.qwen3 import Qwen3Forward
from asyncrl.rollout.engines.transformers.step_graphs import Run, StepGraphs, rounded_up

SLOTS, POSITIONS = 11, 64


class Captures:
    """Remembers what is captured, and runs it as it is."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def __call__(self, run: Run) -> Run:
        self.num_captured += 1

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            return run()

        return replay


def decoded(engine: TransformersEngine, *requests: Request) -> list[Completion]:
    async def scenario() -> list[Completion]:
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(scenario())


def requests(number: int) -> list[Request]:
    """Prompts of several lengths; completions of several lengths, so that rows leave at different steps."""
    return [
        Request(
            prompt_ids=[3 + (seed + place) % 40 for place in range(1 + seed % 7)],
            sampling=Sampling(max_tokens=8 + 3 * seed),
            seed=seed,
        )
        for seed in range(number)
    ]


def with_graphs(engine: TransformersEngine) -> Captures:
    captures = Captures()
    engine._table._graphs = StepGraphs(engine._table._forward, lambda: captures)
    return captures


@pytest.fixture
def make_engine(make_model, tokenizer):
    def make() -> TransformersEngine:
        return TransformersEngine(make_model(), tokenizer, slots=SLOTS, max_tokens_per_slot=POSITIONS)

    return make


def test_sizes_are_at_most_a_quarter_too_large():
    assert [rounded_up(number, 100) for number in (1, 2, 5, 8, 9, 13, 17, 37, 64, 65, 90)] == [
        *(1, 2, 5, 8, 10, 14, 20, 40, 64, 80, 96)
    ]
    assert all(number <= rounded_up(number, 10_000) < 1.25 * number + 1 for number in range(1, 5000))
    assert rounded_up(37, 38) == 38, "no graph is larger than what there is"


def test_completions_are_those_without_graphs(make_engine):
    plain, graphed = make_engine(), make_engine()
    captures = with_graphs(graphed)
    for _ in range(3):
        for without, with_ in zip(decoded(plain, *requests(9)), decoded(graphed, *requests(9)), strict=True):
            assert with_.completion_ids == without.completion_ids
            assert with_.behavior_logprobs == pytest.approx(without.behavior_logprobs, abs=1e-5)
    assert captures.num_replayed > 2 * captures.num_captured > 0


@torch.inference_mode()
def test_a_step_changes_no_cell_but_those_of_its_rows_and_the_last_of_idle_slots(make_model):
    model = make_model()
    cache = KVCache(model.config, slots=SLOTS, positions=POSITIONS, dtype=model.dtype, device=model.device)
    cache.storage.normal_()
    graphs = StepGraphs(Qwen3Forward(model, cache), Captures)
    ids, positions = torch.arange(3, 12), torch.arange(9) + 2
    cells = torch.arange(9) * POSITIONS + positions
    graphs.step(ids, positions, cells, 16)  # the second is captured
    before = cache.storage.clone()
    graphs.step(ids, positions + 1, cells + 1, 16)
    changed = (cache.storage != before).flatten(3).any(-1).any(0)
    expected = {(row, int(position) + 1) for row, position in enumerate(positions)} | {(9, POSITIONS - 1)}
    assert {(int(slot), int(position)) for slot, position in changed.nonzero()} == expected


@torch.inference_mode()
def test_rows_that_ended_are_idle_in_the_next_step(make_model):
    model = make_model()
    cache = KVCache(model.config, slots=SLOTS, positions=POSITIONS, dtype=model.dtype, device=model.device)
    graphs = StepGraphs(Qwen3Forward(model, cache), Captures)

    def step(rows: int, position: int) -> None:
        places = torch.full((rows,), position)
        graphs.step(torch.full((rows,), 5), places, torch.arange(rows) * POSITIONS + position, 16)

    for rows in (10, 10, 9, 9):  # all of them are a graph of ten rows
        step(rows, 3)
    before = cache.storage[:, 9].clone()
    step(9, 4)
    assert torch.equal(cache.storage[:, 9, : POSITIONS - 1], before[:, : POSITIONS - 1])


def test_graphs_are_forgotten_when_the_memory_goes(make_engine):
    engine = make_engine()
    captures = with_graphs(engine)
    first = decoded(engine, *requests(4))
    decoded(engine, *requests(4))
    num_captured = captures.num_captured
    asyncio.run(engine.sleep())
    asyncio.run(engine.wake())
    assert [one.completion_ids for one in decoded(engine, *requests(4))] == [one.completion_ids for one in first]
    decoded(engine, *requests(4))
    assert captures.num_captured > num_captured


def test_graphs_outlive_the_requests_that_they_were_captured_for(make_engine):
    engine = make_engine()
    captures = with_graphs(engine)
    for _ in range(3):
        decoded(engine, *requests(4))
    num_captured = captures.num_captured
    decoded(engine, *requests(4))
    assert captures.num_captured == num_captured > 0


def test_a_capture_that_fails_is_told_and_not_tried_again(make_engine, caplog):
    engine, tried = make_engine(), []

    def fail(run: Run) -> Run:
        tried.append(run)
        raise RuntimeError("operation not permitted when stream is capturing")

    engine._table._graphs = StepGraphs(engine._table._forward, lambda: fail)
    expected = [one.completion_ids for one in decoded(make_engine(), *requests(4))]
    for _ in range(2):
        assert [one.completion_ids for one in decoded(engine, *requests(4))] == expected
    assert len(tried) == 1
