"""Checks of a host's vLLM, and errors of one that died. No engine is started."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import vllm
from vllm.outputs import SamplingMask
from vllm.sampling_params import RequestOutputKind
from vllm.v1.outputs import SamplingMaskLists

from asyncrl.errors import ConfigError, EngineError
from asyncrl.messages.trajectory import Sampling
from asyncrl.rollout.engines.vllm.adapter import TESTED, Adapter


def llm(*, exitcode: int | None = None, processes: bool = True, **changed: Any) -> Any:
    """The parts of vLLM that an adapter reads before the first request."""
    parallel = {
        "world_size": 2,
        "data_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "enable_eplb": False,
        "worker_extension_cls": "x.Y",
    }
    model = {"logprobs_mode": "processed_logprobs", "max_model_len": 100, "dtype": "torch.bfloat16"}
    model["return_sampling_mask"] = False
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**{key: changed.get(key, value) for key, value in parallel.items()}),
        model_config=SimpleNamespace(**{key: changed.get(key, value) for key, value in model.items()}),
    )
    manager = SimpleNamespace(processes=[SimpleNamespace(pid=7, exitcode=exitcode)] if processes else [])
    core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))
    return SimpleNamespace(vllm_config=config, engine_core=core)


def test_the_installed_release_is_tested():
    assert vllm.__version__.startswith(tuple(f"{release}." for release in TESTED))


def test_it_reads_ranks_length_and_dtype():
    adapter = Adapter(llm())

    assert (adapter.ranks, adapter.max_tokens, adapter.dtype) == (2, 100, "bfloat16")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "start it with 'processed_logprobs'"),
        ({"worker_extension_cls": ""}, "start it with worker_extension_cls='asyncrl.rollout.engines.vllm.worker."),
        (
            {"enable_eplb": True},
            "moves experts between devices, so new weights would reach the wrong ones; start it without",
        ),
        ({"data_parallel_size": 2}, "use tensor parallelism, or several nodes"),
        ({"pipeline_parallel_size": 2}, "use tensor parallelism, or several nodes"),
    ],
)
def test_a_vllm_that_would_give_wrong_results_is_refused(changed, message):
    with pytest.raises(ConfigError, match=message):
        Adapter(llm(**changed))


@pytest.mark.parametrize(
    ("dead", "message"),
    [
        (llm(exitcode=-9), "vLLM's engine core (pid 7) died: signal 9"),
        (llm(exitcode=1), "vLLM's engine core (pid 7) died: exit status 1, see its output above"),
        (llm(processes=False), "vLLM's engine core died; see its output above"),
    ],
)
def test_a_dead_engine_core_is_reported_with_its_cause(dead, message):
    assert str(asyncio.run(Adapter(dead).engine_died())) == message


def check_workers(*refusals: str) -> None:
    """Check two workers that answer like this."""

    async def answer(method: str, args: tuple[list[int]]) -> list[str]:
        assert (method, args) == ("asyncrl_check", ([3, 4],))
        return list(refusals)

    async def check() -> None:
        started = llm()
        started.collective_rpc, started.output_handler = answer, asyncio.get_running_loop().create_future()
        started._run_output_handler = lambda: None
        await Adapter(started).check_workers([3, 4])

    asyncio.run(check())


def test_workers_without_a_reason_can_be_used():
    check_workers("", "")


def test_a_worker_that_cannot_be_used_is_a_config_error_with_its_reason():
    with pytest.raises(ConfigError, match=r"^the second keeps its weights$"):
        check_workers("", "the second keeps its weights")


def test_sampling_becomes_vllms_parameters():
    sampling = Sampling(max_tokens=50, temperature=0.7, top_p=0.9, top_k=20, stop=["\n\n"])

    params = Adapter(llm()).params(sampling, max_tokens=30, seed=3, eos_ids=[0, 5])

    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (30, 0.7, 0.9, 20)
    assert (params.seed, params.stop, params.stop_token_ids, params.ignore_eos) == (3, ["\n\n"], [0, 5], True)
    assert (params.logprobs, params.output_kind) == (0, RequestOutputKind.FINAL_ONLY)


def test_a_request_without_a_seed_has_none_in_vllm():
    assert Adapter(llm()).params(Sampling(max_tokens=5), max_tokens=5, seed=None, eos_ids=[]).seed is None


def test_masks_are_asked_of_a_vllm_that_records_them_which_decodes_greedily_by_top_k_of_one():
    masking, asked = Adapter(llm(return_sampling_mask=True)), Sampling(max_tokens=5, top_k=9, replay_mask=True)

    assert masking.params(asked, max_tokens=5, seed=0, eos_ids=[]).top_k == 9
    greedy = masking.params(Sampling(max_tokens=5, temperature=0.0), max_tokens=5, seed=0, eos_ids=[])
    assert (greedy.temperature, greedy.top_k) == (1.0, 1)
    assert Adapter(llm()).params(Sampling(5, temperature=0.0), max_tokens=5, seed=0, eos_ids=[]).temperature == 0
    with pytest.raises(EngineError, match="vLLM records no sampling masks: start it with return_sampling_mask"):
        Adapter(llm()).params(asked, max_tokens=5, seed=0, eos_ids=[])
    with pytest.raises(EngineError, match="vLLM records no experts: start it with enable_return_routed_experts"):
        Adapter(llm()).params(Sampling(max_tokens=5, replay_routes=True), max_tokens=5, seed=0, eos_ids=[])


def test_masks_of_a_finished_and_of_a_running_request_are_in_ascending_order():
    chunks = [SamplingMaskLists(np.array([7, 2])), SamplingMaskLists(np.array([9, 1, 4]), np.array([0, 1, 3]))]
    state = SimpleNamespace(
        detokenizer=SimpleNamespace(output_token_ids=[7, 9, 4]),
        logprobs_processor=SimpleNamespace(logprobs=SimpleNamespace(logprobs=[-0.5] * 3)),
        sampling_mask_chunks=chunks,
        routed_experts_chunks=[np.zeros((4, 2, 2)), np.ones((1, 2, 2))],
    )
    started = llm(return_sampling_mask=True)
    started.output_processor = SimpleNamespace(request_states={"a": state})

    async def generate(*_args: object, **_options: object) -> AsyncIterator[object]:
        mask = SamplingMask([[7, 2], [9], [1, 4]])
        logprobs = state.logprobs_processor.logprobs
        done = SimpleNamespace(token_ids=[7, 9, 4], logprobs=logprobs, finish_reason="stop", sampling_mask=mask)
        yield SimpleNamespace(outputs=[done], prompt_token_ids=[1])

    started.generate = generate
    adapter = Adapter(started)
    running = adapter.written("a")

    assert running is not None
    assert running.masks == [[2, 7], [9], [1, 4]]
    assert running.experts.shape == (5, 2, 2)
    params: Any = None
    assert asyncio.run(adapter.sample("a", {"prompt_token_ids": [1]}, params, "")).masks == [[2, 7], [9], [1, 4]]


def test_vllm_detokenizes_for_stop_strings_only():
    assert not Adapter(llm()).params(Sampling(max_tokens=5), max_tokens=5, seed=0, eos_ids=[]).detokenize
    assert Adapter(llm()).params(Sampling(max_tokens=5, stop=["x"]), max_tokens=5, seed=0, eos_ids=[]).detokenize
