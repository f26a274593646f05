"""
What asyncrl takes for granted in vLLM, vllm-ascend, torch and torch_npu, read from their sources.

A device is needed to run most of them, but not to read that a method still takes an argument.
"""

import ast
import re
from pathlib import Path
from typing import TypeGuard

import pytest

from asyncrl.rollout.engines.vllm import arguments, inspection
from asyncrl.rollout.engines.vllm.environment import DEFAULTS, on_cpu
from asyncrl.weights.groups.device import VISIBLE
from asyncrl.weights.groups.network_interface import HCCL_CONNECT_TIMEOUT, LATE_IS_NO_END
from tests.rollout.engines.vllm.sources import Source, accepts, attributes, sources

VLLM, ASCEND, TORCH, TORCH_NPU = (sources(package) for package in ("vllm", "vllm_ascend", "torch", "torch_npu"))

ASYNC_LLM = "vllm/v1/engine/async_llm.py"
CORE_CLIENT = "vllm/v1/engine/core_client.py"
PROCESSOR = "vllm/v1/engine/output_processor.py"
LAYERWISE = "vllm/model_executor/model_loader/reload/layerwise.py"
BASE = "vllm/v1/worker/worker_base.py", "WorkerBase"
GPU = "vllm/v1/worker/gpu_worker.py", "Worker"
CPU = "vllm/v1/worker/cpu_worker.py", "CPUWorker"
NPU = "vllm_ascend/worker/worker.py", "NPUWorker"
RUNNERS = "vllm/v1/worker/gpu_model_runner.py", "vllm/v1/worker/gpu/model_runner.py"
NPU_SAMPLER = "vllm_ascend/sample/sampler.py"
NPU_CONFIG = "vllm_ascend/ascend_config.py"

on_every_vllm = pytest.mark.parametrize("vllm", VLLM)
on_every_ascend = pytest.mark.parametrize("ascend", ASCEND)


def text(node: ast.AST) -> str:
    return ast.unparse(node)


@pytest.mark.parametrize(
    ("positional", "keywords", "expected"),
    [
        (["prompt"], [], True),
        (["prompt", "salt"], ["priority"], True),
        (["prompt"], ["salt", "priority"], True),
        ([], ["priority"], False),
        (["salt"], [], False),
        (["prompt"], ["color"], False),
        (["prompt", "priority"], [], False),
    ],
)
def test_a_call_is_compared_with_a_signature(positional: list[str], keywords: list[str], *, expected: bool) -> None:
    (function,) = ast.parse("async def generate(self, prompt, salt='', *, priority=0): ...").body

    assert isinstance(function, ast.AsyncFunctionDef)
    assert accepts(function, *positional, **dict.fromkeys(keywords)) == expected


# ── the engine ──────────────────────────────────────────────────────────────────────────────


@on_every_vllm
@pytest.mark.parametrize(
    ("method", "positional", "keywords"),
    [
        ("generate", ["prompt", "sampling_params", "request_id"], ["priority"]),
        ("abort", ["request_id"], []),
        ("resume_generation", [], []),
        ("reset_prefix_cache", [], ["reset_running_requests", "reset_connector"]),
        ("reset_encoder_cache", [], []),
        ("collective_rpc", ["method"], ["args"]),
        ("from_vllm_config", ["vllm_config"], ["disable_log_stats", "stat_loggers"]),
        ("shutdown", [], []),
        ("errored", [], []),
        ("_run_output_handler", [], []),
        ("sleep", ["level"], []),
        ("wake_up", ["tags"], []),
    ],
)
def test_the_engine_has_the_methods_that_are_called(
    vllm: Source, method: str, positional: list[str], keywords: list[str]
) -> None:
    assert accepts(vllm.find(ASYNC_LLM, f"AsyncLLM.{method}"), *positional, **dict.fromkeys(keywords))


