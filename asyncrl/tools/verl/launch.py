"""
verl's training command, searched among the commands that a launch script runs in a jail.

    ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo --config-name=ppo_trainer data.shuffle=False

A command's module tells the trainer; options without a command tell it by their sections.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.expand import NPU_NAME
from asyncrl.tools.verl.lookup import option_for, present
from asyncrl.tools.verl.overrides import Account, Override, given, is_override, parse_override
from asyncrl.tools.verl.trainers import (
    AUGUST,
    Mode,
    Release,
    TrainerModule,
    mode_of,
    release_of,
    trainer_of,
    unknown_trainer,
)
from asyncrl.tools.verl.words import (
    ASCEND,
    Line,
    config_files,
    config_names,
    configured,
    is_other_program,
    of_flags,
    of_runner,
    of_variables,
    parse_line,
    runtime_variables,
)

LOST = (
    "{} options, from {!r} on, are a command of their own, because the line before them has no backslash, or is a "
    "comment: verl gets none of them; they are taken as part of the command"
)
OPTION = re.compile(r"(\+\+|\+|~)?[a-z_]\w*(\.\w+)+=.*", re.DOTALL)
TRAINING_SECTIONS = ("actor_rollout_ref.", "algorithm.")


class Launch(Struct, frozen=True):
    """Training command of verl: its trainer, its options, and an account of its other words."""

    mode: Mode
    overrides: dict[str, Override]
    """Options by key; the last one wins if a key is given twice."""
    is_megatron: bool = False
    notes: tuple[str, ...] = ()
    """Sentences about the script that a reader should know."""
    trainer: TrainerModule | None = None
    """Entry of its module; None for options without a command."""
    release: Release = AUGUST
    """verl's release that the options are read as."""
    words: tuple[Account, ...] = ()
    """Accounts of the words that are no options, and of the environment's variables."""
    variables: Mapping[str, str] = {}
    """Variable of the script that an option's value is, by the option's key."""


def find_launch(
    commands: Sequence[Sequence[str]],
    more: Sequence[str] = (),
    *,
    environments: Sequence[Mapping[str, str]] = (),
    script: str = "",
    name: str = "",
    folders: Sequence[Path] = (),
) -> Launch:
    """
    Find the first training command.

    Args:
        more: Overrides that replace those of the command.
        environments: Variables that the script has set for each of the commands.
        script: Text of the script.
        name: Name of its file.
        folders: Folders with files that the command names.

    Raises:
        ConfigError: No command starts a trainer, or a file that it names cannot be read.
    """
    trainings = [
        (line, trainer, place)
        for place, command in enumerate(commands)
        if (line := parse_line(command)) and (trainer := _trainer(line, commands))
    ]
    if not trainings:
        run = ", ".join(sorted({command[0] for command in commands if command})) or "nothing"
        raise ConfigError(
            f"the script starts no trainer of verl (verl.trainer.main_ppo, fully_async_main, ...); it runs {run}; give "
            f"the script that starts the training"
        )
    line, trainer, place = trainings[0]
    lost = _lost(commands)
    notes = [LOST.format(len(lost), lost[0])] if lost else []
    if len(trainings) > 1:
        notes.append(f"the script starts {len(trainings)} trainings; the first one is translated")
    given_here = [parse_override(word) for word in dict.fromkeys([*line.options, *lost, *more])]
    release = release_of(trainer, [override.key for override in given_here])
    variables = {**(environments[place] if environments else {}), **runtime_variables(line, folders)}
    npu = _npu(variables, commands, name, given_here)
    if npu:
        notes.append("the script is for Ascend NPUs: without a trainer.device of its own, it is 'npu'")
    overrides = given([_renamed(override) for override in (*npu, *_configured(line, trainer, folders), *given_here)])
    words = [
        *of_variables(variables, script),
        *of_runner(line, folders),
        _program(line, trainer, release),
        *of_flags(line, folders),
        *_repeated(given_here, overrides),
    ]
    is_megatron = any("megatron" in flag[-1] for flag in line.flags)
    named = _named(script, overrides)
    return Launch(trainer.mode, overrides, is_megatron, tuple(notes), trainer, release, tuple(words), named)


