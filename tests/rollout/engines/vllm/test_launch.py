"""Arguments that depend on the machine, and errors of vLLM's own check as sentences. No engine is started."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel, ValidationError, field_validator
from transformers import Qwen3Config

pytest.importorskip("vllm")

from vllm.v1.engine.async_llm import AsyncLLM

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.environment import Environment
from asyncrl.config.sections.rollout import Rollout, Vllm
from asyncrl.config.sections.run import Model
from asyncrl.rollout.engines.vllm import launch
from asyncrl.rollout.engines.vllm.load import LoadMeter

CONFIG = Config(model=Model(path="/models/one"), data=Data(train="prompts.jsonl"), rollout=Rollout(engine="vllm"))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of each launch."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(launch, "_vllm_config", seen.append)
    monkeypatch.setattr(launch, "_check_heads", lambda _: None)
    monkeypatch.setattr(AsyncLLM, "from_vllm_config", lambda *_, **__: None)
    return seen


def test_no_two_engines_draw_requests_without_a_seed_from_the_same_one(launched: list[dict[str, Any]]) -> None:
    for _ in range(3):
        launch.launch(CONFIG)

    assert len({args["seed"] for args in launched}) == 3
    assert all(0 <= args["seed"] < 2**32 for args in launched), "numpy takes no other"


def test_on_an_npu_weights_keep_the_layout_that_takes_new_ones(
    launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = replace(CONFIG.rollout, vllm=Vllm(engine_args={"additional_config": {"enable_cpu_binding": False}}))
    launch.launch(replace(CONFIG, rollout=theirs))
    monkeypatch.setattr(launch, "current_platform", SimpleNamespace(device_type="npu", is_cpu=lambda: False))
    launch.launch(CONFIG)
    launch.launch(replace(CONFIG, rollout=theirs))

    elsewhere, npu, npu_with_theirs = (args.get("additional_config") for args in launched)
    assert elsewhere == {"enable_cpu_binding": False}
    assert npu == {"weight_nz_mode": 0}
    assert npu_with_theirs == {"weight_nz_mode": 0, "enable_cpu_binding": False}


def test_vllm_gets_the_overrides_of_the_model_as_changes_to_its_config(
    launched: list[dict[str, Any]], tmp_path: Path
) -> None:
    Qwen3Config(max_position_embeddings=64, rope_theta=5e5).save_pretrained(tmp_path)
    linear = {"rope_type": "linear", "factor": 2.0}
    overrides = {"max_position_embeddings": 128, "rope_scaling": linear}
    launch.launch(replace(CONFIG, model=Model(path=str(tmp_path), overrides=overrides)))
    launch.launch(CONFIG)
    expected = {"max_position_embeddings": 128, "rope_parameters": {"rope_theta": 5e5, **linear}}
    assert [args.get("hf_overrides") for args in launched] == [expected, None]


class Arguments(BaseModel):
    max_model_len: int

    @field_validator("max_model_len")
    @classmethod
    def _check(cls, value: int) -> int:
        raise ValueError("max_model_len is too long")


def test_the_reason_of_a_validation_error_is_its_message_alone() -> None:
    with pytest.raises(ValidationError) as refused:
        Arguments(max_model_len=3)

    assert launch._reason(refused.value) == "max_model_len is too long"


def test_the_reason_of_any_other_error_is_its_message() -> None:
    assert launch._reason(OSError("no such file")) == "no such file"


def test_a_model_that_reads_pictures_sets_no_memory_aside_for_videos(launched: list[dict[str, Any]]) -> None:
    limited = replace(CONFIG.rollout, vllm=Vllm(engine_args={"limit_mm_per_prompt": {"image": 2, "video": 0}}))
    launch.launch(CONFIG)
    launch.launch(CONFIG, with_pictures=True)
    launch.launch(replace(CONFIG, rollout=limited), with_pictures=True)

    assert [args.get("limit_mm_per_prompt") for args in launched] == [None, {"video": 0}, {"image": 2, "video": 0}]


def test_load_is_measured_only_for_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    loggers: list[object] = []
    monkeypatch.setattr(launch, "_vllm_config", lambda _: None)
    monkeypatch.setattr(launch, "_check_heads", lambda _: None)
    monkeypatch.setattr(AsyncLLM, "from_vllm_config", lambda *_, stat_loggers, **__: loggers.append(stat_loggers))

    launch.launch(CONFIG)
    launch.launch(replace(CONFIG, environment=Environment(tools=["calculator"])))

    assert loggers == [None, [LoadMeter]]