@on_every_vllm
def test_the_scheduler_pauses_and_keeps_requests_and_caches(vllm: Source) -> None:
    wanted = {"mode": "keep", "clear_cache": False}

    assert accepts(vllm.find(CORE_CLIENT, "AsyncMPClient.pause_scheduler_async"), **wanted)
    assert accepts(vllm.find(ASYNC_LLM, "AsyncLLM.pause_generation"), **wanted)


@on_every_vllm
def test_the_engine_has_the_internals_that_are_read(vllm: Source) -> None:
    assert {"vllm_config", "model_config", "output_processor", "engine_core", "output_handler"} <= attributes(
        vllm.find(ASYNC_LLM, "AsyncLLM")
    )
    assert {"outputs_queue", "resources"} <= attributes(vllm.find(CORE_CLIENT, "MPClient")) | attributes(
        vllm.find(CORE_CLIENT, "AsyncMPClient")
    )
    assert "request_states" in attributes(vllm.find(PROCESSOR, "OutputProcessor"))
    assert {"detokenizer", "logprobs_processor"} <= attributes(vllm.find(PROCESSOR, "RequestState"))
    tokens = vllm.find("vllm/v1/engine/detokenizer.py", "IncrementalDetokenizer")
    assert {"output_token_ids", "num_output_tokens"} <= attributes(tokens)


@on_every_vllm
def test_its_configuration_has_what_is_checked(vllm: Source) -> None:
    model, parallel = (
        attributes(vllm.find(f"vllm/config/{name.lower()}.py", f"{name}Config")) for name in ("Model", "Parallel")
    )

    assert {"logprobs_mode", "max_model_len", "dtype", "quantization", "is_multimodal_model"} <= model
    assert parallel >= {
        *("world_size", "rank", "worker_extension_cls"),
        *("enable_eplb", "data_parallel_size", "pipeline_parallel_size"),
    }


@on_every_vllm
def test_an_empty_output_can_be_made(vllm: Source) -> None:
    fields = [node for node in vllm.find("vllm/v1/engine/__init__.py", "EngineCoreOutputs").body if _is_field(node)]

    assert fields
    assert all(field.value is not None for field in fields)


@on_every_vllm
def test_a_request_takes_the_parameters_that_are_set(vllm: Source) -> None:
    parameters = vllm.find("vllm/sampling_params.py", "SamplingParams")

    assert attributes(parameters) >= {
        *("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos", "stop_token_ids", "stop"),
        *("include_stop_str_in_output", "detokenize", "logprobs", "output_kind"),
    }
    (seed,) = (node for node in parameters.body if _is_field(node) and text(node.target) == "seed")
    assert text(seed) == "seed: int | None = None"


@on_every_vllm
def test_a_prompt_takes_pictures_with_names_of_their_own(vllm: Source) -> None:
    options = attributes(vllm.find("vllm/inputs/llm.py", "_PromptOptions"))

    assert {"multi_modal_data", "multi_modal_uuids", "cache_salt"} <= options
    assert accepts(vllm.find("vllm/renderers/base.py", "BaseRenderer.render_cmpl_async"), "prompts")
    assert "renderer" in attributes(vllm.find(ASYNC_LLM, "AsyncLLM"))
    assert "logit_bias" in attributes(vllm.find("vllm/sampling_params.py", "SamplingParams"))
    assert "prompt_token_ids" in attributes(vllm.find("vllm/outputs.py", "RequestOutput"))
    assert "limit_mm_per_prompt" in attributes(vllm.find("vllm/engine/arg_utils.py", "EngineArgs"))


@on_every_vllm
def test_the_engine_takes_every_argument_that_is_set_or_refused(vllm: Source) -> None:
    fields = attributes(vllm.find("vllm/engine/arg_utils.py", "EngineArgs"))
    set_here = {"seed", "distributed_executor_backend", "additional_config"}

    known = {*arguments.CONFIGURED, *arguments.FIXED, *arguments.UNSUPPORTED, *set_here}
    assert known - {arguments.MASKS, arguments.ROUTES} <= fields


