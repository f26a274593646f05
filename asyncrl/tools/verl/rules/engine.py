"""Engine, evaluation and placement: lengths, vLLM's arguments, concurrency, held-out prompts; devices and memory."""

from math import ceil, gcd
from typing import Any

from asyncrl.tools.verl.overrides import OFF
from asyncrl.tools.verl.recipe import LaunchRecipe
from asyncrl.tools.verl.trainers import AUGUST, JUNE, NOVEMBER

# ── episodes ──────────────────────────────────────────────────────────────────────────────────
# Episodes: the limits of verl's multi-turn rollouts, and a place for the tools, whose code is the user's.

A, R, M, F = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
MULTI_TURN = f"{R}.multi_turn"
CODE = (
    "data.tool_config_path",
    "data.function_tool_path",
    f"{MULTI_TURN}.tool_config_path",
    f"{MULTI_TURN}.function_tool_path",
    f"{MULTI_TURN}.interaction_config_path",
    f"{R}.agent.agent_loop_config_path",
)
"""Options that name code of the user, which answers the policy."""
BUILT_IN = ("single_turn_agent", "tool_agent")
"""Agent loops of verl itself; the latter has one turn without tools."""
PLACEHOLDER = ["tools.py:NAME"]
WRITE = "put in the names of your tools, as typed functions, or set environment.function: docs/environments.md"
PARSERS = {
    "hermes": "hermes",
    "qwen3_coder": "qwen_xml",
    "qwen3_xml": "qwen_xml",
    "glm": "glm",
    "deepseek": "deepseek",
    "llama3_json": "llama_json",
    "gpt-oss": "harmony",
}
"""``environment.tool_parser`` by verl's ``format``."""


def has_turns(recipe: LaunchRecipe) -> bool:
    """True if something answers the policy."""
    is_own = recipe.get(f"{R}.agent.default_agent_loop", BUILT_IN[0]) not in BUILT_IN
    return is_own or any(recipe.get(key) not in OFF for key in CODE)


def episodes(recipe: LaunchRecipe) -> None:
    """Set the limits of episodes, if something answers the policy. Follows `lengths`."""
    if not has_turns(recipe):
        return
    recipe.put("environment.tools", PLACEHOLDER, WRITE)
    recipe.put("environment.max_tokens", recipe.settings["sampling.max_tokens"], "of an episode, with its tools'")
    if (of_turn := recipe.get(f"{R}.single_turn_response_length", 0)) > 0:
        recipe.put("sampling.max_tokens", min(of_turn, recipe.settings["environment.max_tokens"]), "of one turn")
    if limits := [*_turns(recipe, "max_assistant_turns"), *(most + 1 for most in _turns(recipe, "max_user_turns"))]:
        recipe.put("environment.max_turns", min(limits), "of the policy: one more than answers to it, at most")
    _parser(recipe)


def longest_written(recipe: LaunchRecipe) -> Any:
    """Most tokens after a prompt: of an episode, or of a completion."""
    return recipe.settings.get("environment.max_tokens", recipe.settings["sampling.max_tokens"])


def _turns(recipe: LaunchRecipe, name: str) -> list[int]:
    most = recipe.get(f"{MULTI_TURN}.{name}", 0)
    return [most] if most > 0 else []


def _parser(recipe: LaunchRecipe) -> None:
    key = f"{MULTI_TURN}.format"
    name = recipe.get(key)
    if name in PARSERS:
        recipe.put("environment.tool_parser", PARSERS[name])
    elif name is not None:
        recipe.say(key, "substituted", "environment.tool_parser = 'auto' takes the form of the model's chat template")


# ── engine ────────────────────────────────────────────────────────────────────────────────────

