"""Values that contradict each other are answered with one sentence before anything starts."""

import math
from typing import Any

import pytest

from asyncrl.config.checks.check import advice
from asyncrl.config.run_file import decode
from tests.config.configs import made, refused


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"run": {"steps": 8, "skip_steps": [8, 9]}},
            "run.skip_steps has 9, but the run has the steps 1 to 8; remove it",
        ),
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
            "data.filter_overlong_prompts has no effect: with truncation='left' no prompt is too long; use one of them",
        ),
        (
            {"data": {"chat_template_kwargs": {"enable_thinking": False, "tokenize": False}}},
            "data.chat_template_kwargs.tokenize is set by asyncrl itself; remove it",
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
            "schedule.max_staleness is 1, but staleness=1.5 admits 40 groups at one version, more than 2 versions "
            "consume: waiting cannot keep the bound; use max_staleness=2, or on_straggler='reissue'",
        ),
        (
            {"schedule": {"max_staleness": 1, "on_straggler": "train"}},
            "schedule.on_straggler='train' has no effect: with order='fifo' and staleness=1 no group exceeds "
            "max_staleness=1; remove it, or use order='completion'",
        ),
        (
            {"schedule": {"partial_rollout": "turn"}},
            "schedule.partial_rollout='turn' finishes turns, but without an [environment] there is one; use false, "
            "or set the environment",
        ),
        (
            {"schedule": {"order_window": 16}},
            "schedule.order_window is only read with order='windowed'; remove it, or set the order",
        ),
        (
            {"schedule": {"max_staleness": 2, "order": "windowed", "order_window": 18}},
            "schedule.order_window is 18: so many groups may pass a slow one that it is trained on 3 versions late, "
            "more than max_staleness=2; use at most 17, or leave it out",
        ),
        (
            {"schedule": {"max_staleness": 5, "on_straggler": "reissue", "order": "windowed"}},
            "schedule.on_straggler='reissue' has no effect: with order='windowed' and staleness=1 no group exceeds "
            "max_staleness=5; remove it, or use order='completion'",
        ),
        (
            {"schedule": {"max_staleness": 1, "on_straggler": "mask"}},
            "schedule.on_straggler='mask' has no effect: with order='fifo' and staleness=1 no group exceeds "
            "max_staleness=1; remove it, or use order='completion'",
        ),
        (
            {"schedule": {"on_straggler": "mask"}},
            "schedule.on_straggler='mask' is only read with schedule.max_staleness; set it",
        ),
        (
            {"environment": {"function": "till.py:Till"}, "trainer": {"max_tokens_per_micro_batch": 8703}},
            "trainer.max_tokens_per_micro_batch is 8703, but one trajectory may have 8704 tokens "
            "(data.max_prompt_tokens + environment.max_tokens)",
        ),
        (
            {
                "environment": {"function": "till.py:Till"},
                "rollout": {"engine": "vllm", "vllm": {"max_model_len": 8000}},
            },
            "rollout.vllm.max_model_len is 8000, but one trajectory may have 8704 tokens (data.max_prompt_tokens + "
            "environment.max_tokens); raise it, or leave it out",
        ),
        (
            {"rollout": {"vllm": {"enforce_eager": True}}},
            "rollout.vllm.enforce_eager is only read with engine='vllm', not 'transformers'; remove it",
        ),
        (
            {"rollout": {"engine": "vllm", "vllm": {"max_model_len": 500}}},
            "rollout.vllm.max_model_len is 500, but one trajectory may have 640 tokens (data.max_prompt_tokens + "
            "sampling.max_tokens or evaluation.max_tokens); raise it, or leave it out",
        ),
        (
            {
                "reward": {"parts": [{"name": "accuracy", "function": "math"}]},
                "algorithm": {"advantage": "gdpo", "reward_weights": {"acuracy": 1.0}},
            },
            "algorithm.reward_weights names 'acuracy', which no reward.parts returns: did you mean 'accuracy'?",
        ),
        (
            {"algorithm": {"advantage": "gdpo", "reward_weights": {"score": 1.0}}},
            "algorithm.reward_weights names 'score': use 'reward', the reward of the verdict",
        ),
        (
            {
                "reward": {"parts": [{"name": "terse", "function": "length.py:terse"}]},
                "schedule": {"filter": "zero_variance", "filter_metric": "reward"},
            },
            "schedule.filter_metric names 'reward', which no reward.parts returns: expected one of: correct, terse",
        ),
        (
            {"critic": {"lr": 1e-4}},
            "[critic] is only read with algorithm.advantage='gae', not 'grpo'; remove it",
        ),
        (
            {"schedule": {"filter_metric": "correct"}},
            "schedule.filter_metric is only read with filter='zero_variance'; remove it",
        ),
        (
            {
                "schedule": {"filter": "zero_variance", "group_size": 1},
                "algorithm": {"advantage": "reinforce_plus_plus"},
            },
            "schedule.filter='zero_variance' compares the trajectories of a group, but schedule.group_size is 1; use "
            "at least 2",
        ),
        (
            {"schedule": {"filter_patience": 9}},
            "schedule.filter_patience is only read with filter='zero_variance'; remove it",
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
            "reward.function and reward.options are not read when reward.parts is set; make them a part",
        ),
        (
            {"reward": {"parts": [{"name": "a", "function": "gsm8k"}, {"name": "a", "function": "exact"}]}},
            "reward.parts[1].name is 'a': it names a metric and is taken; choose another name",
        ),
        (
            {"reward": {"parts": [{"name": "correct", "function": "gsm8k"}]}},
            "reward.parts[0].name is 'correct': it names a metric and is taken; choose another name",
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
            {"trainer": {"ranks": 4, "shard_size": 3}},
            "trainer.shard_size is 3, which does not divide the trainer's 4 ranks; use a divisor of trainer.ranks = 4, "
            "or 0 to shard over all ranks",
        ),
        (
            {"trainer": {"ranks": 6, "sequence_parallel": 4}},
            "trainer.sequence_parallel is 4, which does not divide the 6 ranks of a machine, which share rows with "
            "each other alone; use a divisor of trainer.ranks",
        ),
        (
            {"trainer": {"ranks": 4, "shard_size": 1, "expert_parallel": True}},
            "trainer.expert_parallel spreads experts over the ranks that share one copy of the model, but each rank "
            "has its own; raise trainer.ranks or trainer.shard_size, or remove it",
        ),
        (
            {"trainer": {"ranks": 8, "nodes": 3, "min_nodes": 2, "expert_parallel": True}},
            "trainer.expert_parallel with trainer.min_nodes = 2 needs as many ranks for each copy of the model with "
            "fewer machines; set trainer.shard_size, for example to 8 (trainer.ranks)",
        ),
        (
            {"trainer": {"nodes": 2, "min_nodes": 3}},
            "trainer.min_nodes is 3, more than trainer.nodes = 2; use at most as many",
        ),
        (
            {"trainer": {"nodes": 2, "wait_s": 5.0}},
            "trainer.wait_s is only read with trainer.min_nodes between 1 and trainer.nodes - 1: otherwise the trainer "
            "waits for all of its machines; remove it, or set min_nodes",
        ),
        (
            {"trainer": {"offload": ["moments", "moments"]}},
            "trainer.offload names 'moments' twice; remove one",
        ),
        (
            {"trainer": {"offload": ["parameters", "moments"]}},
            "trainer.offload names 'moments', which 'parameters' keeps on the host too, because the optimizer steps "
            "there; remove 'moments'",
        ),
        (
            {"trainer": {"ranks": 2, "expert_parallel": True, "offload": ["parameters"]}},
            "trainer.offload names 'parameters', but with trainer.expert_parallel experts compute where they are "
            "stored; remove one of them",
        ),
        (
            {"rollout": {"colocated": True}, "schedule": {"staleness": "auto"}},
            "schedule.staleness is 'auto' and rollout.colocated is true: no plan is fitted to devices that are used in "
            "turn; give a number",
        ),
        (
            {"schedule": {"staleness": "auto", "order": "windowed"}},
            "schedule.staleness is 'auto' with order = 'windowed' and no order_window, whose default follows the "
            "staleness; set order_window",
        ),
        (
            {"rollout": {"colocated": True}, "trainer": {"nodes": 2}},
            "rollout.colocated is true and trainer.nodes is 2: turns are for one machine; set trainer.nodes = 1",
        ),
        (
            {"trainer": {"offload": ["reference"]}},
            "trainer.offload names 'reference', but without algorithm.kl_coef there is no reference model; remove it",
        ),
        (
            {"trainer": {"offload": ["activations"]}},
            "trainer.offload names 'activations', the inputs of layers that trainer.gradient_checkpointing recomputes; "
            "set gradient_checkpointing to true or 'selective'",
        ),
        (
            {"trainer": {"lora": {"path": "adapter"}}},
            "trainer.lora.alpha, targets and path are only read with trainer.lora.rank above 0; set it, or remove them",
        ),
        (
            {"trainer": {"mini_batches": 5}, "schedule": {"groups_per_step": 4}},
            "trainer.mini_batches is 5, but a step has 4 groups (schedule.groups_per_step), which are never split; "
            "use at most as many",
        ),
        (
            {"trainer": {"warmup_steps": 9}, "run": {"steps": 8}},
            "trainer.warmup_steps is 9, longer than the run (8 steps); lower it, to 2 for instance, or make the "
            "run longer",
        ),
        (
            {"checkpoint": {"every_steps": 3}, "schedule": {"steps_per_publish": 2}},
            "checkpoint.every_steps is 3: a checkpoint holds the weights of one policy version, and a version "
            "is published every 2 steps (schedule.steps_per_publish); use a multiple of it",
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
            {"evaluation": {"answers": 8}},
            "evaluation.answers is 8, but data.held_out is empty, so there are no evaluations; name a file, or remove "
            "it",
        ),
        (
            {"checkpoint": {"keep_best": True, "every_steps": 10, "keep": 1}, "data": {"held_out": "h"}},
            "checkpoint.keep is 1: with keep_best a checkpoint would be deleted before its evaluation; use at least 2",
        ),
        (
            {"checkpoint": {"keep_best": True, "every_steps": 15}, "data": {"held_out": "h"}},
            "checkpoint.keep_best needs a checkpoint of every version that is evaluated, but checkpoints are every 15 "
            "steps and evaluations every 10 (evaluation.every_versions); set evaluation.every_versions to 15 or a "
            "multiple of it, or checkpoint.every_steps to 10",
        ),
        (
            {"checkpoint": {"keep_best": True}, "data": {"held_out": "h"}},
            "checkpoint.keep_best needs a checkpoint of every version that is evaluated, but checkpoints are every 0 "
            "steps and evaluations every 10 (evaluation.every_versions); set checkpoint.every_steps to 10",
        ),
        (
            {"trainer": {"max_tokens_per_micro_batch": 319, "ranks": 2, "sequence_parallel": 2}},
            "trainer.max_tokens_per_micro_batch is 319 on each of trainer.sequence_parallel = 2 ranks, but one "
            "trajectory may have 640 tokens (data.max_prompt_tokens + sampling.max_tokens)",
        ),
        (
            {"trainer": {"max_tokens_per_micro_batch": 639}},
            "trainer.max_tokens_per_micro_batch is 639, but one trajectory may have 640 tokens "
            "(data.max_prompt_tokens + "
            "sampling.max_tokens)",
        ),
        (
            {"weights": {"staging": "bucket", "delta": True}, "rollout": {"engine": "vllm"}},
            "weights.delta needs a copy of the previous version, which a rollout with weights.staging='bucket' does "
            "not keep; use one of them",
        ),
        (
            {"weights": {"staging": "bucket"}},
            "weights.staging='bucket' replaces weights while decoding is paused, which "
            "rollout.engine='transformers' cannot do; use staging='whole'",
        ),
        (
            {"weights": {"interface": "10.1.0.0/33"}},
            "weights.interface is '10.1.0.0/33': expected a network interface such as eth0, an address of it, or a "
            "network such as 10.1.0.0/16",
        ),
        (
            {"broker": {"bind": "tcp://localhost:99999"}},
            "broker.bind is 'tcp://localhost:99999': expected a port from 0 to 65535, got 99999",
        ),
        (
            {"broker": {"spool_bind": "tcp://localhost"}},
            "broker.spool_bind is 'tcp://localhost': expected tcp://HOST:PORT or ipc://PATH",
        ),
        (
            {"schedule": {"groups_per_step": 100_000_000, "group_size": 8, "staleness": 1.0}},
            "schedule: 200,000,000 groups of 8 trajectories are open at once, 1,600,000,000 in all, but the broker "
            "keeps at most 4,000,000 in memory, about 1 kB each; lower groups_per_step, group_size, steps_per_publish "
            "or staleness",
        ),
        (
            {"broker": {"spool": False, "spool_bind": "tcp://127.0.0.1:0"}},
            "broker.spool_bind is only read with broker.spool=true; remove it",
        ),
        (
            {"broker": {"beat_s": 1.0, "notice_s": 2.5}},
            "broker.notice_s is 2.5 s, less than three beats of 1 s",
        ),
        (
            {"broker": {"notice_s": 3.0, "node_ttl_s": 2.5}},
            "broker.node_ttl_s is 2.5 s, less than broker.notice_s = 3 s: a node would be "
            "declared lost before it is suspended",
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
        {"schedule": {"max_staleness": 0, "on_straggler": "mask"}},
        {"environment": {"function": "till.py:Till"}, "trainer": {"max_tokens_per_micro_batch": 8704}},
        {
            "environment": {"function": "till.py:Till"},
            "trainer": {"max_tokens_per_micro_batch": 4352, "ranks": 2, "sequence_parallel": 2},
        },
        {"schedule": {"max_staleness": 3, "on_straggler": "reissue", "order": "completion"}},
        {"schedule": {"partial_rollout": "turn"}, "environment": {"tools": ["calculator"]}},
        {"schedule": {"max_staleness": 2, "order": "windowed", "order_window": 17}},
        {"schedule": {"max_staleness": 2, "on_straggler": "reissue", "order": "windowed"}},
        {"schedule": {"filter": "zero_variance", "filter_metric": "correct", "filter_patience": 9}},
        {
            "reward": {"parts": [{"name": "terse", "function": "length.py:terse"}]},
            "algorithm": {"advantage": "gdpo", "reward_weights": {"reward": 1.0, "terse": 0.5, "terse.words": 0.1}},
        },
        {"critic": {"lr": 1e-4}, "algorithm": {"advantage": "gae"}},
        {"critic": {"lr": 1e-4}, "algorithm": {"advantage": "my.py:mine"}},
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
def test_values_just_inside_the_bounds_are_accepted(sections: dict[str, Any]) -> None:
    made(**sections)


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"trainer": {"device": "cuda"}}, ["trainer.device = 'cuda'"]),
        (
            {"trainer": {"device": "cuda"}, "rollout": {"device": "cuda"}},
            ["trainer.device and rollout.device = 'cuda'"],
        ),
        ({"trainer": {"device": "cuda"}, "model": {"dtype": "bfloat16"}}, []),
        ({"trainer": {"device": "npu"}}, []),
        ({}, []),
    ],
)
def test_float32_on_a_gpu_is_advised_against_in_one_sentence(sections: dict[str, Any], named: list[str]) -> None:
    raw = {"model": {"path": "m"} | sections.get("model", {}), "data": {"train": "t"}}
    sentences = advice(decode(raw | {key: value for key, value in sections.items() if key != "model"}))
    assert [one.split(" with ")[1].split(":")[0] for one in sentences] == named