def of_options(arguments: Sequence[str]) -> Launch:
    """Launch with these options; their sections tell the mode. Raises `ConfigError` if an argument is no option."""
    named = [parse_override(argument) for argument in arguments]
    keys = [override.key for override in named]
    trainer = TrainerModule(name="options alone", module="", mode=mode_of(keys))
    overrides = given([_renamed(override) for override in named])
    words = tuple(_repeated(named, overrides))
    return Launch(trainer.mode, overrides, release=release_of(trainer, keys), words=words)


def _trainer(line: Line, commands: Sequence[Sequence[str]]) -> TrainerModule | None:
    """Entry of the module that a line starts; of an unknown module if its options are those of a training."""
    words = [*line.options, *_lost(commands)]
    if is_other_program(line.module) or not words:
        return None
    if known := trainer_of(line.module):
        return known
    keys = [parse_override(word).key for word in words]
    trains = any(key.startswith(TRAINING_SECTIONS) and option_for(present(key)) for key in keys)
    return unknown_trainer(line.module, keys) if trains else None


def _lost(commands: Sequence[Sequence[str]]) -> list[str]:
    """Options that are commands of their own."""
    return [word for other in commands if other and OPTION.fullmatch(other[0]) for word in other if is_override(word)]


def _renamed(override: Override) -> Override:
    return replace(override, key=present(override.key))


def _configured(line: Line, trainer: TrainerModule, folders: Sequence[Path]) -> list[Override]:
    """Options that the configurations which the line names set, or without any, the trainer's own."""
    files = config_files(line, folders)
    if found := [option for name in config_names(line) for option in configured(name, files.get(name))]:
        return found
    return [replace(parse_override(option), source=trainer.name) for option in trainer.config]


def _npu(
    variables: Mapping[str, str], commands: Sequence[Sequence[str]], name: str, options: Sequence[Override]
) -> list[Override]:
    """The device of a script for Ascend NPUs, which verl itself detects when it runs; empty for any other script."""
    sources = any("/Ascend/" in word for command in commands if command[:1] == ["source"] for word in command)
    is_named = any(override.key == "trainer.device" for override in options)
    if is_named or not (NPU_NAME.search(name) or any(map(ASCEND.fullmatch, variables)) or sources):
        return []
    return [replace(parse_override("trainer.device=npu"), source="the script is for Ascend NPUs")]


def _program(line: Line, trainer: TrainerModule, release: Release) -> Account:
    text = " ".join(line.program)
    if trainer.lacks:
        return Account(text, "not supported", trainer.lacks)
    if not trainer_of(line.module):
        why = f"{line.module} is none of verl's trainers known here: its options are read as those of {release}, and"
        return Account(text, "unknown", f"{why} what the module does differently is not known")
    read = f"read as {trainer.name} of verl of {release}"
    return Account(text, "substituted" if trainer.note else "mapped", "; ".join(filter(None, [read, trainer.note])))


def _repeated(options: Sequence[Override], overrides: Mapping[str, Override]) -> Iterator[Account]:
    """Accounts of options of which nothing is left, because a later one has the same key."""
    texts = {override.text for override in overrides.values()}
    for option in options:
        later = overrides.get(present(option.key))
        if option.text not in texts and later:
            yield Account(option.text, "not needed", f"a later option replaces it: {later.text}")


def _named(script: str, overrides: Mapping[str, Override]) -> dict[str, str]:
    """Variables of ``script`` that options are made of, by the option's key."""
    found: dict[str, str] = {}
    for key, override in overrides.items():
        written = re.escape(override.text.partition("=")[0])
        if variable := re.search(rf"(?<![\w.]){written}=[\"']?\$\{{?(\w+)", script):
            found[key] = variable[1]
    return found