@on_every_vllm
def test_a_vllm_that_takes_the_arguments_to_record_gives_masks_and_experts_by_these_names(vllm: Source) -> None:
    fields = attributes(vllm.find("vllm/engine/arg_utils.py", "EngineArgs"))
    output, processor = attributes(vllm.find("vllm/outputs.py", "CompletionOutput")), vllm.bytes(PROCESSOR)
    if arguments.MASKS in fields:
        assert "sampling_mask" in output
        assert "token_ids" in attributes(vllm.find("vllm/outputs.py", "SamplingMask"))
        assert "to_nested_list" in attributes(vllm.find("vllm/v1/outputs.py", "SamplingMaskLists"))
        assert arguments.MASKS in attributes(vllm.find("vllm/config/model.py", "ModelConfig"))
        assert b"self.sampling_mask_chunks" in processor
    if arguments.ROUTES in fields:
        assert "routed_experts" in output
        place = ("aux_output", "AuxOutputConfig") if vllm.has("vllm/config/aux_output.py") else ("model", "ModelConfig")
        assert arguments.ROUTES in attributes(vllm.find(f"vllm/config/{place[0]}.py", place[1]))
        assert b"self.routed_experts_chunks" in processor


@on_every_vllm
@pytest.mark.parametrize("name", sorted(name for name in {*DEFAULTS, *on_cpu(1)} if name.startswith("VLLM_")))
def test_vllm_reads_the_variables_that_are_set_for_it(vllm: Source, name: str) -> None:
    assert f'"{name}"'.encode() in vllm.bytes("vllm/envs.py")


# ── workers ─────────────────────────────────────────────────────────────────────────────────


