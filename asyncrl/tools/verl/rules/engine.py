"""Engine and evaluation: lengths, vLLM's arguments, concurrency, and sampling on held-out prompts."""

from typing import Any

from asyncrl.tools.verl.overrides import OFF
from asyncrl.tools.verl.recipe import LaunchRecipe

# ── episodes ──────────────────────────────────────────────────────────────────────────────────
# Episodes: the limits of verl's multi-turn rollouts, and a place for the tools, whose code is the user's.

R = "actor_rollout_ref.rollout"
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
    if recipe.get("actor_rollout_ref.actor.router_replay.mode", "disabled") == "R3" or recipe.get(
        f"{R}.enable_rollout_routing_replay", False
    ):
        recipe.put("rollout.replay_routes", True)


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


def evaluation(recipe: LaunchRecipe) -> None:
    """Set the interval, size and sampling of evaluations; without held-out prompts there are none."""
    if not recipe.settings.get("data.held_out"):
        return
    every = recipe.get("trainer.test_freq", -1)
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


def _sampling(recipe: LaunchRecipe) -> None:
    kwargs = f"{R}.val_kwargs"
    temperature, samples = float(recipe.get(f"{kwargs}.temperature", 0.0)), recipe.get(f"{kwargs}.n", 1)
    recipe.put("evaluation.temperature", temperature)
    if not temperature:
        for name in ("n", "top_p", "top_k"):
            recipe.say(f"{kwargs}.{name}", "not needed", "greedy completions of a prompt are all equal")
        return
    recipe.put("evaluation.samples", samples)
    recipe.put("evaluation.top_p", float(recipe.get(f"{kwargs}.top_p", 1.0)))
    recipe.put("evaluation.top_k", max(0, recipe.get(f"{kwargs}.top_k", -1)))