VLLM = f"{R}.engine_kwargs.vllm"
ENGINES = {"sglang": "SGLang", "trtllm": "TensorRT-LLM", "hf": "Hugging Face's generate"}
OWN_ARGUMENTS = {
    "max_num_batched_tokens": None,
    "enable_prefix_caching": True,
    "scheduling_policy": "fcfs",
    "cudagraph_capture_sizes": None,
}
"""verl's options that are plain arguments of vLLM, and vLLM's defaults, which the run file leaves out."""
SET_HERE = {
    "tensor_parallel_size": "rollout.vllm.tensor_parallel_size",
    "max_num_seqs": "rollout.slots",
    "gpu_memory_utilization": "rollout.vllm.gpu_memory_utilization",
    "max_model_len": "rollout.vllm.max_model_len",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_bytes",
}
REFUSED = ("dtype", "seed", "disable_log_stats", "enable_sleep_mode", "data_parallel_size", "pipeline_parallel_size",
           "logprobs_mode", "generation_config", "distributed_executor_backend", "skip_tokenizer_init")  # fmt: skip
"""Arguments of vLLM that asyncrl sets itself."""


def lengths(recipe: LaunchRecipe) -> None:
    """Set the most tokens of a prompt and of a completion. Other rules need them, so this one comes first."""
    prompt = recipe.get(f"{R}.prompt_length", recipe.get("data.max_prompt_length", 512))
    recipe.put("data.max_prompt_tokens", prompt)
    recipe.put("sampling.max_tokens", recipe.get(f"{R}.response_length", recipe.get("data.max_response_length", 512)))
    truncates = recipe.settings.get("data.truncation", "error") != "error"
    if recipe.get("data.filter_overlong_prompts", False) and not truncates:
        recipe.put("data.filter_overlong_prompts", True)
    elif truncates:
        recipe.say("data.filter_overlong_prompts", "not needed", "with truncation no prompt is too long")


def engine(recipe: LaunchRecipe) -> None:
    """Set the engine to vLLM, with its concurrency, memory and arguments."""
    recipe.put("rollout.engine", "vllm")
    if (name := recipe.get(f"{R}.name", "vllm")) != "vllm":
        other = ENGINES.get(name, name)
        recipe.say(f"{R}.name", "substituted", f"vLLM takes the place of {other}")
        recipe.comments["rollout.engine"] = f"in place of {other}"
    _slots(recipe)
    _memory(recipe)
    longest = recipe.settings["data.max_prompt_tokens"] + longest_written(recipe)
    if (length := recipe.get(f"{R}.max_model_len", 0)) >= longest:
        recipe.put("rollout.vllm.max_model_len", length)
    elif length:
        recipe.say(f"{R}.max_model_len", "substituted", f"it is less than a trajectory of {longest:,} tokens: left out")
    for name, value in _arguments(recipe).items():
        recipe.put(f"rollout.vllm.engine_args.{name}", value)
    replay = recipe.get(f"{A}.router_replay.mode", "disabled")
    if replay == "R3" or recipe.get(f"{R}.enable_rollout_routing_replay", False):
        recipe.put("rollout.replay_routes", True)
    elif replay != "disabled":
        why = f"{replay} replays the trainer's own routes, and here none are; rollout.replay_routes is R3"
        recipe.say(f"{A}.router_replay.mode", "substituted", why)
    _weights(recipe)


def _weights(recipe: LaunchRecipe) -> None:
    key = f"{R}.checkpoint_engine.backend"
    name = str(recipe.get(key, ""))
    if "delta" in name:
        recipe.put("weights.delta", True, f"checkpoint_engine.backend {name}")
    elif name in ("nccl", "hccl", "naive"):
        recipe.say(key, "not needed", "weights.backend = 'auto' chooses by the devices")
    elif name:
        recipe.say(key, "substituted", "weights.backend = 'auto' chooses nccl, hccl, gloo or shared memory")


def _slots(recipe: LaunchRecipe) -> None:
    slots, size = recipe.get(f"{R}.max_num_seqs", 256), recipe.settings["schedule.group_size"]
    if recipe.mode != "fully_async":
        recipe.put("rollout.slots", slots)
        return
    groups = recipe.get("async_training.concurrent_samples_per_replica", 16)
    recipe.put(
        "rollout.slots",
        min(slots, groups * size),
        f"the smaller of max_num_seqs {slots} and concurrent_samples_per_replica {groups} x n {size}",
    )


