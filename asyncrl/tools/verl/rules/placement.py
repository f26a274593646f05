"""
Placement: devices of trainer and rollouts, parallelism, precision and memory.

FSDP2 replaces all of verl's ways to shard weights. Tensor and context parallel ranks, which share the activations of a
row, become sequence parallel ranks, and a micro-batch has the same number of tokens as in verl.
"""

from math import ceil, gcd
from typing import Any

from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.rules.engine import longest_written

A, R, M, F = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
FSDP = "FSDP2 shards the weights over all ranks instead"


def placement(recipe: LaunchRecipe) -> None:
    """Set devices, parallelism, precision and memory."""
    device = recipe.get("trainer.device", "cuda")
    recipe.put("trainer.device", device)
    recipe.put("rollout.device", device)
    recipe.put("model.dtype", _dtype(recipe), "weights and activations; the optimizer's state is float32")
    recipe.put("trainer.nodes", recipe.get("trainer.nnodes", 1))
    recipe.put("trainer.ranks", recipe.get("trainer.n_gpus_per_node", 8))
    _replicas(recipe)
    if recipe.is_megatron:
        recipe.say("model_engine", "substituted", FSDP)
        recipe.say(f"{A}.strategy", "substituted", FSDP)
    _sequence_parallel(recipe)
    _shards(recipe)
    _offload(recipe)
    _gradient_checkpointing(recipe)
    if recipe.settings["trainer.nodes"] > 1:
        recipe.comments.setdefault("trainer.nodes", "each runs asyncrl-node --role trainer: docs/cluster.md")


def _dtype(recipe: LaunchRecipe) -> str:
    config = f"{A}.{'megatron' if recipe.is_megatron else 'fsdp_config'}"
    named = str(recipe.get(f"{config}.dtype", recipe.get(f"{R}.dtype", "bfloat16")))
    return "float32" if named in ("fp32", "float32", "float") else "bfloat16"


