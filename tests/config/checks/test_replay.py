from typing import Any

import pytest

from asyncrl.config.checks.check import advice
from asyncrl.config.checks.environment import check_experts
from asyncrl.config.config import Config
from asyncrl.config.run_file import decode
from asyncrl.errors import ConfigError

SYNCHRONOUS = {"schedule": {"staleness": 0.0}}
DECOUPLED = {"algorithm": {"correction": {"mode": "decoupled"}}}
VLLM = {"rollout": {"engine": "vllm"}}


def made(**sections: Any) -> Config:
    data = {"train": "t"} | sections.pop("data", {})
    return decode({"model": {"path": "m"}, "data": data, **sections})


@pytest.mark.parametrize(
    ("sampling", "others", "message"),
    [
        ({"top_p": 0.9}, {}, "sampling.top_p is 0.9 with schedule.staleness = 1: "),
        ({"top_k": 20}, {}, "sampling.top_k is 20 with schedule.staleness = 1: "),
        ({"replay_mask": True}, {}, "sampling.replay_mask is only read with top_p below 1 or top_k above 0; remove it"),
        ({"replay_mask": True, "top_p": 0.9}, VLLM, "needs sampling.top_k above 0: vLLM records no mask without"),
        (
            {"replay_mask": True, "top_k": 9},
            VLLM | {"data": {"held_out": "h"}, "evaluation": {"temperature": 0.6}},
            "needs evaluation.top_k above 0",
        ),
        (
            {"replay_mask": True, "top_k": 9},
            {"rollout": {"engine": "vllm", "device": "npu"}},
            "which runs on CUDA devices only, not on rollout.device='npu'; use rollout.engine='transformers'",
        ),
        (
            {},
            {"rollout": {"replay_routes": True}, "environment": {"tools": ["calculator"]}},
            "rollout.replay_routes with an [environment]: routes are recorded for one completion after its prompt",
        ),
        ({}, {"rollout": {"engine": "vllm", "device": "cpu", "replay_routes": True}}, "rollout.replay_routes with"),
    ],
)
def test_what_could_not_be_replayed_is_refused_in_one_sentence(
    sampling: dict[str, Any], others: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(sampling=sampling, **others)
    assert message in str(refused.value)


@pytest.mark.parametrize("others", [{}, SYNCHRONOUS, DECOUPLED], ids=["asynchronous", "synchronous", "decoupled"])
def test_with_replay_truncated_sampling_is_like_any_other(others: dict[str, Any]) -> None:
    assert advice(made(sampling={"top_p": 0.9, "top_k": 20, "replay_mask": True}, **others)) == []


def test_vllm_may_replay_with_bounded_masks_and_greedy_evaluations() -> None:
    made(sampling={"replay_mask": True, "top_p": 0.9, "top_k": 100}, data={"held_out": "h"}, **VLLM)


@pytest.mark.parametrize(
    ("others", "which"), [(SYNCHRONOUS, "so ratios begin below 1"), (DECOUPLED, "so importance weights begin below 1")]
)
def test_without_replay_truncated_sampling_that_is_allowed_is_advised_against(
    others: dict[str, Any], which: str
) -> None:
    (sentence,) = advice(made(sampling={"top_p": 0.9}, **others))
    assert sentence.startswith("sampling.top_p is 0.9: ")
    assert which in sentence
    assert "sampling.replay_mask = true" in sentence


def test_asynchronous_training_of_experts_without_replay_is_advised_against() -> None:
    (sentence,) = check_experts(made(), 128)
    assert sentence.startswith("model.path=m is a mixture of 128 experts and schedule.staleness is 1: ")
    assert "rollout.replay_routes = true" in sentence
    assert check_experts(made(rollout={"replay_routes": True}), 128) == []
    assert check_experts(made(**SYNCHRONOUS), 128) == []
    assert check_experts(made(), 0) == []


def test_routes_of_a_dense_model_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"replay_routes is only read with a mixture of experts, and model\.path=m is"
    ):
        check_experts(made(rollout={"replay_routes": True}), 0)
