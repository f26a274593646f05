"""
Finds verl's training command among the commands of a script.

    ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo --config-name=ppo_trainer data.shuffle=False

The trainer is known by its module, or by the options of a command line without one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.verl.overrides import Override, given, is_override, parse_override

Mode = Literal["fully_async", "one_step_off", "synchronous"]
"""Which trainer a command starts; the last is ``main_ppo``, whatever its ``trainer.v1.trainer_mode``."""
MODULES: Mapping[str, Mode] = {
    "fully_async": "fully_async",
    "one_step_off": "one_step_off",
    "main_ppo": "synchronous",
}
"""Part of the module's name or path, and the mode; the first that occurs counts."""
LOST = (
    "{} options, from {!r} on, are a command of their own, because the line before them has no backslash: verl gets "
    "none of them; they are taken as part of the command"
)
OPTION = re.compile(r"(\+\+|\+|~)?[a-z_]\w*(\.\w+)+=.*", re.DOTALL)


class Launch(Struct, frozen=True):
    """A training command."""

    mode: Mode
    overrides: dict[str, Override]
    """Options by their keys; the last of several for one key."""
    is_megatron: bool = False
    notes: tuple[str, ...] = ()
    """Sentences about the script that a reader should know."""


def find_launch(commands: Sequence[Sequence[str]], more: Sequence[str] = (), defaults: Sequence[str] = ()) -> Launch:
    """
    The first training command.

    Args:
        more: Overrides that count more than those of the command.
        defaults: Overrides that count less.

    Raises:
        ConfigError: There is none.
    """
    trainings = [(mode, command) for command in commands if (mode := _mode(command))]
    if not trainings:
        run = ", ".join(sorted({command[0] for command in commands if command})) or "nothing"
        raise ConfigError(
            f"the script starts no trainer of verl (verl.trainer.main_ppo, fully_async_main, ...); it runs {run}"
        )
    mode, command = trainings[0]
    lost = [word for other in commands if other and OPTION.fullmatch(other[0]) for word in other]
    notes = [LOST.format(len(lost), lost[0])] if lost else []
    if len(trainings) > 1:
        notes.append(f"the script starts {len(trainings)} trainings; this is the first of them")
    words = [argument for argument in command if OPTION.fullmatch(argument) or _is_short(argument)]
    overrides = given([parse_override(argument) for argument in (*defaults, *words, *lost, *more)])
    is_megatron = any("megatron" in argument for argument in command if argument.startswith("-"))
    return Launch(mode, overrides, is_megatron, tuple(notes))


def of_options(arguments: Sequence[str]) -> Launch:
    """Launch with these options, whose sections tell the mode; raises `ConfigError` for an argument that is none."""
    overrides = given([parse_override(argument) for argument in arguments])
    sections = {key.partition(".")[0] for key in overrides}
    mode: Mode = "synchronous"
    if "async_training" in sections or "rollout.total_rollout_steps" in overrides:
        mode = "fully_async"
    elif "rollout" in sections:
        mode = "one_step_off"
    return Launch(mode, overrides)


def _mode(command: Sequence[str]) -> Mode | None:
    """Mode of a command that starts a trainer: a module of verl or of a recipe, or a Python file, with options."""
    programs = [word for word in command[1:] if re.fullmatch(r"[\w./-]+", word) and "=" not in word]
    if not any(OPTION.fullmatch(word) for word in command):
        return None
    for part, mode in MODULES.items():
        if any(part in word.rpartition("/")[2] or (part in word and "verl" in word) for word in programs):
            return mode
    return None


def _is_short(argument: str) -> bool:
    """An override of a key without a dot, such as ``model_engine=megatron``."""
    return is_override(argument) and bool(re.match(r"\+{0,2}[a-z_]+=", argument))
