"""Start arguments of vLLM. Most tests need no vLLM: they give the names it has."""

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.evaluation import Evaluation
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.vllm import arguments
from asyncrl.rollout.engines.vllm.arguments import CONFIGURED, FIXED, UNSUPPORTED, engine_args
from tests.conftest import make_vision_model

NAMES = {*CONFIGURED, *FIXED, *UNSUPPORTED, "block_size", "quantization", "max_num_batched_tokens", "use_tqdm_on_load"}


def config_with(**vllm: Any) -> Config:
    return Config(
        model=Model(path="/models/one", dtype="bfloat16"),
        data=Data(train="prompts.jsonl", max_prompt_tokens=100),
        sampling=SamplingConfig(max_tokens=28),
        rollout=Rollout(engine="vllm", slots=7, vllm=Vllm(**vllm)),
    )


def test_every_key_of_the_configuration_reaches_vllm():
    config = config_with(
        tensor_parallel_size=2,
        gpu_memory_utilization=0.5,
        kv_cache_bytes=1000,
        enforce_eager=True,
        max_model_len=400,
        enable_chunked_prefill=False,
        engine_args={"block_size": 32},
    )

    assert engine_args(config, NAMES, is_cpu=False) == {
        "model": "/models/one",
        "dtype": "bfloat16",
        "max_num_seqs": 7,
        "tensor_parallel_size": 2,
        "gpu_memory_utilization": 0.5,
        "kv_cache_memory_bytes": 1000,
        "enforce_eager": True,
        "max_model_len": 400,
        "enable_chunked_prefill": False,
        "block_size": 32,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": "asyncrl.rollout.engines.vllm.worker.WorkerExtension",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }


def test_the_longest_request_is_the_longest_prompt_and_the_longest_completion():
    config = config_with()

    assert engine_args(config, NAMES, is_cpu=False)["max_model_len"] == 128
    config = replace(config, evaluation=Evaluation(max_tokens=300))
    assert engine_args(config, NAMES, is_cpu=False)["max_model_len"] == 400


def test_vllm_sizes_its_cache_by_itself_unless_told():
    assert "kv_cache_memory_bytes" not in engine_args(config_with(), NAMES, is_cpu=False)


def test_prompts_are_prefilled_in_chunks_except_on_a_cpu():
    def is_chunked(*, is_cpu: bool, **vllm: bool) -> bool:
        return engine_args(config_with(**vllm), NAMES, is_cpu=is_cpu)["enable_chunked_prefill"]

    assert is_chunked(is_cpu=False)
    assert not is_chunked(is_cpu=False, enable_chunked_prefill=False)
    assert not is_chunked(is_cpu=True)
    with pytest.raises(ConfigError, match="enable_chunked_prefill is true, but on a CPU"):
        is_chunked(is_cpu=True, enable_chunked_prefill=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blok_size", "engine_args.blok_size: the installed vLLM has no such argument; did you mean 'block_size'"),
        ("zzz", "see AsyncEngineArgs"),
        ("max_num_seqs", "engine_args.max_num_seqs: set rollout.slots instead"),
        ("data_parallel_size", "set rollout.replicas instead"),
        ("logprobs_mode", "is always 'processed_logprobs' here: log-probs are those of the distribution sampled from"),
        ("pipeline_parallel_size", "cannot be set: only tensor parallel workers receive weights"),
    ],
)
def test_an_invalid_engine_argument_is_refused_with_advice(name, message):
    with pytest.raises(ConfigError, match=r"^rollout\.vllm\.engine_args\.") as refused:
        engine_args(config_with(engine_args={name: 1}), NAMES, is_cpu=False)

    assert message in str(refused.value)


def test_a_vllm_without_a_needed_argument_is_refused():
    with pytest.raises(ConfigError, match="has no 'logprobs_mode'"):
        engine_args(config_with(), NAMES - {"logprobs_mode"}, is_cpu=False)


def test_optional_arguments_may_be_missing():
    assert "use_tqdm_on_load" not in engine_args(config_with(), NAMES - {"use_tqdm_on_load"}, is_cpu=False)


def test_sampling_masks_need_a_runner_that_records_them():
    config = replace(config_with(), sampling=SamplingConfig(top_k=20, replay_mask=True))

    assert engine_args(config, NAMES, is_cpu=False)["return_sampling_mask"] is True
    assert "return_sampling_mask" not in engine_args(config_with(), NAMES, is_cpu=False)
    with pytest.raises(ConfigError, match=r"sampling\.replay_mask with .* which runs on CUDA devices only"):
        engine_args(config, NAMES, is_cpu=True)
    with pytest.raises(ConfigError, match="which the installed vLLM lacks; install vLLM"):
        engine_args(config, NAMES - {"return_sampling_mask"}, is_cpu=False)


def test_experts_need_a_runner_that_records_them():
    config = replace(config_with(), rollout=Rollout(engine="vllm", replay_routes=True))

    assert engine_args(config, NAMES, is_cpu=False)["enable_return_routed_experts"] is True
    with pytest.raises(ConfigError, match=r"rollout\.replay_routes with .* which runs on CUDA devices only"):
        engine_args(config, NAMES, is_cpu=True)


def test_the_installed_vllm_knows_every_name_that_is_refused_or_set():
    arg_utils = pytest.importorskip("vllm.engine.arg_utils")
    known = arg_utils.AsyncEngineArgs.__dataclass_fields__

    assert {*CONFIGURED, *FIXED, *UNSUPPORTED} <= known.keys()


def test_the_worker_extension_is_where_it_is_said_to_be():
    module = FIXED["worker_extension_cls"][0].rpartition(".")[0]

    assert Path(*module.split(".")).with_suffix(".py").name == "worker.py"


def test_a_model_that_reads_pictures_needs_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_vision_model(tmp_path)
    monkeypatch.setattr(arguments, "find_spec", lambda name: SimpleNamespace(name=name))
    assert arguments.reads_pictures(str(tmp_path))
    monkeypatch.setattr(arguments, "find_spec", lambda name: None if name == "torchvision" else find_spec(name))
    with pytest.raises(ConfigError, match="the model reads pictures, for which vLLM needs torchvision"):
        arguments.reads_pictures(str(tmp_path))


def test_a_text_model_needs_none(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "find_spec", lambda _: None)
    assert not arguments.reads_pictures(str(toy / "model"))
