"""
Expansion of a launch script: it runs in a jail, where each program only records its arguments.

    run.sh ─▶ bash, below a temporary root ─▶ python3, ray, torchrun, ... are stubs ─▶ records ─▶ `Expansion`

The script is foreign code. The temporary root holds bash, some programs that only read and write text, the script, and
the files beside it that it names; `asyncrl.tools.verl.jail` denies all else: other files, network, signals. The
environment has HOME, from which scripts build paths, and the caller's variables. The root is removed afterwards.

Which files a script names is seen in runs of their own, by bash's trace of what each command is given.
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
from functools import cache
from pathlib import Path

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.files.foreign import read_bytes
from asyncrl.foreign_text import shown
from asyncrl.tools.verl.jail import CPU_S, FILE_BYTES
from asyncrl.workers.sandbox import ended

BASE = ("HOME", "PATH", "BASH_ENV", "TMPDIR", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_")
"""Variables that the jail and bash set themselves."""
JAIL = Path(__file__).with_name("jail.py")
WALL_S = 10.0
PROCESSES = 64
"""Processes that a script may have at once."""
MAX_RECORDS = 1000
ABSENT = "No such file or directory"
NOT_READ = "it was not read; start this command where the script is started, with the script's files there or beside it"
SHORTEN = "take out what it does before the training, or give the options themselves: asyncrl import-verl KEY=VALUE ..."
NPU_NAME = re.compile(r"(?<![A-Za-z])npu(?![A-Za-z])")
"""``npu`` as a word of a file's name: ``prompt_key=input`` has these letters too."""
FIRST_USER_ID = 61184
"""Lowest of 4,096 user ids without an account: the range from which systemd takes its dynamic users."""
TEXT_PROGRAMS = (
    "basename", "cat", "cut", "date", "dirname", "echo", "env", "expr", "grep", "head", "ls", "mkdir", "nproc",
    "realpath", "sed", "seq", "sort", "tail", "tee", "touch", "tr", "uname", "wc", "xargs",
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
  if [[ ! -r $1 ]]; then
    printf '%s: line %s: %s: No such file or directory\\n' "$0" "${{__line:-${{BASH_LINENO[0]}}}}" "$1" >&2
    command_not_found_handle source "$@"
    return
  fi
  builtin source "$@"
}}
function . {{ __line=${{BASH_LINENO[0]}} source "$@"; }}
cd() {{ builtin cd "$@" 2>/dev/null || command_not_found_handle cd "$@"; }}
export -f command_not_found_handle ulimit source . cd
"""
"""
Start of every bash: records a missing program, which then succeeds, and keeps the jail's limits. A file to source and a
folder to enter that the jail does not have are recorded as well: they do not end a script with ``set -e``.
"""
TRACED = """exec {__trace}>>/trace
BASH_XTRACEFD=$__trace
set -x
"""
"""End of it in a run that looks for the files which the script names: what each command is given is written down."""
MOST_ROUNDS, MOST_BYTES = 4, 1 << 20
"""Runs that look for files, because a file may name others; and size of the largest."""
SPLIT, ASKED = re.compile(r"[\s'\"<>;|&()`=]+"), re.compile(r"^\++ (?:'\['|\[\[|test) -[efrs] (\S+)", re.M)
"""Characters between words of a script and of a trace; and a trace of the question whether there is a file."""


class Expansion(Struct, frozen=True):
    """Commands of a script, in order, and the errors of its shell."""

    commands: list[list[str]]
    """Name and arguments of every program that it would have run, without `TEXT_PROGRAMS`."""
    environments: list[dict[str, str]]
    """Variables that the script has exported to each of them, without those it was given."""
    complaints: list[str]
    """Errors that bash printed, such as an unbound variable or a file that is not in the jail."""
    stopped: str = ""
    """Limit at which the script was stopped, and what to do; empty if it ended by itself."""


class _Ran(Struct, frozen=True):
    """One run in the jail: exit code, None after `WALL_S`; and what was printed, recorded and traced."""

    code: int | None
    errors: str
    commands: dict[str, list[str]]
    variables: dict[str, list[str]]
    trace: str


def expand(script: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Expansion:
    """
    Run ``script`` in the jail, with the files that it names.

    Args:
        arguments: Its ``$1``, ``$2``, ...
        environment: Its environment, such as MODEL_PATH or NNODES.

    Raises:
        ConfigError: The script cannot be read, or this machine cannot build the jail.
    """
    place, given_here = script.resolve(), environment or {}
    files = {place: read_bytes(script, what=f"the script {shown(str(script))}")}
    asked: list[str] = []
    for _ in range(MOST_ROUNDS):
        trace = _ran(place, files, arguments, given_here, is_traced=True).trace
        asked = ASKED.findall(trace)
        found = {path: read_bytes(path) for path in _named(trace, files, place) if path not in files}
        if not (texts := {path: text for path, text in found.items() if b"\0" not in text}):
            break
        files |= texts
    ran = _ran(place, files, arguments, given_here, is_traced=False)
    before = {*BASE, *(f"{name}={value}" for name, value in given_here.items())}
    folders = (Path.cwd(), place.parent)
    unread = [name for name in dict.fromkeys(asked) if not any(_at(folder, name) in files for folder in folders)]
    return Expansion(
        commands=list(ran.commands.values()),
        environments=[_exported(ran.variables.get(name, []), before) for name in ran.commands],
        complaints=[*_complaints(ran.errors, str(place), ran.code), *(f"{name}: {NOT_READ}" for name in unread)],
        stopped=_stopped(ran.code),
    )


def _ran(
    script: Path,
    files: Mapping[Path, bytes],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    is_traced: bool,
) -> _Ran:
    with tempfile.TemporaryDirectory(prefix="asyncrl-", ignore_cleanup_errors=True) as name:
        root, errors = Path(name, "root"), Path(name, "errors")
        Path(name).chmod(0o711)
        _furnish(root, script, files, is_traced=is_traced)
        code = _run(root, errors, ["/bin/bash", str(script), *arguments], environment)
        texts = [path.read_text("utf-8", "replace") for path in (errors, root / "trace")]
        return _Ran(code, texts[0], _records(root / "records"), _records(root / "variables"), texts[1])


def _named(trace: str, files: Mapping[Path, bytes], script: Path) -> Iterator[Path]:
    """Files beside the script or below the working directory that a trace or the text of ``files`` names."""
    texts = [trace, *(text.decode("utf-8", "replace") for text in files.values())]
    words = {word for text in texts for word in SPLIT.split(text) if 0 < len(word) < 200}
    folders = [folder for folder in (Path.cwd(), script.parent) if not Path.home().is_relative_to(folder)]
    for path in {_at(folder, word) for folder in folders for word in words}:
        is_beside = any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)
        if is_beside and path.is_file() and path.stat().st_size <= MOST_BYTES and os.access(path, os.R_OK):
            yield path


def _at(folder: Path, name: str) -> Path:
    """The path that a name means in a folder, without ``..`` in it."""
    return Path(os.path.normpath(folder / name))


def _furnish(root: Path, script: Path, files: Mapping[Path, bytes], *, is_traced: bool) -> None:
    """Create the jail: programs with their libraries, stubs, ``files`` at their paths, the working directory."""
    writable = ("", "records", "variables", "tmp", "dev", *_with_parents(script.parent), *_with_parents(Path.cwd()))
    for folder in (*writable, "bin"):
        (root / folder).mkdir(exist_ok=True)
    programs = [path for name in ("bash", *TEXT_PROGRAMS) if (path := shutil.which(name))]
    for library in _libraries(*programs):
        (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, root / library[1:])
    for program in programs:
        shutil.copy(program, root / "bin" / Path(program).name)
    (root / "bin/sh").symlink_to("bash")
    stub = STUB.replace("DEVICE", "npu" if NPU_NAME.search(script.name) else "cuda")
    for name in LAUNCHERS:
        (root / "bin" / name).write_text(stub)
        (root / "bin" / name).chmod(0o755)
    (root / "prelude.sh").write_text(PRELUDE + TRACED * is_traced)
    (root / "dev/null").touch()
    (root / "trace").touch()
    for file, text in files.items():
        copy = root / str(file)[1:]
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            copy.write_bytes(text)
            copy.chmod(file.stat().st_mode & 0o777)
    for entry in root.rglob("*"):  # The jail may have another user, and the umask may exclude it.
        entry.chmod(entry.stat().st_mode | (0o755 if entry.is_dir() else 0o644))
    for name in (*writable, "dev/null", "trace"):
        (root / name).chmod(0o777)
    if not (root / "usr/bin").exists():
        (root / "usr").mkdir(exist_ok=True)
        (root / "usr/bin").symlink_to("../bin")


def _with_parents(folder: Path) -> list[str]:
    """An absolute folder and its parents, without the leading slash, the highest first."""
    return [str(path)[1:] for path in reversed([folder, *folder.parents])][1:]


@cache
def _libraries(*programs: str) -> set[str]:
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
        code = ended(process, WALL_S)  # nothing in the jail can leave the session
        if reason := failed.read():
            raise _no_jail(reason)
    return code


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
    """Yield bash's errors without the traces of ``set -x``, files that programs miss, and the exit code if not 0."""
    lines = errors.splitlines()
    readers = ("bash", *TEXT_PROGRAMS)
    said = [
        line.removeprefix(f"{script}: ") + f"; {NOT_READ}" * line.endswith(ABSENT)
        for line in lines
        if line.startswith(f"{script}: line ") or (line.endswith(ABSENT) and line.partition(": ")[0] in readers)
    ]
    yield from said
    if limit := _stopped(code):
        yield limit
    elif code:
        last = next((line for line in reversed(lines) if not line.startswith("+")), "").removeprefix(f"{script}: ")
        repeats = any(each.startswith(last) for each in said)
        yield f"the script ended with exit code {code}" + (f": {last}" if last and not repeats else "")


def _stopped(code: int | None) -> str:
    """Sentence about the limit at which a script was stopped, by its exit code; empty if it was not."""
    signals = {
        f"ran longer than {CPU_S} s of CPU": (signal.SIGXCPU, signal.SIGKILL),
        f"wrote more than {FILE_BYTES >> 20} MiB into a file": (signal.SIGXFSZ,),
    }
    limits = {number: limit for limit, numbers in signals.items() for each in numbers for number in (-each, 128 + each)}
    limit = f"did not end within {WALL_S:g} s" if code is None else limits.get(code, "")
    return f"the script {limit} and was stopped; {SHORTEN}" if limit else ""


def _no_jail(reason: str) -> ConfigError:
    return ConfigError(
        f"this machine cannot expand a launch script safely ({reason}): it needs Linux, bash, ldd and the right to "
        f"change a process's root; give the options themselves: asyncrl import-verl KEY=VALUE ..."
    )