def _replicas(recipe: LaunchRecipe) -> None:
    """Set the number of rollouts on one machine, and the devices of each."""
    is_shared = _is_colocated(recipe)
    nodes, devices = recipe.get("rollout.nnodes", 1), recipe.get("rollout.n_gpus_per_node", 8)
    if is_shared:
        nodes, devices = recipe.settings["trainer.nodes"], recipe.settings["trainer.ranks"]
    size = min(recipe.get(f"{R}.tensor_model_parallel_size", 2), devices)
    recipe.put("rollout.vllm.tensor_parallel_size", size)
    recipe.say("actor_rollout_ref.hybrid_engine", "not needed", "rollouts have devices of their own")
    if is_shared and nodes == 1:
        recipe.put("rollout.colocated", True, "trainer and rollouts take turns at the same devices")
    elif is_shared:
        nodes = _halve(recipe, nodes)
    where = f" on each of {nodes} machines: docs/cluster.md" if nodes > 1 else ""
    recipe.put("rollout.replicas", max(1, devices // size), f"{devices} devices / {size}{where}")


def _halve(recipe: LaunchRecipe, nodes: int) -> int:
    """Divide colocated machines into trainers and rollouts; return the number of machines that roll out."""
    recipe.put(
        "trainer.nodes", ceil(nodes / 2), f"of {nodes} machines; the others sample: rollout.colocated is for one"
    )
    for key in ("trainer.nnodes", "actor_rollout_ref.hybrid_engine"):
        recipe.say(key, "substituted", "half of the machines train and half sample, which wait for each other")
    return int(nodes // 2)


def _is_colocated(recipe: LaunchRecipe) -> bool:
    if recipe.mode != "synchronous":
        return bool(recipe.get("rollout.nnodes", 1) == 0)
    is_v1 = recipe.get("trainer.use_v1", True)
    return not (is_v1 and recipe.get("trainer.v1.trainer_mode", "sync") == "separate_async")


def _sequence_parallel(recipe: LaunchRecipe) -> None:
    """Set the ranks that share a row, and the tokens of each; together they must fit the longest trajectory."""
    ranks = recipe.settings["trainer.ranks"]
    wanted, context = _row_ranks(recipe)
    shared = gcd(wanted, ranks)
    if wanted > 1:
        recipe.put("trainer.sequence_parallel", shared)
    if shared < wanted:
        why = f"{shared} ranks share a row: {wanted} does not divide the {ranks} of a machine"
        recipe.comments["trainer.sequence_parallel"] = why
        recipe.say(f"{A}.ulysses_sequence_parallel_size", "substituted", why)
    longest = recipe.settings["data.max_prompt_tokens"] + longest_written(recipe)
    tokens = _tokens(recipe, longest) * context // wanted
    needed = ceil(longest / shared)
    comment = f"{tokens:,} in verl; one trajectory may have {longest:,} tokens" if tokens < needed else ""
    recipe.put("trainer.max_tokens_per_micro_batch", max(tokens, needed), comment)


def _row_ranks(recipe: LaunchRecipe) -> tuple[int, int]:
    """Number of ranks that share a row, and how many of them verl's token budget counts separately."""
    config = f"{A}.fsdp_config.ulysses_sequence_parallel_size"
    wanted = recipe.get(f"{A}.ulysses_sequence_parallel_size", recipe.get(config, 1))
    if not recipe.is_megatron:
        return wanted, wanted
    megatron = f"{A}.megatron"
    tensor, context = (recipe.get(f"{megatron}.{name}_parallel_size", 1) for name in ("tensor_model", "context"))
    if tensor > 1:
        why = f"{FSDP}, and trainer.sequence_parallel ranks share each row"
        recipe.say(f"{megatron}.tensor_model_parallel_size", "substituted", why)
    return tensor * context, context


def _tokens(recipe: LaunchRecipe, longest: int) -> int:
    """verl's tokens of a micro-batch per device; without dynamic batches, its trajectories at full length."""
    if recipe.get(f"{A}.use_dynamic_bsz", False):
        return int(recipe.get(f"{A}.ppo_max_token_len_per_gpu", 16384))
    recipe.say(f"{A}.ppo_max_token_len_per_gpu", "not needed", "verl reads it only with use_dynamic_bsz")
    return int(recipe.get(f"{A}.ppo_micro_batch_size_per_gpu", recipe.get(f"{A}.ppo_micro_batch_size", 1)) * longest)


def _shards(recipe: LaunchRecipe) -> None:
    total = recipe.settings["trainer.nodes"] * recipe.settings["trainer.ranks"]
    size = recipe.get(f"{A}.fsdp_config.fsdp_size", -1)
    if 0 < size < total and total % size == 0:
        recipe.put("trainer.shard_size", size, "a copy of the model and its optimizer on each so many ranks")
    else:
        recipe.say(f"{A}.fsdp_config.fsdp_size", "not needed", "the model is sharded over all ranks")
    experts = recipe.get(f"{A}.megatron.expert_model_parallel_size", 1)
    if experts == 1:
        recipe.say(f"{A}.megatron.expert_model_parallel_size", "not needed", "experts are gathered layer by layer")
        return
    if {"parameters", "reference"} & set(_parts_on_host(recipe)):
        why = "experts are gathered layer by layer, because those on the host cannot compute where they are"
        recipe.say(f"{A}.megatron.expert_model_parallel_size", "substituted", why)
        return
    recipe.put("trainer.expert_parallel", True, "each rank keeps its experts; the ranks must divide their number")
    if total & (total - 1) and "trainer.shard_size" not in recipe.settings:
        power = total & -total
        recipe.put("trainer.shard_size", power, f"{total} ranks do not divide a number of experts that is a power of 2")


def _offload(recipe: LaunchRecipe) -> None:
    if parts := _parts_on_host(recipe):
        recipe.put("trainer.offload", parts)
    if not recipe.settings.get("algorithm.kl_coef"):
        for name in ("fsdp_config", "megatron"):
            recipe.say(f"{F}.{name}.param_offload", "not needed", "without a KL there is no reference model")


def _parts_on_host(recipe: LaunchRecipe) -> list[str]:
    """Values of ``trainer.offload``; ``parameters`` includes gradients and moments."""

    def is_on(*keys: str) -> bool:
        return any(recipe.get(key, False) not in (False, 0) for key in keys)

    config = f"{A}.{'megatron' if recipe.is_megatron else 'fsdp_config'}"
    parts: list[str] = []
    if is_on(f"{config}.param_offload", f"{config}.offload_policy"):
        parts.append("parameters")
    elif is_on(f"{config}.optimizer_offload", f"{A}.optim.override_optimizer_config.optimizer_cpu_offload"):
        parts.append("moments")
    if recipe.settings.get("algorithm.kl_coef") and is_on(
        f"{F}.fsdp_config.param_offload", f"{F}.megatron.param_offload"
    ):
        parts.append("reference")
    if is_on(f"{M}.enable_activation_offload"):
        parts.append("activations")
    return parts


def _gradient_checkpointing(recipe: LaunchRecipe) -> None:
    wanted: Any = recipe.get(f"{M}.enable_gradient_checkpointing", True)
    granularity = recipe.get(f"{A}.megatron.override_transformer_config.recompute_granularity")
    recipe.put("trainer.gradient_checkpointing", "selective" if granularity == "selective" else bool(wanted))
