"""
Checks of ``[environment]``, and of the settings elsewhere that only episodes have.

    one of function, tools, command         what answers the policy
    none of them                            nothing else of the section is read, nor rollout.episodes
    reward.function = "episode"             something must give a reward: tools never do
"""

from asyncrl.config.config import Config
from asyncrl.config.sections.environment import Environment
from asyncrl.errors import ConfigError
from asyncrl.plug_in import hint, is_path

SOURCES = ("function", "tools", "command")
EPISODE = "episode"
"""Reward function that takes the environment's word."""
TOOLS = ("calculator", "python", "python_unconfined")
"""Tools by name; the others are ``file.py:name`` and ``mcp:COMMAND``."""


def check_environment(config: Config) -> None:
    """Raise `ConfigError` for an environment that cannot work, or settings that nothing reads."""
    if config.environment.is_set:
        _check_source(config.environment)
        _check_tools(config.environment)
        _check_lengths(config)
        _check_history(config)
    else:
        _check_unread(config)
    _check_reward(config)


def check_pictures(config: Config, num_images: int) -> None:
    """Raise `ConfigError` if prompts have pictures that a later context of the episode would lack."""
    if num_images and config.environment.history == "as_template":
        raise ConfigError(
            f"environment.history='as_template' begins new contexts, which have none of the {num_images} pictures of "
            f"the prompts; use 'as_sampled'"
        )


def environment_advice(config: Config) -> list[str]:
    """Sentences of advice on episodes."""
    rollout = config.rollout
    if not config.environment.is_set or not 0 < rollout.episodes < rollout.slots:
        return []
    return [
        f"rollout.episodes is {rollout.episodes}, below rollout.slots = {rollout.slots}: slots stay empty, and more so "
        f"while environments think; 0 takes twice the slots"
    ]


def _check_source(environment: Environment) -> None:
    given = [key for key in SOURCES if getattr(environment, key)]
    if len(given) > 1:
        raise ConfigError(
            f"environment.{given[0]} and environment.{given[1]} are both set, but one of them answers the policy; "
            f"remove one"
        )
    if environment.function and not is_path(environment.function):
        raise ConfigError(
            f"environment.function is {environment.function!r}, expected path/to/file.py:name or package.module:name"
        )
    if environment.command and not environment.command[0]:
        raise ConfigError("environment.command begins with an empty text, expected a program and its arguments")
    if environment.options and not environment.function:
        raise ConfigError("environment.options are arguments of environment.function, which is not set; remove them")


def _check_tools(environment: Environment) -> None:
    tools = environment.tools
    for place, tool in enumerate(tools):
        if not is_path(tool) and tool not in TOOLS:
            raise ConfigError(
                f"environment.tools[{place}] is {tool!r}: {hint(tool, TOOLS)} (or path/to/file.py:name, or mcp:COMMAND)"
            )
        if tool in tools[:place]:
            raise ConfigError(f"environment.tools names {tool!r} twice; remove one")
    if tools and environment.tool_parser == "none":
        raise ConfigError(
            "environment.tool_parser='none' reads no calls, so environment.tools are never called; use 'auto'"
        )


def _check_lengths(config: Config) -> None:
    most = config.environment.max_tokens
    for key, length in (
        ("sampling.max_tokens", config.sampling.max_tokens),
        ("evaluation.max_tokens", config.evaluation.max_tokens),
    ):
        if length > most:
            raise ConfigError(
                f"{key} is {length} for one turn, more than environment.max_tokens = {most} for a whole episode; "
                f"lower it, or raise environment.max_tokens"
            )


def _check_history(config: Config) -> None:
    if config.environment.history == "as_template" and config.data.truncation != "error":
        raise ConfigError(
            f"environment.history='as_template' renders whole conversations again, which data.truncation="
            f"{config.data.truncation!r} cannot cut; use 'error', or history='as_sampled'"
        )


def _check_unread(config: Config) -> None:
    plain = Environment()
    for key in Environment.__struct_fields__:
        if getattr(config.environment, key) != getattr(plain, key):
            raise ConfigError(
                f"environment.{key} is only read with environment.function, tools or command, and none is set; set "
                f"one, or remove it"
            )
    if config.rollout.episodes:
        raise ConfigError("rollout.episodes is only read with an [environment]; remove it, or set one")


def _check_reward(config: Config) -> None:
    reward = config.reward
    functions = {f"reward.parts[{place}].function": part.function for place, part in enumerate(reward.parts)} or {
        "reward.function": reward.function
    }
    for key, function in functions.items():
        if function != EPISODE:
            continue
        if not config.environment.is_set:
            raise ConfigError(f"{key}='episode' takes the word of an [environment], and there is none; set one")
        if config.environment.tools:
            raise ConfigError(
                f"{key}='episode' takes the environment's word, but environment.tools give no reward; name a function "
                f"that judges the last turn, or use environment.function"
            )
