"""
verl's training command, searched among the commands that a launch script runs in a jail.

    ray job submit --working-dir . -- python3 -m verl.trainer.main_ppo --config-name=ppo_trainer data.shuffle=False

A command's module tells the trainer; options without a command tell it by their sections.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.errors import ConfigError
from asyncrl.files.foreign import read_bytes
from asyncrl.foreign_text import shown
from asyncrl.tools.verl.lookup import option_for, present
from asyncrl.tools.verl.overrides import Account, Override, given, is_override, parse_override
from asyncrl.tools.verl.trainers import (
    AUGUST,
    CONFIGS,
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
    config_names,
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
NPU_NAME = re.compile(r"(?<![A-Za-z])npu(?![A-Za-z])")
"""``npu`` as a word of a file's name: ``prompt_key=input`` has these letters too."""
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
    environments: Sequence[Mapping[str, str]] = (),
    script: str = "",
    name: str = "",
) -> Launch:
    """
    Find the first training command.

    Args:
        more: Overrides that replace those of the command.
        environments: Variables that the script has set for each of the commands.
        script: Text of the script.
        name: Name of its file.

    Raises:
        ConfigError: No command starts a trainer.
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
    variables = {**(environments[place] if environments else {}), **runtime_variables(line)}
    npu = _npu(variables, commands, name, given_here)
    if npu:
        notes.append("the script is for Ascend NPUs: without a trainer.device of its own, it is 'npu'")
    overrides = given([_renamed(override) for override in (*npu, *_configured(line, trainer), *given_here)])
    words = [
        *of_variables(variables, script),
        *of_runner(line),
        _program(line, trainer, release),
        *of_flags(line),
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


def _configured(line: Line, trainer: TrainerModule) -> list[Override]:
    """Options that the trainer's own configuration sets, or those that the line names."""
    sources = {name: CONFIGS[name] for name in config_names(line) if name in CONFIGS} or {trainer.name: trainer.config}
    pairs = [(source, option) for source, options in sources.items() for option in options]
    return [replace(parse_override(option), source=source) for source, option in pairs]


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


# ── expand ────────────────────────────────────────────────────────────────────────────────────
# Expansion of a launch script: the script runs in a jail, where each program only records its arguments.
#
#     run.sh ─▶ bash, below a temporary root ─▶ python3, ray, torchrun, ... are stubs ─▶ records ─▶ `Expansion`
#
# The script is foreign code. The temporary root holds bash, some programs that only read and write text, and the
# script; `asyncrl.tools.verl.jail` denies all else: other files, network, signals. The environment has HOME, from
# which scripts build paths, and the caller's variables. The root is removed afterwards.

