"""The module that honours each setting of the recipes: it must read it in a run."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

CLAIMS = {
    "run.steps": "asyncrl.broker.scheduler",
    "run.epochs": "asyncrl.data.prompts",
    "model.path": "asyncrl.runtime.trainer",
    "model.overrides": "asyncrl.trainer.models",
    "model.dtype": "asyncrl.trainer.models",
    "data.train": "asyncrl.data.prompts",
    "data.held_out": "asyncrl.data.prompts",
    "data.max_prompt_tokens": "asyncrl.broker.leases.lease",
    "data.image_column": "asyncrl.data.row",
    "data.shuffle": "asyncrl.data.prompts",
    "data.truncation": "asyncrl.broker.leases.lease",
    "data.filter_overlong_prompts": "asyncrl.broker.leases.trajectories",
    "schedule.groups_per_step": "asyncrl.broker.scheduler",
    "schedule.group_size": "asyncrl.broker.training",
    "schedule.steps_per_publish": "asyncrl.trainer.actor",
    "schedule.staleness": "asyncrl.broker.scheduler",
    "schedule.order": "asyncrl.broker.training",
    "schedule.filter": "asyncrl.broker.groups.filtering",
    "schedule.filter_metric": "asyncrl.broker.groups.filtering",
    "schedule.filter_patience": "asyncrl.broker.groups.filtering",
    "schedule.partial_rollout": "asyncrl.runtime.rollout",
    "sampling.max_tokens": "asyncrl.broker.leases.lease",
    "rollout.engine": "asyncrl.runtime.rollout",
    "rollout.replicas": "asyncrl.runtime.checks",
    "rollout.colocated": "asyncrl.runtime.rollout",
    "rollout.slots": "asyncrl.runtime.rollout",
    "rollout.vllm.tensor_parallel_size": "asyncrl.rollout.engines.vllm.arguments",
    "rollout.vllm.gpu_memory_utilization": "asyncrl.rollout.engines.vllm.arguments",
    "rollout.vllm.enforce_eager": "asyncrl.rollout.engines.vllm.arguments",
    "rollout.vllm.enable_chunked_prefill": "asyncrl.rollout.engines.vllm.arguments",
    "rollout.vllm.engine_args": "asyncrl.rollout.engines.vllm.arguments",
    "reward.function": "asyncrl.reward.routing",
    "reward.parts": "asyncrl.reward.routing",
    "algorithm.advantage": "asyncrl.trainer.algorithm.recipe",
    "algorithm.clip_low": "asyncrl.trainer.algorithm.recipe",
    "algorithm.clip_high": "asyncrl.trainer.algorithm.recipe",
    "algorithm.dual_clip": "asyncrl.trainer.algorithm.recipe",
    "algorithm.aggregation": "asyncrl.trainer.algorithm.recipe",
    "algorithm.kl": "asyncrl.trainer.algorithm.recipe",
    "algorithm.kl_coef": "asyncrl.trainer.algorithm.recipe",
    "algorithm.correction.mode": "asyncrl.trainer.algorithm.recipe",
    "algorithm.correction.importance": "asyncrl.config.correction",
    "algorithm.correction.importance_threshold": "asyncrl.config.correction",
    "algorithm.correction.importance_normalize": "asyncrl.config.correction",
    "algorithm.correction.rejection": "asyncrl.config.correction",
    "algorithm.correction.rejection_threshold": "asyncrl.config.correction",
    "trainer.device": "asyncrl.runtime.trainer",
    "trainer.ranks": "asyncrl.runtime.trainer",
    "trainer.sequence_parallel": "asyncrl.trainer.loop.fetching",
    "trainer.lr": "asyncrl.trainer.learner",
    "trainer.warmup_steps": "asyncrl.trainer.model.optimizer",
    "trainer.weight_decay": "asyncrl.trainer.models",
    "trainer.grad_clip": "asyncrl.trainer.models",
    "trainer.mini_batches": "asyncrl.trainer.learner",
    "trainer.gradient_checkpointing": "asyncrl.trainer.models",
    "trainer.offload": "asyncrl.trainer.models",
    "trainer.collective_timeout_s": "asyncrl.runtime.ranks",
    "trainer.max_tokens_per_micro_batch": "asyncrl.trainer.learner",
    "weights.backend": "asyncrl.weights.groups.group_keeper",
    "evaluation.max_prompts": "asyncrl.runtime.broker",
    "evaluation.every_versions": "asyncrl.broker.versions.evaluation",
    "evaluation.at_end": "asyncrl.broker.versions.evaluation",
    "evaluation.at_start": "asyncrl.broker.versions.evaluation",
    "evaluation.temperature": "asyncrl.broker.leases.lease",
    "evaluation.top_p": "asyncrl.broker.leases.lease",
    "checkpoint.every_steps": "asyncrl.trainer.actor",
}

TABLES = {"engine_args", "overrides"}
"""Settings whose value is a table."""


def settings(section: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Keys of a run file, in order."""
    for name, value in section.items():
        if isinstance(value, Mapping) and name not in TABLES:
            yield from settings(value, f"{path}{name}.")
        else:
            yield path + name


def ignored(keys: Collection[str], reads: Mapping[str, Collection[str]]) -> list[str]:
    """Settings that nothing claims, or that the module that claims them has not read."""
    return [key for key in keys if key not in CLAIMS or CLAIMS[key] not in reads.get(key, ())]
