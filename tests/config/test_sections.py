"""Every knob is bounded, and values that contradict each other are one sentence before anything starts."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import sections as module
from asyncrl.config.run_file import decode
from asyncrl.config.sections import Config, Schedule, Section
from asyncrl.errors import ConfigError


def made(**sections: dict[str, Any]) -> Config:
    least: dict[str, dict[str, Any]] = {"model": {"path": "m"}, "data": {"train": "t"}}
    return decode({**sections, **{key: least[key] | sections.get(key, {}) for key in least}})


def refused(**sections: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        made(**sections)
    return str(raised.value)


# ── where a value comes from ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"data": {"train": []}}, "data.train is empty; name a parquet or JSONL file"),
        (
            {"data": {"train": ["a", "b", "a"]}},
            "data.train names 'a' twice; for more of a file set data.ratios",
        ),
        (
            {"data": {"train": ["a", "b"], "ratios": [1]}},
            "data.ratios has 1 numbers, but data.train 2 files; give one for each",
        ),
        (
            {"data": {"filter_overlong_prompts": True, "truncation": "left"}},
            "data.filter_overlong_prompts never happens: with truncation='left' no prompt is too long; use one of them",
        ),
        (
            {"data": {"chat_template_kwargs": {"enable_thinking": False, "tokenize": False}}},
            "data.chat_template_kwargs.tokenize is set by asyncrl itself; remove it",
        ),
        (
            {"data": {"train": ["a", "b"]}, "model": {"scratch": {"recipe": "random"}}},
            "model.scratch makes or reads one file each of data.train and data.held_out; name only one",
        ),
        (
            {"schedule": {"group_size": 1}},
            "schedule.group_size is 1, but algorithm.advantage='grpo' compares the trajectories of "
            "a group; use at least 2",
        ),
        (
            {"schedule": {"on_straggler": "reissue"}},
            "schedule.on_straggler='reissue' is only read with schedule.max_staleness; set it",
        ),
        (
            {"schedule": {"max_staleness": 1, "staleness": 1.5, "order": "completion"}},
            "schedule.max_staleness is 1, but staleness=1.5 admits 40 groups at one version, more than 2 consume: "
            "waiting cannot keep the bound; use max_staleness=2, or on_straggler='reissue'",
        ),
        (
            {"schedule": {"max_staleness": 1, "on_straggler": "train"}},
            "schedule.on_straggler='train' never happens: with order='fifo' and staleness=1 no group gets older than "
            "max_staleness=1; remove it, or use order='completion'",
        ),
        (
            {"rollout": {"vllm": {"enforce_eager": True}}},
            "rollout.vllm.enforce_eager is only read with engine='vllm', not 'transformers'; remove it",
        ),
        (
            {"rollout": {"device": "npu"}},
            "rollout.device is 'npu', but rollout.engine='transformers' decodes on the CPU; use engine='vllm'",
        ),
        (
            {"rollout": {"engine": "vllm", "vllm": {"max_model_len": 500}}},
            "rollout.vllm.max_model_len is 500, but one trajectory may have 640 tokens (data.max_prompt_tokens + "
            "sampling.max_tokens, or evaluation's); raise it, or leave it out",
        ),
        (
            {
                "reward": {"parts": [{"name": "accuracy", "function": "math"}]},
                "algorithm": {"advantage": "gdpo", "reward_weights": {"acuracy": 1.0}},
            },
            "algorithm.reward_weights names 'acuracy', which no reward.parts gives: did you mean 'accuracy'?",
        ),
        (
            {"schedule": {"filter_metric": "correct"}},
            "schedule.filter_metric is only read with filter='zero_variance'; remove it",
        ),
        (
            {"schedule": {"filter": "zero_variance", "group_size": 1}},
            "schedule.filter='zero_variance' compares the trajectories of a group, but schedule.group_size is 1; use "
            "at least 2",
        ),
        (
            {"schedule": {"filter_patience": 9}},
            "schedule.filter_patience is only read with filter='zero_variance'; remove it",
        ),
        (
            {"evaluation": {"samples": 4}},
            "evaluation.samples is 4, but evaluation.temperature is 0: greedy completions of a prompt are all equal; "
            "use a temperature above 0, or one sample",
        ),
        (
            {"evaluation": {"top_p": 0.9}},
            "evaluation.top_p is only read with a temperature above 0; remove it",
        ),
        (
            {"sampling": {"temperature": 0.0}},
            "sampling.temperature is 0: greedy trajectories of a group are all equal; use a value above 0",
        ),
        (
            {"algorithm": {"dual_clip": 1.0}},
            "algorithm.dual_clip is 1: at or below 1 it would cut the loss of an unchanged policy; "
            "use a value above 1, or "
            "0 to switch it off",
        ),
        (
            {"algorithm": {"aggregation_norm": 2.0}},
            "algorithm.aggregation_norm is only read with aggregation='seq-mean-token-sum-norm', "
            "not 'token-mean'; remove it",
        ),
        (
            {"reward": {"function": "exact", "parts": [{"name": "a", "function": "gsm8k"}]}},
            "reward.function and reward.options are not read beside reward.parts; make them a part",
        ),
        (
            {"reward": {"parts": [{"name": "a", "function": "gsm8k"}, {"name": "a", "function": "exact"}]}},
            "reward.parts[1].name is 'a': it names a metric, and is taken",
        ),
        (
            {"reward": {"parts": [{"name": "correct", "function": "gsm8k"}]}},
            "reward.parts[0].name is 'correct': it names a metric, and is taken",
        ),
        (
            {"reward": {"parts": [{"name": "a", "function": "gsm8k", "weight": math.inf}]}},
            "reward.parts[0].weight is inf: expected a finite number",
        ),
        (
            {"trainer": {"min_lr_ratio": 0.1}},
            "trainer.min_lr_ratio is only read with lr_schedule='cosine'; remove it",
        ),
        (
            {"trainer": {"min_lr_ratio": 1.5, "lr_schedule": "cosine"}},
            "trainer.min_lr_ratio is 1.5: the cosine would end above trainer.lr; use at most 1",
        ),
        (
            {"trainer": {"mini_batches": 5}, "schedule": {"groups_per_step": 4}},
            "trainer.mini_batches is 5, but a step has 4 groups (schedule.groups_per_step), which stay whole; use at "
            "most as many",
        ),
        (
            {"trainer": {"warmup_steps": 9}, "run": {"steps": 8}},
            "trainer.warmup_steps is 9, longer than the run (8 steps)",
        ),
        (
            {"checkpoint": {"every_steps": 3}, "schedule": {"steps_per_publish": 2}},
            "checkpoint.every_steps is 3: a checkpoint holds the weights of one policy version, which there is "
            "every 2 steps (schedule.steps_per_publish); use a multiple of it",
        ),
        (
            {"checkpoint": {"best_metric": "reward"}},
            "checkpoint.best_metric is only read with keep_best=true; remove it",
        ),
        (
            {"checkpoint": {"keep_best": True, "every_steps": 10}},
            "checkpoint.keep_best compares checkpoints on data.held_out, which is empty; name a file",
        ),
        (
            {"checkpoint": {"keep_best": True, "every_steps": 10, "keep": 1}, "data": {"held_out": "h"}},
            "checkpoint.keep is 1: with keep_best a checkpoint would go before its evaluation begins; use at least 2",
        ),
        (
            {"checkpoint": {"keep_best": True, "every_steps": 15}, "data": {"held_out": "h"}},
            "checkpoint.keep_best needs a checkpoint of every version that is evaluated, but there is one every 15 "
            "steps, and an evaluation every 10 (evaluation.every_versions); use the same number for both",
        ),
        (
            {"checkpoint": {"keep_best": True}, "data": {"held_out": "h"}},
            "checkpoint.keep_best needs a checkpoint of every version that is evaluated, but there is one every 0 "
            "steps, and an evaluation every 10 (evaluation.every_versions); use the same number for both",
        ),
        (
            {"trainer": {"max_tokens_per_micro_batch": 639}},
            "trainer.max_tokens_per_micro_batch is 639, but one trajectory may have 640 tokens "
            "(data.max_prompt_tokens + "
            "sampling.max_tokens)",
        ),
        (
            {"weights": {"staging": "bucket", "delta": True}, "rollout": {"engine": "vllm"}},
            "weights.delta needs the version before, of which a rollout with weights.staging='bucket' keeps no copy; "
            "use one of them",
        ),
        (
            {"weights": {"staging": "bucket"}},
            "weights.staging='bucket' replaces weights while decoding stands still, which "
            "rollout.engine='transformers' cannot do; use staging='whole'",
        ),
        (
            {"broker": {"bind": "tcp://0.0.0.0:5555"}},
            "broker.bind is 'tcp://0.0.0.0:5555': only loopback addresses (tcp://127.0.0.1:PORT, "
            "ipc://PATH) are served, "
            "because connections are not yet authenticated",
        ),
        (
            {"broker": {"beat_s": 1.0, "notice_s": 2.5}},
            "broker.notice_s is 2.5 s, less than three beats of 1 s",
        ),
        (
            {"broker": {"notice_s": 3.0, "node_ttl_s": 2.5}},
            "broker.node_ttl_s is 2.5 s, less than broker.notice_s = 3 s: a node would be lost before it is noticed",
        ),
    ],
    ids=lambda part: str(part)[:40],
)
def test_values_that_contradict_each_other_are_one_sentence(sections: dict[str, Any], sentence: str) -> None:
    assert refused(**sections) == sentence


@pytest.mark.parametrize(
    "sections",
    [
        {"schedule": {"max_staleness": 1}},
        {"schedule": {"max_staleness": 0, "staleness": 0.1, "groups_per_step": 9}},
        {"schedule": {"max_staleness": 0, "on_straggler": "reissue"}},
        {"schedule": {"max_staleness": 0, "on_straggler": "train"}},
        {"schedule": {"max_staleness": 3, "on_straggler": "reissue", "order": "completion"}},
        {"schedule": {"filter": "zero_variance", "filter_metric": "correct", "filter_patience": 9}},
        {"algorithm": {"dual_clip": 0.0}},
        {"algorithm": {"dual_clip": 1.01}},
        {"algorithm": {"aggregation": "seq-mean-token-sum-norm", "aggregation_norm": 2.0}},
        {"trainer": {"min_lr_ratio": 1.0, "lr_schedule": "cosine"}},
        {"trainer": {"warmup_steps": 8}, "run": {"steps": 8}},
        {"trainer": {"max_tokens_per_micro_batch": 640}},
        {"broker": {"bind": "ipc:///tmp/broker", "beat_s": 1.0, "notice_s": 3.0, "node_ttl_s": 3.0}},
    ],
    ids=str,
)
def test_values_just_inside_the_bounds_are_taken(sections: dict[str, Any]) -> None:
    made(**sections)


def test_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        made().run.steps = 1  # type: ignore[misc]


# ── rules ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("staleness", "groups", "steps", "window"),
    [(0.0, 16, 1, 16), (1.0, 16, 1, 32), (0.5, 5, 1, 7), (0.1, 10, 3, 33), (2.0, 4, 4, 48)],
)
def test_the_window_by_hand(staleness: float, groups: int, steps: int, window: int) -> None:
    schedule = Schedule(staleness=staleness, groups_per_step=groups, steps_per_publish=steps)
    assert schedule.window == window


@given(st.integers(0, 400), st.integers(1, 1000), st.integers(1, 20))
def test_the_window_is_exact_where_floating_point_is_not(hundredths: int, groups: int, steps: int) -> None:
    schedule = Schedule(staleness=hundredths / 100, groups_per_step=groups, steps_per_publish=steps)
    assert schedule.window == (100 + hundredths) * groups * steps // 100
    assert schedule.window >= groups * steps


def test_sampling_travels_as_it_was_set() -> None:
    sampling = made(sampling={"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["x"]}).sampling
    assert msgspec.structs.asdict(sampling.sampling()) == msgspec.structs.asdict(sampling)


def test_every_section_refuses_unknown_keys() -> None:
    sections = [thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, Section)]
    assert len(sections) > 10
    assert all(section.__struct_config__.forbid_unknown_fields for section in sections)


# ── corrections ─────────────────────────────────────────────────────────────────────────────


def corrected(loss: str = "clipped", **correction: Any) -> dict[str, Any]:
    return {"loss": loss, "correction": correction}


@pytest.mark.parametrize(
    ("algorithm", "sentence"),
    [
        (
            corrected(preset="decoupled_geo_rs_tis"),
            "preset: there is no preset 'decoupled_geo_rs_tis'; did you mean 'decoupled_geo_rs_seq_tis'?",
        ),
        (
            corrected(preset="decoupled_geo_rs", rejection="token_k1"),
            "preset='decoupled_geo_rs' settles all of the section, but rejection is set beside it; remove one or the "
            "other",
        ),
        (
            corrected(preset="bypass_pg_is"),
            "preset='bypass_pg_is' goes with algorithm.loss='reinforce', not 'clipped'; set it",
        ),
        (
            corrected("gspo", preset="bypass_ppo_clip_geo_rs"),
            "preset='bypass_ppo_clip_geo_rs' goes with algorithm.loss='clipped', not 'gspo'; set it",
        ),
        (
            corrected(importance_threshold=2.0),
            "importance_threshold is only read with importance='token' or 'sequence'; remove it",
        ),
        (
            corrected(mode="decoupled", importance_normalize=True),
            "importance_normalize is only read with importance='token' or 'sequence'; remove it",
        ),
        (
            corrected(rejection="token_k1"),
            "rejection is only read with rejection_threshold; set it, or remove both",
        ),
        (
            corrected(rejection_threshold="0.5_2.0"),
            "rejection_threshold is only read with rejection; set it, or remove both",
        ),
        (
            corrected(rejection="token_k1,token_k2", rejection_threshold="1,2,3"),
            "rejection_threshold: expected one for each of token_k1, token_k2, or one for all, got 3",
        ),
        (
            corrected(mode="decoupled", importance="token", importance_threshold="5_0.5"),
            "importance_threshold is '5_0.5': the lower bound is above the upper one",
        ),
        (
            corrected("cispo", importance="token"),
            "importance='token' would weigh the sampler's tokens twice: with mode='bypass' the ratio in loss='cispo' "
            "does it already; use mode='decoupled', or loss='reinforce'",
        ),
        (
            corrected("reinforce", importance="token", importance_normalize=True),
            "importance_normalize needs the mean over a step of weights that, with mode='bypass', change within it; "
            "use mode='decoupled'",
        ),
    ],
    ids=lambda part: str(part)[:60],
)
def test_corrections_that_cannot_be_are_one_sentence(algorithm: dict[str, Any], sentence: str) -> None:
    assert refused(algorithm=algorithm) == f"algorithm.correction.{sentence}"


@pytest.mark.parametrize(
    "algorithm",
    [
        corrected(mode="decoupled"),
        corrected("gspo", mode="decoupled", importance="token", importance_threshold=3, importance_normalize=True),
        corrected("reinforce", importance="sequence"),
        corrected("my.py:loss", importance="sequence"),
        corrected("gspo", rejection="token_k1, seq_max_k3", rejection_threshold="1.5"),
        corrected("cispo", preset="sequence_tis_geometric_rs"),
        corrected("clipped", preset="bypass_ppo_clip"),
        corrected("reinforce", preset="bypass_pg_token_icepop"),
    ],
    ids=str,
)
def test_corrections_that_can_be_are_taken(algorithm: dict[str, Any]) -> None:
    made(algorithm=algorithm)
