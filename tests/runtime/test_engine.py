"""The configured engine is loaded with the configured sizes, on the devices that the process may use."""

import os
from pathlib import Path

import pytest
import torch

from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.runtime.rollout import load_engine


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_engine` changes these for the whole process."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.setenv(variable, "0,1")


def test_the_transformers_engine_on_a_cpu_sees_no_device_and_serves_the_longest_request(toy: Path) -> None:
    config = decode(
        {
            "model": {"path": str(toy / "model")},
            "data": {"train": "t", "max_prompt_tokens": 10},
            "sampling": {"max_tokens": 6},
            "rollout": {"device": "cpu", "slots": 3},
        }
    )
    engine = load_engine(config)

    assert isinstance(engine, TransformersEngine)
    assert engine._max_tokens == config.longest_request == 16
    assert [os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")] == ["", ""]


def test_too_few_devices_are_refused_before_anything_is_loaded_or_changed() -> None:
    vllm = {"engine": "vllm", "device": "cuda", "vllm": {"tensor_parallel_size": 4}}
    config = decode({"model": {"path": "m"}, "data": {"train": "t"}, "rollout": vllm})
    with pytest.raises(ConfigError, match="needs 4 devices, but this process may use 2"):
        load_engine(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_the_transformers_engine_is_loaded_on_the_device_that_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr(TransformersEngine, "load", lambda _, **options: loaded.append(options))
    raw = {"model": {"path": "m", "dtype": "bfloat16"}, "data": {"train": "t"}, "rollout": {"device": "npu"}}
    load_engine(decode(raw))
    assert (loaded[0]["device"], loaded[0]["dtype"]) == ("npu:0", "bfloat16")