def _memory(recipe: LaunchRecipe) -> None:
    standalone = recipe.get(f"{R}.standalone_gpu_memory_utilization")
    fraction = standalone or recipe.get(f"{R}.gpu_memory_utilization")
    if fraction is not None:
        recipe.put("rollout.vllm.gpu_memory_utilization", float(fraction))
    elif recipe.settings.get("rollout.colocated"):
        recipe.put("rollout.vllm.gpu_memory_utilization", 0.5, "verl's default")


def _arguments(recipe: LaunchRecipe) -> dict[str, Any]:
    """Values of ``rollout.vllm.engine_args``, from `OWN_ARGUMENTS` and verl's ``engine_kwargs.vllm``."""
    arguments = {
        name: recipe.get(f"{R}.{name}")
        for name, default in OWN_ARGUMENTS.items()
        if recipe.get(f"{R}.{name}") not in (None, default)
    }
    for name in OWN_ARGUMENTS:
        if name not in arguments:
            recipe.say(f"{R}.{name}", "not needed", "it is vLLM's default")
    if recipe.get(f"{R}.expert_parallel_size", 1) > 1:
        arguments["enable_expert_parallel"] = True
    else:
        recipe.say(f"{R}.expert_parallel_size", "not needed", "experts are not spread")
    for name, value in recipe.below(VLLM).items():
        top = name.partition(".")[0]
        if top in SET_HERE:
            recipe.put(SET_HERE[top], value)
        elif top in REFUSED:
            recipe.say(f"{VLLM}.{name}", "not needed", "asyncrl sets this argument of vLLM itself")
        elif name == "disable_mm_preprocessor_cache":
            arguments |= {"mm_processor_cache_gb": 0} if value else {}
            recipe.say(f"{VLLM}.{name}", "mapped", "its name in vLLM is mm_processor_cache_gb, and its value 0")
        elif value is not None:
            arguments[name] = value
    return arguments


OF_EVALUATIONS = {
    "evaluation.at_start": ("trainer.val_before_train",),
    "evaluation.answers": ("trainer.log_val_generations",),
    "evaluation.max_prompts": ("data.val_max_samples",),
    "evaluation.every_versions": ("trainer.test_freq", "rollout.test_freq"),
    "evaluation.samples": tuple(f"{R}.val_kwargs.{name}" for name in ("n", "temperature", "top_p", "top_k")),
}
"""Settings of evaluations, and verl's options for them."""


def evaluation(recipe: LaunchRecipe) -> None:
    """Set the interval, size and sampling of evaluations; without held-out prompts there are none."""
    if not recipe.settings.get("data.held_out"):
        for setting, keys in OF_EVALUATIONS.items():
            recipe.settings.pop(setting, None)
            for key in keys:
                recipe.say(key, "not needed", "without data.val_files there are no evaluations")
        return
    every = _test_freq(recipe)
    unit = "versions" if recipe.mode == "fully_async" else "steps, each a version"
    publish = recipe.settings["schedule.steps_per_publish"]
    if recipe.mode == "synchronous" and publish > 1:
        unit = "train batches, each a version"
    recipe.put("evaluation.every_versions", max(every, 0), f"test_freq counts {unit}" if every > 0 else "")
    if every <= 0:
        recipe.put("evaluation.at_end", False)
    if "evaluation.max_prompts" not in recipe.settings:
        recipe.put("evaluation.max_prompts", 0, "all held-out rows, as in verl")
    _sampling(recipe)


def _test_freq(recipe: LaunchRecipe) -> int:
    """Interval of evaluations, which the fully asynchronous trainer of before August 2026 had in its own section."""
    is_former = recipe.mode == "fully_async" and recipe.release != AUGUST
    read, other = (
        ("rollout.test_freq", "trainer.test_freq") if is_former else ("trainer.test_freq", "rollout.test_freq")
    )
    recipe.say(other, "not needed", f"verl of {recipe.release} reads {read}")
    return int(recipe.get(read, 1 if is_former else -1))


