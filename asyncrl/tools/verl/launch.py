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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.overrides import Override, given, is_override, parse_override

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


# ── expand ────────────────────────────────────────────────────────────────────────────────────
# Expansion of a launch script: the script runs in a jail, where each program only records its arguments.
#
#     run.sh ─▶ bash, below a temporary root ─▶ python3, ray, torchrun, ... are stubs ─▶ records ─▶ `Expansion`
#
# The script is foreign code. The temporary root holds bash, some programs that only read and write text, and the
# script; `asyncrl.tools.verl.jail` denies all else: other files, network, signals. The environment has HOME, from
# which scripts build paths, and the caller's variables. The root is removed afterwards.

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
RECORD = """printf '%s\\0' "$@" > "/records/${EPOCHREALTIME:-$SECONDS}.$BASHPID" """
STUB = f"""#!/bin/bash -p
set -- "${{0##*/}}" "$@"
{RECORD}
"""
PRELUDE = f"""command_not_found_handle() {{ {RECORD}; }}
ulimit() {{ :; }}
export -f command_not_found_handle ulimit
"""
"""Start of every bash: records a missing program, which then succeeds, and keeps the jail's limits."""


class Expansion(Struct, frozen=True):
    """Commands of a script, in order, and the errors of its shell."""

    commands: list[list[str]]
    """Name and arguments of every program that it would have run, without `TEXT_PROGRAMS`."""
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
    try:
        text = script.read_bytes()
    except OSError as error:
        raise ConfigError(f"the script {script} cannot be read: {error.strerror}; check its path") from error
    with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
        root, errors = Path(name, "root"), Path(name, "errors")
        Path(name).chmod(0o711)
        place = script.resolve()
        _furnish(root, place, text)
        code = _run(root, errors, ["/bin/bash", str(place), *arguments], environment or {})
        complaints = list(_complaints(errors.read_text("utf-8", "replace"), str(place), code))
        return Expansion(commands=_records(root / "records"), complaints=complaints)


def _furnish(root: Path, script: Path, text: bytes) -> None:
    """Create the jail's files: programs with their libraries, stubs, the script at its path, the working directory."""
    writable = ("", "records", "tmp", "dev", *_with_parents(script.parent), *_with_parents(Path.cwd()))
    for folder in (*writable, "bin"):
        (root / folder).mkdir(exist_ok=True)
    programs = [path for name in ("bash", *TEXT_PROGRAMS) if (path := shutil.which(name))]
    for library in _libraries(programs):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    for program in programs:
        shutil.copy(program, root / "bin" / Path(program).name)
    (root / "bin/sh").symlink_to("bash")
    for name in LAUNCHERS:
        (root / "bin" / name).write_text(STUB)
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


def _records(folder: Path) -> list[list[str]]:
    """Read the records in order of time, without links, which may lead out of the jail."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    return [path.read_text("utf-8", "replace").split("\0")[:-1] for path in paths[:MAX_RECORDS]]


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
