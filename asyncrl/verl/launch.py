"""
Search for verl's training command among the commands of a script.

    ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo --config-name=ppo_trainer data.shuffle=False

A command's module tells the trainer; options without a command tell it by their sections.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.verl.overrides import Override, given, is_override, parse_override

Mode = Literal["fully_async", "one_step_off", "synchronous"]
"""Trainer that a command starts; ``main_ppo`` is ``synchronous``, whatever its ``trainer.v1.trainer_mode``."""
MODULES: Mapping[str, Mode] = {
    "fully_async": "fully_async",
    "one_step_off": "one_step_off",
    "main_ppo": "synchronous",
}
"""Mode by a part of the module's name or path; the first entry that matches decides."""
LOST = (
    "{} options, from {!r} on, are a command of their own, because the line before them has no backslash: verl gets "
    "none of them; they are taken as part of the command"
)
OPTION = re.compile(r"(\+\+|\+|~)?[a-z_]\w*(\.\w+)+=.*", re.DOTALL)


class Launch(Struct, frozen=True):
    """Training command of verl: its trainer and its options."""

    mode: Mode
    overrides: dict[str, Override]
    """Options by key; the last one wins if a key is given twice."""
    is_megatron: bool = False
    notes: tuple[str, ...] = ()
    """Sentences about the script that a reader should know."""


def find_launch(commands: Sequence[Sequence[str]], more: Sequence[str] = (), defaults: Sequence[str] = ()) -> Launch:
    """
    Find the first training command.

    Args:
        more: Overrides that replace those of the command.
        defaults: Overrides that those of the command replace.

    Raises:
        ConfigError: No command starts a trainer.
    """
    trainings = [(mode, command) for command in commands if (mode := _mode(command))]
    if not trainings:
        run = ", ".join(sorted({command[0] for command in commands if command})) or "nothing"
        raise ConfigError(
            f"the script starts no trainer of verl (verl.trainer.main_ppo, fully_async_main, ...); it runs {run}; give "
            f"the script that starts the training"
        )
    mode, command = trainings[0]
    lost = [word for other in commands if other and OPTION.fullmatch(other[0]) for word in other]
    notes = [LOST.format(len(lost), lost[0])] if lost else []
    if len(trainings) > 1:
        notes.append(f"the script starts {len(trainings)} trainings; the first one is translated")
    words = [argument for argument in command if OPTION.fullmatch(argument) or _is_short(argument)]
    overrides = given([parse_override(argument) for argument in (*defaults, *words, *lost, *more)])
    is_megatron = any("megatron" in argument for argument in command if argument.startswith("-"))
    return Launch(mode, overrides, is_megatron, tuple(notes))


def of_options(arguments: Sequence[str]) -> Launch:
    """Launch with these options; their sections tell the mode. Raises `ConfigError` if an argument is no option."""
    overrides = given([parse_override(argument) for argument in arguments])
    sections = {key.partition(".")[0] for key in overrides}
    mode: Mode = "synchronous"
    if "async_training" in sections or "rollout.total_rollout_steps" in overrides:
        mode = "fully_async"
    elif "rollout" in sections:
        mode = "one_step_off"
    return Launch(mode, overrides)


def _mode(command: Sequence[str]) -> Mode | None:
    """Mode of a command that runs a trainer's module or file with options; None for any other command."""
    programs = [word for word in command[1:] if re.fullmatch(r"[\w./-]+", word) and "=" not in word]
    if not any(OPTION.fullmatch(word) for word in command):
        return None
    for part, mode in MODULES.items():
        if any(part in word.rpartition("/")[2] or (part in word and "verl" in word) for word in programs):
            return mode
    return None


def _is_short(argument: str) -> bool:
    """True for an override of a key without a dot, such as ``model_engine=megatron``."""
    return is_override(argument) and bool(re.match(r"\+{0,2}[a-z_]+=", argument))
