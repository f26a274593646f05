import math
from collections import deque
from typing import Any, ClassVar

import pytest
import torch
from msgspec import structs
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from asyncrl.engine import Completion, Request
from asyncrl.errors import EngineError
from asyncrl.messages.trajectory import Sampling, Span
from asyncrl.rollout.engines.transformers.kv_cache import KVCache
from asyncrl.rollout.engines.transformers.slots import (
    FEWEST_PREFILL_TOKENS,
    PREFILL_S,
    PREFILL_TOKENS,
    PrefillPace,
    SlotJob,
    SlotTable,
)


@pytest.mark.parametrize(
    ("sampling", "is_plain", "is_filtered"),
    [
        (Sampling(max_tokens=9), True, False),
        (Sampling(max_tokens=9, temperature=0.5), False, False),
        (Sampling(max_tokens=9, top_p=0.9), False, True),
        (Sampling(max_tokens=9, top_k=3), False, True),
        (Sampling(max_tokens=9, temperature=0.0, top_k=3), False, False),
    ],
)
def test_filters_count_unless_the_job_is_greedy(sampling, is_plain, is_filtered):
    job = SlotJob(Request(prompt_ids=[1], sampling=sampling, seed=0))

    assert (job.is_plain, job.is_filtered) == (is_plain, is_filtered)


# ── test slots ────────────────────────────────────────────────────────────────────────────────

VOCAB = 10


class CountingForward:
    """Predicts token + 1, and records its calls."""

    is_static: ClassVar[bool] = False

    def __init__(self, model: PreTrainedModel, slots: int, positions: int) -> None:
        self.cache = KVCache(model.config, slots=slots, positions=positions, dtype=model.dtype, device=model.device)
        self.prefills: list[list[list[int]]] = []
        self.extensions: list[list[list[int]]] = []
        self.steps: list[tuple[list[int], list[int], int]] = []

    def prefill(self, slots: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor, placed: Any = ()) -> None:
        self.prefills.append([row[:length] for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)])

    def extend(self, slots: torch.Tensor, ids: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> None:
        bounds = zip(ids.tolist(), starts.tolist(), lengths.tolist(), strict=True)
        self.extensions.append([row[start:length] for row, start, length in bounds])

    def step(
        self, ids: torch.Tensor, positions: torch.Tensor, cells: torch.Tensor, length: int, rotary: Any = None
    ) -> torch.Tensor:
        assert rotary is None
        assert (cells - torch.arange(len(ids)) * self.cache.positions).tolist() == positions.tolist()
        self.steps.append((ids.tolist(), positions.tolist(), length))
        return torch.nn.functional.one_hot((ids + 1) % VOCAB, VOCAB).float() * 100


@pytest.fixture
def make_table(make_model):
    def make(slots: int = 4, positions: int = 40, **options: Any) -> tuple[SlotTable, CountingForward]:
        forward = CountingForward(make_model(), slots, positions)
        table = SlotTable(
            forward,
            slots=slots,
            eos_ids=[0],
            vocab_size=VOCAB,
            stops_here=lambda ids, stop: any(word in "".join(map(str, ids)) for word in stop),
            policy_version=0,
            device=torch.device("cpu"),
            **options,
        )
        return table, forward

    return make


def job(*prompt_ids: int, max_tokens: int = 3, stop: tuple[str, ...] = ()) -> SlotJob:
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop=list(stop))
    return SlotJob(Request(prompt_ids=list(prompt_ids), sampling=sampling, seed=0))


def ids_of(result: Completion | EngineError) -> list[int]:
    assert isinstance(result, Completion)
    return result.completion_ids


def test_equal_prompts_are_prefilled_once(make_table):
    table, forward = make_table()

    table.admit(deque([job(1, 2, 3), job(1, 2, 3), job(4, 5), job(1, 2, 3)]))

    assert forward.prefills == [[[1, 2], [4]]]  # the last token is fed by the first step
    assert len(table) == 4


def test_a_prompt_that_is_still_running_is_not_prefilled_again(make_table):
    table, forward = make_table()
    table.admit(deque([job(1, 2, 3)]))
    table.step()

    table.admit(deque([job(1, 2, 3)]))

    assert len(forward.prefills) == 1