def _sampling(recipe: LaunchRecipe) -> None:
    kwargs = f"{R}.val_kwargs"
    temperature, samples = float(recipe.get(f"{kwargs}.temperature", 0.0)), recipe.get(f"{kwargs}.n", 1)
    if _is_greedy(recipe):
        temperature = 0.0
        why = "verl's engine of this release is greedy without do_sample"
        recipe.say(f"{kwargs}.temperature", "not needed", why)
    else:
        recipe.say(f"{kwargs}.do_sample", "not needed", "the temperature decides, in verl's asynchronous engines too")
    recipe.put("evaluation.temperature", temperature)
    if not temperature:
        for name in ("n", "top_p", "top_k"):
            recipe.say(f"{kwargs}.{name}", "not needed", "greedy completions of a prompt are all equal")
        return
    recipe.put("evaluation.samples", samples)
    recipe.put("evaluation.top_p", float(recipe.get(f"{kwargs}.top_p", 1.0)))
    recipe.put("evaluation.top_k", max(0, recipe.get(f"{kwargs}.top_k", -1)))


def _is_greedy(recipe: LaunchRecipe) -> bool:
    """True if an engine of 2025 with ``rollout.mode=sync`` evaluates and ``do_sample``, which it obeys, is off."""
    engine_mode = recipe.get(f"{R}.mode", "sync" if recipe.release == JUNE else "async")
    has_it = recipe.mode == "synchronous" and recipe.release in (JUNE, NOVEMBER) and engine_mode == "sync"
    return has_it and not recipe.get(f"{R}.val_kwargs.do_sample", False)


# ── placement ──────────────────────────────────────────────────────────────────────────────────
# Placement: devices of trainer and rollouts, parallelism, precision and memory.
#
# FSDP2 replaces all of verl's ways to shard weights. Tensor and context parallel ranks, which share the activations of
# a row, become sequence parallel ranks, and a micro-batch has the same number of tokens as in verl.

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
    if recipe.release == JUNE and recipe.mode == "one_step_off":
        nodes, devices = 1, _taken(recipe)
    elif is_shared:
        nodes, devices = recipe.settings["trainer.nodes"], recipe.settings["trainer.ranks"]
    wanted = recipe.get(f"{R}.tensor_model_parallel_size", 2)
    if (size := min(wanted, devices)) < wanted:
        why = f"rollout.vllm.tensor_parallel_size = {size}: an engine is on the devices of one machine"
        recipe.say(f"{R}.tensor_model_parallel_size", "substituted", why)
    recipe.put("rollout.vllm.tensor_parallel_size", size)
    if not is_shared:
        recipe.say("actor_rollout_ref.hybrid_engine", "not needed", "rollouts have devices of their own")
    elif not recipe.get("actor_rollout_ref.hybrid_engine", True):
        why = "verl's trainer of this script refuses False; trainer and rollouts share the devices, as with True"
        recipe.say("actor_rollout_ref.hybrid_engine", "substituted", why)
    if is_shared and nodes == 1:
        recipe.put("rollout.colocated", True, "trainer and rollouts take turns at the same devices")
    elif is_shared:
        nodes = _halve(recipe, nodes)
    where = f" on each of {nodes} machines: docs/cluster.md" if nodes > 1 else ""
    recipe.put("rollout.replicas", max(1, devices // size), f"{devices} devices / {size}{where}")


def _taken(recipe: LaunchRecipe) -> int:
    """Devices that one_step_off_policy as it was proposed takes from those of the trainer, ``rollout.n_gpus``."""
    key = "rollout.n_gpus" if "rollout.n_gpus" in recipe.given else f"{R}.n_gpus"
    taken, nodes = recipe.get(key, 1), recipe.settings["trainer.nodes"]
    ranks = recipe.settings["trainer.ranks"]
    left = nodes * ranks - taken
    if left < 1 or left % nodes:
        why = f"{nodes} x {ranks} devices without {taken} leave {left}, which is no whole number for each machine"
        recipe.say(key, "not supported", why)
        return int(taken)
    recipe.put("trainer.ranks", left // nodes, f"{nodes} x {ranks} devices without the {taken} of the rollouts")
    return int(taken)


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
    if "parameters" in parts:
        recipe.say(f"{A}.megatron.grad_offload", "not needed", "gradients are on the host with the parameters")
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
