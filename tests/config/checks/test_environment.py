"""An environment or a replay that cannot work, and settings that nothing reads, are answered with one sentence."""

from typing import Any

import pytest

from asyncrl.config.checks.check import advice
from asyncrl.config.checks.environment import check_experts
from asyncrl.config.sections.environment import TOOLS
from asyncrl.episodes.worker.load import BUILT_IN
from asyncrl.errors import ConfigError
from tests.config.configs import made, refused

TILL = {"function": "till.py:Till"}


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"environment": TILL | {"tools": ["calculator"]}},
            "environment.function and environment.tools are both set, but one of them answers the policy; remove one",
        ),
        (
            {"environment": {"tools": ["calculator"], "command": ["agent"]}},
            "environment.tools and environment.command are both set, but one of them answers the policy; remove one",
        ),
        (
            {"environment": {"function": "till"}},
            "environment.function is 'till', expected path/to/file.py:name or package.module:name",
        ),
        (
            {"environment": {"command": [""]}},
            "environment.command begins with an empty text, expected a program and its arguments",
        ),
        (
            {"environment": {"command": ["agent"], "options": {"size": 3}}},
            "environment.options are arguments of environment.function, which is not set; remove them",
        ),
        (
            {"environment": {"tools": ["pyton"]}},
            "environment.tools[0] is 'pyton': did you mean 'python'? (or path/to/file.py:name, or mcp:COMMAND)",
        ),
        (
            {"environment": {"tools": ["python", "mcp:server --all", "python"]}},
            "environment.tools names 'python' twice; remove one",
        ),
        (
            {"environment": {"tools": ["python"], "tool_parser": "none"}},
            "environment.tool_parser='none' reads no calls, so environment.tools are never called; use 'auto'",
        ),
        (
            {"environment": TILL | {"gateway_ignores": ["tools", "tool_choice"]}},
            "environment.gateway_ignores names 'tool_choice', which is answered without it; remove it, or put it into "
            "environment.gateway_refuses",
        ),
        (
            {"environment": TILL | {"container": {"warm": 2}}},
            "environment.container is only read with environment.container.image; set it",
        ),
        (
            {"environment": TILL | {"container": {"image": "row", "warm": 2}}},
            "environment.container.warm keeps containers of one image ready, but image = 'row' has one for each row; "
            "remove one of them",
        ),
        (
            {"environment": TILL | {"container": {"image": "debian", "command": []}}},
            "environment.container.command is empty, expected a program that keeps a container alive",
        ),
        (
            {"environment": TILL | {"container": {"image": "debian", "mounts": ["data:/data"]}}},
            "environment.container.mounts[0] is 'data:/data', expected /SOURCE:/TARGET or /SOURCE:/TARGET:ro",
        ),
        (
            {"environment": {"tools": ["shell"]}},
            "environment.tools names 'shell', which runs in the container of the episode, and there is none; set "
            "environment.container.image, or use 'python', which has a sandbox of its own",
        ),
        (
            {"environment": {"command": ["agent"], "container": {"image": "debian", "snapshot": "turn"}}},
            "environment.container.snapshot saves containers between turns, but environment.command is a program that "
            "runs again from its beginning; use 'none'",
        ),
        (
            {"environment": TILL | {"history": "as_template"}, "data": {"truncation": "left"}},
            "environment.history='as_template' renders whole conversations again, which data.truncation='left' cannot "
            "cut; use 'error', or history='as_sampled'",
        ),
        (
            {"environment": TILL | {"max_tokens": 100}, "sampling": {"max_tokens": 101}},
            "sampling.max_tokens is 101 for one turn, more than environment.max_tokens = 100 for a whole episode; "
            "lower it, or raise environment.max_tokens",
        ),
        (
            {
                "environment": TILL | {"max_tokens": 100},
                "sampling": {"max_tokens": 100},
                "evaluation": {"max_tokens": 101},
            },
            "evaluation.max_tokens is 101 for one turn, more than environment.max_tokens = 100 for a whole episode; "
            "lower it, or raise environment.max_tokens",
        ),
        (
            {"environment": {"tools": ["calculator"], "seats": 2}},
            "environment.seats is 2, but environment.tools answer whoever called them; use environment.function, or "
            "remove seats",
        ),
        ({"environment": TILL | {"seats": 17}}, "environment.seats is 17, expected at most 16"),
        (
            {"environment": TILL | {"seats": 2}, "reward": {"function": "exact"}},
            "environment.seats is 2, but reward.function='exact' judges an episode with one number, which is no seat's "
            "own; use reward.function='episode', and let the environment reward each seat",
        ),
        (
            {"environment": TILL | {"seats": 2}, "reward": {"parts": [{"name": "a", "function": "episode"}]}},
            "environment.seats is 2, but reward.parts judges an episode with one number, which is no seat's own; use "
            "reward.function='episode', and let the environment reward each seat",
        ),
        (
            {
                "environment": TILL | {"seats": 2},
                "reward": {"function": "episode"},
                "algorithm": {"advantage": "remax"},
            },
            "environment.seats is 2, but algorithm.advantage='remax' compares with the one reward of a greedy episode; "
            "use an estimator that compares the episodes of a group",
        ),
        (
            {"environment": {"max_turns": 4}},
            "environment.max_turns is only read with environment.function, tools or command, and none is set; set one, "
            "or remove it",
        ),
        (
            {"rollout": {"episodes": 8}},
            "rollout.episodes is only read with an [environment]; remove it, or set one",
        ),
        (
            {"reward": {"function": "episode"}},
            "reward.function='episode' takes the word of an [environment], and there is none; set one",
        ),
        (
            {"reward": {"parts": [{"name": "a", "function": "math"}, {"name": "b", "function": "episode"}]}},
            "reward.parts[1].function='episode' takes the word of an [environment], and there is none; set one",
        ),
        (
            {"environment": {"tools": ["calculator"]}, "reward": {"function": "episode"}},
            "reward.function='episode' takes the environment's word, but environment.tools give no reward; name a "
            "function that judges the last turn, or use environment.function",
        ),
    ],
)
def test_a_contradiction_is_one_sentence(sections: dict[str, Any], sentence: str) -> None:
    assert refused(**sections) == sentence


