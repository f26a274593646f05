"""Episodes: the limits of verl's multi-turn rollouts, and a place for the tools, whose code is the user's."""

from typing import Any

from asyncrl.verl.option import OFF
from asyncrl.verl.recipe import Recipe

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


def has_turns(recipe: Recipe) -> bool:
    """True if something answers the policy."""
    is_own = recipe.get(f"{R}.agent.default_agent_loop", BUILT_IN[0]) not in BUILT_IN
    return is_own or any(recipe.get(key) not in OFF for key in CODE)


def episodes(recipe: Recipe) -> None:
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


def longest_written(recipe: Recipe) -> Any:
    """Most tokens after a prompt: of an episode, or of a completion."""
    return recipe.settings.get("environment.max_tokens", recipe.settings["sampling.max_tokens"])


def _turns(recipe: Recipe, name: str) -> list[int]:
    most = recipe.get(f"{MULTI_TURN}.{name}", 0)
    return [most] if most > 0 else []


def _parser(recipe: Recipe) -> None:
    key = f"{MULTI_TURN}.format"
    name = recipe.get(key)
    if name in PARSERS:
        recipe.put("environment.tool_parser", PARSERS[name])
    elif name is not None:
        recipe.say(key, "substituted", "environment.tool_parser = 'auto' takes the form of the model's chat template")