def penalised(function: str, options: dict[str, int], **sections: dict[str, Any]) -> dict[str, Any]:
    parts = [{"name": "right", "function": "gsm8k"}, {"name": "short", "function": function, "options": options}]
    return {"reward": {"parts": parts}, "sampling": {"max_tokens": 100}, **sections}


@pytest.mark.parametrize(
    ("sections", "free", "limit"),
    [
        (penalised("overlong", {"max_tokens": 120, "buffer": 20}), 100, "sampling.max_tokens = 100"),
        (penalised("length", {"max_tokens": 200, "free": 100}), 100, "sampling.max_tokens = 100"),
    ],
)
def test_a_penalty_that_no_completion_reaches_is_refused(sections: dict[str, Any], free: int, limit: str) -> None:
    function = sections["reward"]["parts"][1]["function"]
    assert refused(**sections) == (
        f"reward.parts[1].options: {function!r} has no penalty up to {free} tokens, and no completion is longer than "
        f"{limit}; set its max_tokens to 100"
    )


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        ({"max_tokens": 100, "buffer": 20}, False),
        ({"max_tokens": 110, "buffer": 20}, True),
        ({"max_tokens": 80, "buffer": 20}, True),
    ],
)
def test_a_penalty_for_another_length_than_the_longest_is_noted(options: dict[str, int], *, is_noted: bool) -> None:
    said = [line for line in advice(made(**penalised("overlong", options))) if "reward.parts[1]" in line]
    assert len(said) == is_noted
    assert all(f"is {options['max_tokens']}, and the longest completion has 100 tokens" in line for line in said)