@pytest.mark.parametrize(
    "sections",
    [
        {"environment": TILL | {"options": {"size": 3}}, "reward": {"function": "episode"}},
        {"environment": {"tools": ["calculator", "tools.py:search", "mcp:server"]}, "reward": {"function": "gsm8k"}},
        {"environment": {"command": ["agent", ""]}, "reward": {"function": "episode"}},
    ],
)
def test_every_kind_of_environment_is_accepted(sections: dict[str, Any]) -> None:
    assert made(**sections).environment.is_set


def test_pictures_of_an_episode_have_to_fit_into_its_payload() -> None:
    made(environment=TILL | {"picture_bytes": 24 << 20, "pictures": 0})
    assert "environment.picture_bytes" in refused(environment=TILL | {"picture_bytes": 32 << 20})


def test_the_tools_by_name_are_those_that_a_worker_knows() -> None:
    assert TOOLS == BUILT_IN


def test_fewer_episodes_than_slots_are_advised_against() -> None:
    few = made(environment=TILL, rollout={"episodes": 16, "slots": 64})
    assert advice(few) == [
        "rollout.episodes is 16, below rollout.slots = 64: slots stay empty, and more so while environments think; 0 "
        "takes twice the slots"
    ]
    assert advice(made(environment=TILL, rollout={"episodes": 64, "slots": 64})) == []
    assert advice(made(environment=TILL)) == []


SYNCHRONOUS = {"schedule": {"staleness": 0.0}}
DECOUPLED = {"algorithm": {"correction": {"mode": "decoupled"}}}
VLLM = {"rollout": {"engine": "vllm"}}


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
    with pytest.raises(ConfigError) as raised:
        made(sampling=sampling, **others)
    assert message in str(raised.value)


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