def extension() -> set[str]:
    """Names of the worker extension, whose module imports vLLM."""
    tree = ast.parse(Path(arguments.__file__).with_name("worker.py").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {name for name in attributes(found) if "asyncrl" in name}


def test_all_names_of_the_worker_extension_are_its_own() -> None:
    assert {"asyncrl_check", "asyncrl_connect", "asyncrl_swap", "_asyncrl_reload"} <= extension()


@on_every_vllm
@pytest.mark.parametrize("worker", [GPU, CPU], ids=["GPU", "CPU"])
def test_no_worker_of_vllm_has_a_name_of_the_extension_and_each_has_what_it_reads(
    vllm: Source, worker: tuple[str, str]
) -> None:
    theirs = attributes(vllm.find(*worker)) | attributes(vllm.find(*BASE))

    assert not theirs & extension()
    assert {"device", "model_runner", "vllm_config"} <= theirs


@on_every_ascend
def test_no_worker_of_vllm_ascend_has_a_name_of_the_extension_and_each_has_what_it_reads(ascend: Source) -> None:
    theirs = attributes(ascend.find(*NPU))

    assert not theirs & extension()
    assert {"device", "model_runner", "vllm_config"} <= theirs


@on_every_vllm
def test_the_extension_is_mixed_into_the_worker_after_its_module_is_imported(vllm: Source) -> None:
    init = text(vllm.find(BASE[0], "WorkerWrapperBase.init_worker"))

    assert init.index("resolve_obj_by_qualname(parallel_config.worker_extension_cls)") < init.index(
        "self.worker = worker_class("
    )
    assert "worker_class.__bases__ = worker_class.__bases__ + (worker_extension_cls,)" in init


@on_every_vllm
@pytest.mark.parametrize("worker", [GPU, CPU], ids=["GPU", "CPU"])
def test_requests_without_a_seed_draw_from_the_engines(vllm: Source, worker: tuple[str, str]) -> None:
    assert "set_random_seed(self.model_config.seed)" in text(vllm.find(*worker))


@on_every_ascend
def test_on_an_npu_requests_without_a_seed_draw_from_the_engines_too(ascend: Source) -> None:
    assert "set_random_seed(self.model_config.seed)" in text(ascend.find(*NPU))


@on_every_vllm
def test_a_worker_on_a_gpu_sleeps_at_a_level_and_wakes_up_by_tags(vllm: Source) -> None:
    _sleeps(vllm.find(*GPU))


@on_every_ascend
def test_a_worker_on_an_npu_sleeps_at_a_level_and_wakes_up_by_tags(ascend: Source) -> None:
    _sleeps(ascend.find(*NPU))


# ── log-probs ───────────────────────────────────────────────────────────────────────────────


@on_every_vllm
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_engines_logprobs_mode_reaches_the_sampler_of_vllm(vllm: Source, runner: str) -> None:
    made = vllm.find(runner, "GPUModelRunner")

    assert {"sampler", "get_model"} <= attributes(made)
    assert re.search(r"logprobs_mode['\"]?[=:] ?self\.model_config\.logprobs_mode", text(made))


@on_every_vllm
@pytest.mark.parametrize("runner", RUNNERS)
def test_what_is_sampled_comes_from_logits_of_the_models_own_method(vllm: Source, runner: str) -> None:
    made = text(vllm.find(runner, "GPUModelRunner"))

    assert "logits = self.model.compute_logits(sample_hidden_states)" in made
    past_it = "self.model.compute_logits_local(" in made
    assert not past_it or "if self.batch_sharder is not None:" in made, "as `inspection.refusal` asks"


@on_every_vllm
@pytest.mark.parametrize("sampler", ["vllm/v1/sample/sampler.py", "vllm/v1/worker/gpu/sample/sampler.py"])
def test_a_sampler_of_vllm_can_be_asked_for_its_mode(vllm: Source, sampler: str) -> None:
    assert "logprobs_mode" in attributes(vllm.find(sampler, "Sampler"))


@on_every_vllm
def test_the_part_of_the_sampler_for_top_k_and_top_p_has_a_mode_of_its_own(vllm: Source) -> None:
    assert "topk_topp_sampler" in attributes(vllm.find("vllm/v1/sample/sampler.py", "Sampler"))
    filters = vllm.find("vllm/v1/sample/ops/topk_topp_sampler.py", "TopKTopPSampler")
    assert "logprobs_mode" in attributes(filters)


@on_every_vllm
def test_a_verifier_of_drafts_keeps_the_mode_it_was_made_with(vllm: Source) -> None:
    verifier = vllm.find("vllm/v1/sample/rejection_sampler.py", "RejectionSampler")

    assert "is_processed_logprobs_mode" in attributes(verifier)


@on_every_ascend
def test_the_engines_logprobs_mode_does_not_reach_the_sampler_of_vllm_ascend(ascend: Source) -> None:
    """Once it does, `inspection.use_processed_logprobs` has nothing left to do."""
    runner = text(ascend.find("vllm_ascend/worker/model_runner_v1.py", "NPUModelRunner"))

    assert "self.sampler = AscendSampler()" in runner


@on_every_ascend
def test_the_sampler_of_vllm_ascend_reads_its_mode_at_every_step(ascend: Source) -> None:
    sampler, filters = (ascend.find(NPU_SAMPLER, f"Ascend{name}") for name in ("Sampler", "TopKTopPSampler"))
    step = text(ascend.find(NPU_SAMPLER, "AscendTopKTopPSampler.forward_native"))

    assert [text(base) for base in (*sampler.bases, *filters.bases)] == ["Sampler", "TopKTopPSampler"]
    assert "self.topk_topp_sampler" in text(sampler)
    assert "self.logprobs_mode == 'processed_logprobs'" in step
    assert NPU_SAMPLER.partition("/")[0] == inspection.ASCEND


# ── settings of vllm-ascend ─────────────────────────────────────────────────────────────────


@on_every_ascend
def test_vllm_ascend_has_the_settings_that_are_refused(ascend: Source) -> None:
    config = ascend.find(NPU_CONFIG, "AscendConfig")

    assert {*inspection.UNUSABLE_ON_ASCEND, "eplb_config"} <= attributes(config)
    assert "'dynamic_eplb': False" in text(ascend.find(NPU_CONFIG, "EplbConfig"))
    assert accepts(ascend.find(NPU_CONFIG, "get_ascend_config"))


@on_every_ascend
def test_additional_config_decides_on_the_layout_before_any_variable(ascend: Source) -> None:
    decide = text(ascend.find(NPU_CONFIG, "AscendConfig._get_config_value"))

    assert decide.index("config_key in additional_config") < decide.index("return env_value")
    assert "'weight_nz_mode'" in text(ascend.find(NPU_CONFIG, "AscendConfig"))


@on_every_ascend
def test_an_npu_is_known_by_its_name_and_its_variable(ascend: Source) -> None:
    platform = text(ascend.find("vllm_ascend/platform.py", "NPUPlatform"))

    assert "device_type: str = 'npu'" in platform
    assert f"device_control_env_var: str = '{VISIBLE['npu']}'" in platform


# ── new weights ─────────────────────────────────────────────────────────────────────────────


@on_every_vllm
def test_weights_are_reloaded_layer_by_layer(vllm: Source) -> None:
    assert accepts(vllm.find(LAYERWISE, "initialize_layerwise_reload"), "model")
    assert accepts(vllm.find(LAYERWISE, "finalize_layerwise_processing"), "model", "model_config")
    assert vllm.defines(LAYERWISE, "finalize_layerwise_reload")
    assert accepts(vllm.find("vllm/config/vllm.py", "set_current_vllm_config"), "vllm_config")


@on_every_vllm
def test_a_reload_checks_the_parameters_of_an_unquantized_model_alone(vllm: Source) -> None:
    """Before 0.32 the model runner reloaded."""
    reloads = "vllm/model_executor/model_loader/reload/inplace.py"
    own = vllm.find(
        reloads if vllm.has(reloads) else RUNNERS[0], "reload_weights" if vllm.has(reloads) else "GPUModelRunner"
    )

    assert "quantization is None" in text(own)


@on_every_ascend
def test_an_npu_is_the_default_of_new_tensors_during_a_reload(ascend: Source) -> None:
    for phase in ("start_weight_update", "update_weights", "finish_weight_update"):
        assert "with torch.device(self.device)" in text(ascend.find(NPU[0], f"NPUWorker.{phase}"))


# ── collective libraries ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("torch", TORCH)
@pytest.mark.parametrize("name", LATE_IS_NO_END["nccl"])
def test_torch_reads_the_variables_that_are_set_for_nccl(torch: Source, name: str) -> None:
    header = torch.bytes("torch/include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp")

    assert f'"{name}"'.encode() in header


@pytest.mark.parametrize("torch_npu", TORCH_NPU)
@pytest.mark.parametrize("name", LATE_IS_NO_END["hccl"])
def test_torch_npu_reads_the_variables_that_are_set_for_hccl(torch_npu: Source, name: str) -> None:
    header = torch_npu.bytes("torch_npu/include/torch_npu/csrc/distributed/ProcessGroupHCCL.hpp")

    assert f'"{name}"'.encode() in header


@pytest.mark.parametrize("torch_npu", TORCH_NPU)
def test_torch_npu_knows_hccls_time_to_connect(torch_npu: Source) -> None:
    assert HCCL_CONNECT_TIMEOUT.encode() in torch_npu.bytes("torch_npu/lib/libtorch_npu.so")


def _is_field(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign)


def _sleeps(worker: ast.ClassDef) -> None:
    methods = {node.name: node for node in worker.body if isinstance(node, ast.FunctionDef)}

    assert accepts(methods["sleep"], "level")
    assert accepts(methods["wake_up"], "tags")