def test_after_new_weights_a_running_prompt_is_prefilled_again(make_table):
    table, forward = make_table()
    table.admit(deque([job(1, 2, 3)]))
    table.set_version(1)

    table.admit(deque([job(1, 2, 3)]))

    assert len(forward.prefills) == 2


def test_one_prefill_is_bounded_and_the_rest_waits_for_the_next_step(make_table):
    table, _ = make_table(slots=4, positions=PREFILL_TOKENS["cpu"])
    waiting = deque(job(*[1, *[n] * (PREFILL_TOKENS["cpu"] // 2 - 1)]) for n in (2, 3, 4))

    table.admit(waiting)

    assert (len(table), len(waiting)) == (2, 1)


def test_only_running_rows_are_computed_and_slots_are_refilled_first(make_table):
    table, forward = make_table(slots=3)
    waiting = deque([job(1, max_tokens=1), job(2, max_tokens=4), job(3, max_tokens=2), job(5, max_tokens=1)])
    done = []
    while waiting or table:
        table.admit(waiting)
        done += [ids_of(result) for _, result in table.step()]

    assert [ids for ids, _, _ in forward.steps] == [[1, 2, 3], [5, 3, 4], [4], [5]]
    assert sorted(done) == [[2], [3, 4, 5, 6], [4, 5], [6]]


def test_attention_reads_up_to_the_longest_row_rounded_up(make_table):
    table, forward = make_table(positions=100)
    table.admit(deque([job(*[1] * 31, max_tokens=3), job(1)]))
    for _ in range(3):
        table.step()

    assert [length for _, _, length in forward.steps] == [32, 32, 48]


def test_an_end_of_sequence_token_ends_a_row(make_table):
    table, _ = make_table()
    table.admit(deque([job(8, max_tokens=9)]))

    [(_, result)] = table.step() + table.step()

    assert isinstance(result, Completion)
    assert (result.completion_ids, result.finish_reason) == ([9, 0], "stop")


def test_a_stop_string_ends_a_row_and_its_neighbour_goes_on(make_table):
    table, _ = make_table()
    table.admit(deque([job(1, max_tokens=9, stop=("34",)), job(1, max_tokens=9)]))

    [(_, result)] = table.step() + table.step() + table.step()

    assert isinstance(result, Completion)
    assert (result.completion_ids, result.finish_reason) == ([2, 3, 4], "stop")
    assert len(table) == 1


def test_a_stop_string_may_begin_before_a_completion_is_resumed(make_table):
    table, _ = make_table()
    written = Completion(
        completion_ids=[2, 3],
        behavior_logprobs=[0.0, 0.0],
        spans=[Span(0, 0, 2)],
        finish_reason="unfinished",
        generate_s=0.0,
    )
    again = job(1, max_tokens=9, stop=("34",))
    resumed = SlotJob(structs.replace(again.request, resume_from=written))
    table.admit(deque([resumed]))

    [(_, result)] = table.step()

    assert isinstance(result, Completion)
    assert (result.completion_ids, result.finish_reason) == ([2, 3, 4], "stop")


class Reads(TorchFunctionMode):
    """Counts what makes a device wait: values that Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in {torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.nonzero, torch.Tensor.__int__}
        return func(*args, **(kwargs or {}))


def test_a_step_is_read_from_the_device_once_with_stop_strings_too(make_table, monkeypatch):
    table, forward = make_table()
    table.admit(deque([job(1, max_tokens=9, stop=("99",)), job(3, max_tokens=9), job(4, max_tokens=9, stop=("98",))]))
    monkeypatch.setattr(forward, "step", lambda ids, *_: torch.nn.functional.one_hot((ids + 1) % VOCAB, VOCAB).float())

    with Reads() as reads:
        assert table.step() == []

    assert reads.count == 1


def test_recompute_prefills_all_tokens_of_every_row(make_table):
    table, forward = make_table()
    table.admit(deque([job(1, 2, max_tokens=9), job(5, max_tokens=9)]))
    table.step()
    table.step()
    forward.prefills.clear()

    list(table.recompute())

    assert forward.prefills == [[[1, 2, 3], [5, 6]]]  # the next step feeds the newest token of each


def test_recompute_skips_rows_released_or_admitted_meanwhile(make_table):
    table, forward = make_table(prefill_tokens=3)  # one row at a time
    longer, shorter = job(1, 2, max_tokens=9), job(5, max_tokens=9)
    table.admit(deque([longer]))
    table.admit(deque([shorter]))
    table.step()
    table.step()
    recomputing = table.recompute()
    forward.prefills.clear()

    assert next(recomputing) == 1
    table.release(shorter)
    table.admit(deque([job(7, 8, max_tokens=9)]))

    assert list(recomputing) == []
    assert forward.prefills == [[[1, 2, 3]], [[7]]]


def test_a_released_row_is_not_decoded(make_table):
    table, forward = make_table()
    first, second = job(1), job(4)
    table.admit(deque([first, second]))
    table.release(first)

    table.step()

    assert forward.steps == [([4], [0], 16)]


def test_ids_that_are_never_sampled_leave_their_probability_to_the_rest(make_table):
    table, _ = make_table(never=[6, 7])

    table.admit(deque([job(5, max_tokens=1)]))
    ((_, completion),) = table.step()

    assert completion.completion_ids == [0]  # the first of the others, all equally likely
    assert completion.behavior_logprobs == pytest.approx([-math.log(VOCAB - 2)])


# ── the next turn of an episode ─────────────────────────────────────────────────────────────


def finish(table: SlotTable, *jobs: SlotJob) -> None:
    """Decode jobs of three tokens to their end."""
    table.admit(deque(jobs))
    for _ in range(3):
        table.step()


def test_the_next_turn_computes_only_what_follows_the_one_before(make_table):
    table, forward = make_table()
    finish(table, job(1, 2, 3))

    table.admit(deque([job(1, 2, 3, 4, 5, 6, 9, 9)]))

    assert (forward.prefills, forward.extensions) == ([[[1, 2]]], [[[6, 9]]])


def test_a_turn_that_goes_on_computes_nothing(make_table):
    table, forward = make_table()
    finish(table, job(1, 2, 3))

    table.admit(deque([job(1, 2, 3, 4, 5, 6)]))

    assert (forward.prefills, forward.extensions) == ([[[1, 2]]], [])
    (ended,) = table.step() + table.step() + table.step()
    assert ids_of(ended[1]) == [7, 8, 9]


def test_a_prompt_that_only_resembles_a_finished_turn_is_computed_whole(make_table):
    table, forward = make_table()
    finish(table, job(1, 2, 3))

    table.admit(deque([job(1, 2, 2, 4, 5, 6, 9)]))

    assert forward.prefills[1:] == [[[1, 2, 2, 4, 5, 6]]]


def test_after_new_weights_a_finished_turn_is_computed_again(make_table):
    table, forward = make_table()
    finish(table, job(1, 2, 3))
    table.set_version(1)

    table.admit(deque([job(1, 2, 3, 4, 5, 6, 9)]))

    assert forward.prefills[1:] == [[[1, 2, 3, 4, 5, 6]]]


def test_a_finished_turn_is_copied_to_the_slot_of_the_next(make_table):
    table, forward = make_table()
    finish(table, job(4, 1), job(7, 7), job(1, 2, 3))
    table.admit(deque([job(8, 8, max_tokens=9)]))
    table.step()  # closes the holes: one slot is left
    table.cache.storage[:, 2, :5] = 5.0

    table.admit(deque([job(1, 2, 3, 4, 5, 6, 9)]))

    assert [found.slot for found in table.running] == [0, 1]
    assert table.cache.storage[:, 1, :5].eq(5.0).all()
    assert forward.extensions == [[[6]]]


def test_a_slot_that_another_takes_is_no_longer_kept(make_table):
    table, forward = make_table(slots=1)
    finish(table, job(1, 2, 3))
    finish(table, job(7, 7))

    table.admit(deque([job(1, 2, 3, 4, 5, 6, 9)]))

    assert forward.prefills[2:] == [[[1, 2, 3, 4, 5, 6]]]


def test_a_prefill_is_cut_by_the_time_that_the_last_ones_took() -> None:
    pace = PrefillPace(2048)
    pace.took(2048, 8 * PREFILL_S)
    assert pace.max_tokens == 256, "what fits the time"
    pace.took(256, PREFILL_S / 2)
    assert pace.max_tokens == 384, "half way to the 512 that would fit"
    pace.took(384, 1e-6)
    assert pace.max_tokens == 2048, "never above the bound"
    pace.took(64, 100.0)
    assert pace.max_tokens == FEWEST_PREFILL_TOKENS, "never so few that launching costs more than computing"