BASE = ("HOME", "PATH", "BASH_ENV", "TMPDIR", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_")
"""Variables that the jail and bash set themselves."""
JAIL = Path(__file__).with_name("jail.py")
WALL_S = 10.0
PROCESSES = 64
"""Processes that a script may have at once."""
MAX_RECORDS = 1000
FIRST_USER_ID = 61184
"""Lowest of 4,096 user ids without an account: the range from which systemd takes its dynamic users."""
TEXT_PROGRAMS = (
    "basename", "cat", "cut", "date", "dirname", "env", "expr", "grep", "head", "ls", "mkdir", "nproc", "realpath",
    "sed", "seq", "sort", "tail", "tee", "touch", "tr", "uname", "wc",
)  # fmt: skip
"""Programs that really run. All others are stubs, which record their arguments, print nothing and succeed."""
LAUNCHERS = (
    "accelerate", "conda", "deepspeed", "mpirun", "nohup", "python", "python3", "ray", "srun", "sudo", "timeout",
    "torchrun", "uv",
)  # fmt: skip
"""Stubs that exist as files, because ``exec`` and ``env`` do not call bash's handler for missing commands."""
RECORD = """__record="${EPOCHREALTIME:-$SECONDS}.$BASHPID"
/bin/env -0 > "/variables/$__record"
printf '%s\\0' "$@" > "/records/$__record" """
STUB = f"""#!/bin/bash -p
set -- "${{0##*/}}" "$@"
{RECORD}
[ "${{@: -1}}" = - ] && grep -q get_device_name && echo DEVICE
:
"""
"""A launcher; where a program on its input asks verl for the kind of device, it answers as the script's name says."""
PRELUDE = f"""command_not_found_handle() {{ {RECORD}; }}
ulimit() {{ :; }}
source() {{
  if [ -r "$1" ]; then builtin source "$@"; return; fi
  printf '%s: line %s: %s: No such file or directory\\n' "$0" "${{__line:-${{BASH_LINENO[0]}}}}" "$1" >&2
  command_not_found_handle source "$@"
}}
function . {{ __line=${{BASH_LINENO[0]}} source "$@"; }}
cd() {{ builtin cd "$@" 2>/dev/null || command_not_found_handle cd "$@"; }}
export -f command_not_found_handle ulimit source . cd
"""
"""
Start of every bash: records a missing program, which then succeeds, and keeps the jail's limits. A file to source and a
folder to enter that the jail does not have are recorded as well: they do not end a script with ``set -e``.
"""


class Expansion(Struct, frozen=True):
    """Commands of a script, in order, and the errors of its shell."""

    commands: list[list[str]]
    """Name and arguments of every program that it would have run, without `TEXT_PROGRAMS`."""
    environments: list[dict[str, str]]
    """Variables that the script has exported to each of them, without those it was given."""
    complaints: list[str]
    """Errors that bash printed, such as an unbound variable or a file that is not in the jail."""


def expand(script: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Expansion:
    """
    Run ``script`` in the jail.

    Args:
        arguments: Its ``$1``, ``$2``, ...
        environment: Its environment, such as MODEL_PATH or NNODES.

    Raises:
        ConfigError: The script cannot be read, or this machine cannot build the jail.
    """
    text = read_bytes(script, what=f"the script {shown(str(script))}")
    with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
        root, errors = Path(name, "root"), Path(name, "errors")
        Path(name).chmod(0o711)
        place = script.resolve()
        _furnish(root, place, text)
        code = _run(root, errors, ["/bin/bash", str(place), *arguments], environment or {})
        complaints = list(_complaints(errors.read_text("utf-8", "replace"), str(place), code))
        commands = _records(root / "records")
        exported = _records(root / "variables")
        before = {*BASE, *(f"{name}={value}" for name, value in (environment or {}).items())}
        return Expansion(
            commands=list(commands.values()),
            environments=[_exported(exported.get(name, []), before) for name in commands],
            complaints=complaints,
        )


def _furnish(root: Path, script: Path, text: bytes) -> None:
    """Create the jail's files: programs with their libraries, stubs, the script at its path, the working directory."""
    writable = ("", "records", "variables", "tmp", "dev", *_with_parents(script.parent), *_with_parents(Path.cwd()))
    for folder in (*writable, "bin"):
        (root / folder).mkdir(exist_ok=True)
    programs = [path for name in ("bash", *TEXT_PROGRAMS) if (path := shutil.which(name))]
    for library in _libraries(programs):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    for program in programs:
        shutil.copy(program, root / "bin" / Path(program).name)
    (root / "bin/sh").symlink_to("bash")
    stub = STUB.replace("DEVICE", "npu" if NPU_NAME.search(script.name) else "cuda")
    for name in LAUNCHERS:
        (root / "bin" / name).write_text(stub)
        (root / "bin" / name).chmod(0o755)
    (root / "prelude.sh").write_text(PRELUDE)
    (root / "dev/null").touch()
    (root / str(script)[1:]).write_bytes(text)
    for entry in root.rglob("*"):  # The jail may have another user, and the umask may exclude it.
        entry.chmod(entry.stat().st_mode | (0o755 if entry.is_dir() else 0o644))
    for name in (*writable, "dev/null"):
        (root / name).chmod(0o777)
    if not (root / "usr/bin").exists():
        (root / "usr").mkdir(exist_ok=True)
        (root / "usr/bin").symlink_to("../bin")


def _with_parents(folder: Path) -> list[str]:
    """An absolute folder and its parents, without the leading slash, the highest first."""
    return [str(path)[1:] for path in reversed([folder, *folder.parents])][1:]


def _libraries(programs: Sequence[str]) -> set[str]:
    """Paths of the shared libraries of ``programs``, the loader included."""
    try:
        listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False)
    except OSError as error:
        raise _no_jail(f"{error.filename}: {error.strerror}") from error
    return set(re.findall(r"(?:=>\s*|^\s+)(/\S+) \(0x", listed.stdout, re.MULTILINE))


def _run(root: Path, errors: Path, command: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """Run a command below ``root`` and end all its processes. Return its exit code, or None after `WALL_S`."""
    home = {"HOME": str(Path.home()), "PATH": "/bin", "BASH_ENV": "/prelude.sh", "TMPDIR": "/tmp", "LC_ALL": "C"}
    user_id, others = (FIRST_USER_ID + secrets.randbelow(4096), 0) if os.geteuid() == 0 else (0, _num_tasks())
    reader, writer = os.pipe()
    numbers = map(str, (user_id, others + PROCESSES, writer))
    with os.fdopen(reader) as failed, errors.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(JAIL), str(root), *numbers, str(Path.cwd()), *command],
                env={**home, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(writer,),
                start_new_session=True,
            )
        finally:
            os.close(writer)
        code = _end(process)
        if reason := failed.read():
            raise _no_jail(reason)
    return code


def _end(process: "subprocess.Popen[bytes]") -> int | None:
    """Wait for a process, then kill its group; nothing in the jail can leave the group."""
    try:
        return process.wait(WALL_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _num_tasks() -> int:
    """Processes and threads of this user, which its limit of processes counts too."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == os.geteuid():
                count += sum(1 for _ in (process / "task").iterdir())
    return count


def _records(folder: Path) -> dict[str, list[str]]:
    """Read the records by name, in order of time, without links, which may lead out of the jail."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return {path.name: path.read_text("utf-8", "replace").split("\0")[:-1] for path in paths[:MAX_RECORDS]}


def _exported(environment: Sequence[str], before: Collection[str]) -> dict[str, str]:
    """Variables of an environment that are not those of ``before``, nor bash's own."""
    pairs = (text.partition("=") for text in environment if text not in before)
    return {name: value for name, _, value in pairs if name.isidentifier() and name not in BASE}


def _complaints(errors: str, script: str, code: int | None) -> Iterator[str]:
    """Yield bash's errors without the traces of ``set -x``, then the exit code or the timeout if there was one."""
    lines = errors.splitlines()
    said = [line.removeprefix(f"{script}: ") for line in lines if line.startswith(f"{script}: line ")]
    yield from said
    if code is None:
        yield f"the script did not end within {WALL_S:g} s and was stopped"
    elif code:
        last = next((line for line in reversed(lines) if not line.startswith("+")), "").removeprefix(f"{script}: ")
        yield f"the script ended with exit code {code}" + (f": {last}" if last and last not in said else "")


def _no_jail(reason: str) -> ConfigError:
    return ConfigError(
        f"this machine cannot expand a launch script safely ({reason}): it needs Linux, bash, ldd and the right to "
        f"change a process's root; give the options themselves: asyncrl import-verl KEY=VALUE ..."
    )
