"""
A stand-in for the command line of podman, for machines without one: containers are trees of real processes, whose
files and labels are in a folder.

    podman.py STATE run --detach ... ─▶ monitor ─┬─ the container's program
    podman.py STATE exec NAME ...    ─▶ monitor ─┴─ another one, which outlives a client that is killed

It is as strict as podman: it knows the options that podman has and this repository uses, refuses others with podman's
words and exit code, and keeps names, images in use and anonymous volumes as podman does. Programs see the files of this
machine; those of the container are in their working directory, so tests name them by relative paths.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any, NoReturn

STATE = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
KINDS = ("container", "image", "volume", "network")
CLEAN = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/root", "container": "podman"}
BUILT_IN_NETWORKS = ("none", "bridge", "host")


class Failure(Exception):
    """An error of podman: its words, and its exit code."""

    def __init__(self, words: str, code: int = 125) -> None:
        super().__init__(words)
        self.code = code


# ── options ───────────────────────────────────────────────────────────────────────────────────

Options = dict[str, list[str]]
FLAGS = {
    "run": "detach init rm interactive",
    "exec": "interactive tty detach",
    "ps": "all quiet no-trunc",
    "rm": "force volumes",
    "images": "all quiet no-trunc",
    "rmi": "force",
    "ls": "quiet",
    "commit": "quiet",
    "build": "quiet",
    "pull": "quiet",
}
VALUES = {
    "run": "name label cpus memory pids-limit network volume workdir entrypoint pull stop-signal stop-timeout env user",
    "exec": "env workdir user",
    "ps": "filter format",
    "images": "filter format",
    "ls": "filter format",
    "commit": "change message author pause",
    "build": "tag file label",
    "version": "format",
    "inspect": "format",
    "create": "label",
}
SHORT = {"-d": "detach", "-i": "interactive", "-a": "all", "-q": "quiet", "-f": "force", "-v": "volumes"}


def parsed(command: str, words: list[str]) -> tuple[Options, list[str]]:
    """Options and the rest, which begins with the first word that is none, as podman's parser has it."""
    flags, values = FLAGS.get(command, "").split(), VALUES.get(command, "").split()
    found: Options = {}
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        name, has_value, value = SHORT.get(word, word.removeprefix("--")).partition("=")
        if name in flags and (not has_value or value in ("true", "false")):
            found[name] = [] if value == "false" else ["true"]
        elif name in values and (has_value or words):
            found.setdefault(name, []).append(value if has_value else words.pop(0))
        elif name in values:
            raise Failure(f"flag needs an argument: --{name}")
        else:
            raise Failure(f"unknown flag: {word}\nSee 'podman {command} --help'")
    return found, words


def number(options: Options, name: str, kind: type) -> None:
    for value in options.get(name, []):
        try:
            kind(value)
        except ValueError:
            raise Failure(f'invalid argument "{value}" for "--{name}" flag: invalid syntax') from None


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (text.partition("=") for text in texts)}


# ── state ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def locked() -> Iterator[None]:
    with (STATE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def folder(kind: str, id_: str = "") -> Path:
    return STATE / f"{kind}s" / id_


def every(kind: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder(kind).glob("*/about.json")):
        with suppress(OSError, ValueError):
            found.append(json.loads(path.read_text()))
    return found


def write(kind: str, about: dict[str, Any]) -> None:
    path = folder(kind, about["Id"])
    path.mkdir(parents=True, exist_ok=True)
    (path / "about.new").write_text(json.dumps({"Created": time.time()} | about))
    (path / "about.new").rename(path / "about.json")


def find(kind: str, name: str) -> dict[str, Any] | None:
    plain = name.removeprefix("sha256:")
    for about in sorted(every(kind), key=lambda about: about["Created"], reverse=True):  # a name is the newest's
        if name in about["Names"] or (len(plain) >= 12 and about["Id"].startswith(plain)):
            return about
        if kind == "image" and any(known in (f"{name}:latest", f"localhost/{name}") for known in about["Names"]):
            return about
    return None


def container(name: str) -> dict[str, Any]:
    if (about := find("container", name)) is None:
        raise Failure(f'no container with name or ID "{name}" found: no such container')
    return about


def is_running(about: dict[str, Any]) -> bool:
    with suppress(OSError):
        fields = Path(f"/proc/{about['Monitor']}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX" and fields[19] == about["Started"]
    return False


def new_id() -> str:
    return os.urandom(32).hex()


def filtered(kind: str, options: Options) -> list[dict[str, Any]]:
    found = every(kind)
    for text in options.get("filter", []):
        key, _, value = text.partition("=")
        if key != "label":
            raise Failure(f"{key} is an invalid filter")
        name, has_value, wanted = value.partition("=")
        found = [
            about for about in found if name in about["Labels"] and (not has_value or about["Labels"][name] == wanted)
        ]
    return found


# ── containers ────────────────────────────────────────────────────────────────────────────────


def run(words: list[str]) -> None:
    import shutil

    options, rest = parsed("run", words)
    number(options, "cpus", float)
    number(options, "memory", int)
    number(options, "pids-limit", int)
    if not rest:
        raise Failure("requires at least 1 arg(s), only received 0")
    image_name, *command = rest
    name = options.get("name", [os.urandom(6).hex()])[-1]
    if not NAME.fullmatch(name):
        raise Failure("names must match [a-zA-Z0-9][a-zA-Z0-9_.-]*: invalid argument")
    for network in options.get("network", []):
        if network not in BUILT_IN_NETWORKS and find("network", network) is None:
            raise Failure(f"unable to find network with name or ID {network}: network not found")
    with locked():
        if (image := find("image", image_name)) is None:
            raise Failure(f"{image_name}: image not known")
        if used := find("container", name):
            raise Failure(
                f'creating container storage: the container name "{name}" is already in use by {used["Id"]}. You have '
                f"to remove that container to be able to reuse that name: that name is already in use"
            )
        id_ = new_id()
        files = folder("container", id_) / "files"
        shutil.copytree(folder("image", image["Id"]) / "files", files, symlinks=True)
        volumes = [anonymous(files, target) for target in image["Volumes"]]
        for mount in options.get("volume", []):
            source, target, *_ = mount.split(":")
            if not Path(source).exists():
                raise Failure(f"statfs {source}: no such file or directory")
            place(files, target, Path(source))
        (workdir := inside(files, options.get("workdir", [image["Workdir"]])[-1])).mkdir(parents=True, exist_ok=True)
        argv = [*options.get("entrypoint", []), *command] or ["sleep", "infinity"]
        if shutil.which(argv[0]) is None:
            shutil.rmtree(folder("container", id_))
            raise Failure(f"crun: executable file `{argv[0]}` not found in $PATH: No such file or directory", 127)
        monitor = start_monitor(folder("container", id_), workdir, argv)
        write(
            "container",
            {
                "Id": id_, "Names": [name], "Image": image["Id"], "Volumes": volumes, "Monitor": monitor,
                "Started": Path(f"/proc/{monitor}/stat").read_text().rpartition(")")[2].split()[19],
                "Labels": image["Labels"] | labels_of(options.get("label", [])), "Workdir": str(workdir),
            },
        )  # fmt: skip
    print(id_)


def anonymous(files: Path, target: str) -> str:
    name = new_id()
    write("volume", {"Id": name, "Names": [name], "Labels": {}, "Anonymous": True})
    place(files, target, folder("volume", name))
    return name


def place(files: Path, target: str, source: Path) -> None:
    import shutil

    at = inside(files, target)
    at.parent.mkdir(parents=True, exist_ok=True)
    if at.is_dir() and not at.is_symlink():
        shutil.rmtree(at)
    at.symlink_to(source)


def inside(files: Path, path: str) -> Path:
    return files / path.lstrip("/")


def exec_(words: list[str]) -> int:
    import array
    import shutil
    import socket
    import threading

    options, rest = parsed("exec", words)
    if len(rest) < 2:
        raise Failure("must provide a non-empty command to start an exec session: invalid argument")
    about = container(rest[0])
    if not is_running(about):
        raise Failure("can only create exec sessions on running containers: container state improper", 255)
    place_, argv = folder("container", about["Id"]), rest[1:]
    if shutil.which(argv[0]) is None:
        print(
            f"Error: crun: executable file `{argv[0]}` not found in $PATH: No such file or directory", file=sys.stderr
        )
        return 127
    ours, theirs = zip(*(os.pipe() if fd else os.pipe()[::-1] for fd in range(3)), strict=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(f"/proc/self/fd/{os.open(place_, os.O_PATH)}/monitor")
        request = json.dumps({"argv": argv, "env": labels_of(options.get("env", [])), "workdir": about["Workdir"]})
        link.sendmsg([request.encode() + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))])
        for fd in theirs:
            os.close(fd)
        if "interactive" in options:
            threading.Thread(target=relay, args=(0, ours[0]), daemon=True).start()
        else:
            os.close(ours[0])
        readers = [threading.Thread(target=relay, args=(ours[fd], fd)) for fd in (1, 2)]
        for reader in readers:
            reader.start()
        told = link.makefile().readline()
        if not told:  # the container ended
            return 137
        for reader in readers:
            reader.join(1.0)
        return int(told)


def relay(source: int, target: int) -> None:
    with suppress(OSError):
        while chunk := os.read(source, 1 << 16):
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
    with suppress(OSError):
        os.close(target)


def rename(words: list[str]) -> None:
    _, rest = parsed("rename", words)
    with locked():
        about = container(rest[0])
        if find("container", rest[1]):
            raise Failure(f'renaming container {rest[0]}: name "{rest[1]}" is in use: container already exists')
        write("container", about | {"Names": [rest[1]]})


def rm(words: list[str]) -> None:
    import shutil

    options, rest = parsed("rm", words)
    for name in rest:
        with locked():
            if (about := find("container", name)) is None:
                if "force" in options:
                    continue
                raise Failure(f'no container with ID or name "{name}" found: no such container', 1)
            if is_running(about):
                if "force" not in options:
                    raise Failure(
                        f"cannot remove container {about['Id']} as it is running - running or paused containers cannot "
                        f"be removed without force: container state improper", 2,
                    )  # fmt: skip
                end(about)
            for volume in about["Volumes"] if "volumes" in options else []:
                shutil.rmtree(folder("volume", volume), ignore_errors=True)
            shutil.rmtree(folder("container", about["Id"]), ignore_errors=True)
        print(about["Id"])


def end(about: dict[str, Any]) -> None:
    """Kill the monitor and everything below it."""
    while is_running(about):
        for pid in [about["Monitor"], *below(about["Monitor"])][::-1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def below(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found[1:]


def cp(words: list[str]) -> None:
    import io
    import tarfile

    _, rest = parsed("cp", words)
    source, target = rest
    name, _, path = (target if source == "-" else source).partition(":")
    files = folder("container", container(name)["Id"]) / "files"
    if source == "-":
        with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as archive:
            archive.extractall(inside(files, path), filter="tar")
        return
    at = inside(files, path)
    if not at.exists() and not at.is_symlink():
        raise Failure(f'"{path}" could not be found on container {name}: no such file or directory')
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        archive.add(at, at.name)


def commit(words: list[str]) -> None:
    import shutil

    options, rest = parsed("commit", words)
    name, image = rest
    about = container(name)
    changes = [text.partition(" ") for text in options.get("change", [])]
    if wrong := [instruction for instruction, _, _ in changes if instruction != "LABEL"]:
        raise Failure(f"invalid change {wrong[0]}")
    id_ = new_id()
    files = folder("container", about["Id"]) / "files"
    shutil.copytree(files, folder("image", id_) / "files", symlinks=True)
    labels = about["Labels"] | labels_of([text for _, _, text in changes])
    with locked():
        container(name)
        write(
            "image",
            {"Id": id_, "Names": [image], "Labels": labels, "Volumes": [], "Workdir": "/", "Parent": about["Image"]},
        )
        tag(id_, image)  # afterwards: a client that is killed between must not leave the name to nobody
    print(id_)


def tag(id_: str, name: str) -> None:
    """Take a name from the image that has it."""
    for about in every("image"):
        if name in about["Names"] and about["Id"] != id_:
            write("image", about | {"Names": [one for one in about["Names"] if one != name]})


# ── images ────────────────────────────────────────────────────────────────────────────────────


def rmi(words: list[str]) -> None:
    import shutil

    options, rest = parsed("rmi", words)
    for name in rest:
        with locked():
            if (about := find("image", name)) is None:
                raise Failure(f"{name}: image not known", 1)
            if name in about["Names"] and len(about["Names"]) > 1:
                write("image", about | {"Names": [one for one in about["Names"] if one != name]})
                continue
            users = [one for one in every("container") if one["Image"] == about["Id"]]
            if users and "force" not in options:
                raise Failure(
                    f"image used by {users[0]['Id']}: image is in use by a container: consider listing external "
                    f"containers and force-removing image", 2,
                )  # fmt: skip
            for user in users:  # so dangerous is --force
                end(user)
                shutil.rmtree(folder("container", user["Id"]))
            shutil.rmtree(folder("image", about["Id"]))
        print(about["Id"])


def pull(words: list[str]) -> None:
    """A registry is a folder here, in which each image is a folder of files."""
    _, (name,) = parsed("pull", words)
    if not (known := STATE / "registry" / name).is_dir():
        raise Failure(
            f"initializing source docker://{name}:latest: reading manifest latest in {name}: manifest unknown"
        )
    made(name, known)


def made(name: str, files: Path, labels: dict[str, str] | None = None, volumes: Sequence[str] = ()) -> None:
    import shutil

    with locked():
        id_ = new_id()
        shutil.copytree(files, folder("image", id_) / "files")
        tag(id_, name)
        about = {"Id": id_, "Names": [name], "Labels": labels or {}, "Volumes": list(volumes), "Workdir": "/"}
        write("image", about)


def build(words: list[str]) -> None:
    import shlex
    import shutil
    import subprocess

    options, (context,) = parsed("build", words)
    recipe = Path(context, "Dockerfile")
    if not recipe.is_file():
        raise Failure(
            f"no Containerfile or Dockerfile specified or found in context directory, {context}: no such file"
        )
    id_, workdir, labels = new_id(), "/", labels_of(options.get("label", []))
    files = folder("image", id_) / "files"
    files.mkdir(parents=True)
    for line in recipe.read_text().splitlines():
        instruction, _, text = line.partition(" ")
        match instruction:
            case "" | "#":
                continue
            case "FROM":
                if (base := find("image", text)) is None:
                    pull([text])
                    base = find("image", text)
                assert base is not None
                shutil.copytree(folder("image", base["Id"]) / "files", files, dirs_exist_ok=True)
            case "WORKDIR":
                workdir = text
                inside(files, text).mkdir(parents=True, exist_ok=True)
            case "COPY":
                source, target = shlex.split(text)
                (at := inside(files, target)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(context, source), at)
            case "RUN":
                done = subprocess.run(["/bin/sh", "-c", text], cwd=inside(files, workdir), env=CLEAN, check=False)
                if done.returncode:
                    raise Failure(
                        f'building at STEP "RUN {text}": while running runtime: exit status {done.returncode}'
                    )
            case _:
                raise Failure(f"unknown instruction: {instruction}")
    with locked():
        for name in options.get("tag", []):
            tag(id_, name)
        names = options.get("tag", [])
        write("image", {"Id": id_, "Names": names, "Labels": labels, "Volumes": [], "Workdir": workdir})
    print(id_)


# ── looks ─────────────────────────────────────────────────────────────────────────────────────


def listed(kind: str, options: Options) -> None:
    if not options.get("quiet"):
        raise Failure("the stand-in lists ids alone: --quiet")
    for about in filtered(kind, options):
        if kind != "container" or options.get("all") or is_running(about):
            print(f"sha256:{about['Id']}" if kind == "image" else about["Id"])


def inspect(kind: str, words: list[str]) -> int:
    options, rest = parsed("inspect", words)
    found, code = [], 0
    for name in rest:
        if (about := find(kind, name)) is None:
            sys.stderr.write(f"Error: no such {kind} {name}" + "\n")
            code = 125
        else:
            found.append(shown(kind, about))
    if "format" not in options:
        print(json.dumps(found))
    elif options["format"] == ["{{.State.Running}}"] and kind == "container":
        for one in found:
            print("true" if one["State"]["Running"] else "false")
    else:
        raise Failure(f"the stand-in has no format {options['format'][0]}")
    return code


def shown(kind: str, about: dict[str, Any]) -> dict[str, Any]:
    match kind:
        case "container":
            state = {"Running": is_running(about), "Pid": about["Monitor"]}
            return {"Id": about["Id"], "Name": about["Names"][0], "Config": {"Labels": about["Labels"]}, "State": state}
        case "image":
            return {"Id": about["Id"], "RepoTags": about["Names"], "Config": {"Labels": about["Labels"]}}
        case "volume":
            return {"Name": about["Id"], "Labels": about["Labels"], "Anonymous": about.get("Anonymous", False)}
    return {"name": about["Names"][0], "id": about["Id"], "labels": about["Labels"]}


def version(words: list[str]) -> None:
    options, _ = parsed("version", words)
    print("5.0.0-stand-in" if "format" in options else "Client: Podman Engine\nVersion: 5.0.0-stand-in")


def made_or_removed(kind: str, verb: str, words: list[str]) -> int:
    """``volume`` and ``network``: ls, create, inspect, rm."""
    import shutil

    match verb:
        case "ls":
            listed(kind, parsed("ls", words)[0])
        case "inspect":
            return inspect(kind, words)
        case "create":
            options, (name,) = parsed("create", words)
            id_ = name if kind == "volume" else new_id()
            write(kind, {"Id": id_, "Names": [name], "Labels": labels_of(options.get("label", []))})
            print(name)
        case "rm":
            for name in parsed("rm", words)[1]:
                if (about := find(kind, name)) is None:
                    raise Failure(f"no {kind} with name {name} found: no such {kind}", 1)
                shutil.rmtree(folder(kind, about["Id"]))
        case _:
            raise Failure(f"unrecognized command `podman {kind} {verb}`")
    return 0


# ── monitor ───────────────────────────────────────────────────────────────────────────────────
# The parent of a container's processes, in a session of its own: it outlives the client that started it.


def start_monitor(place_: Path, workdir: Path, argv: list[str]) -> int:
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        os.waitpid(child, 0)
        with os.fdopen(reader) as told:
            return int(told.readline())
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        os.close(reader)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.set_inheritable(writer, True)
        keep = {0, 1, 2, writer}
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            if fd not in keep:
                with suppress(OSError):
                    os.close(fd)
        # Without the environment of whoever called podman: a process is in a container, not below its caller.
        os.execve(
            sys.executable,
            [sys.executable, "-ES", __file__, str(place_), "monitor", str(writer), str(workdir), *argv],
            CLEAN,
        )
    finally:
        os._exit(1)


def monitor(words: list[str]) -> NoReturn:
    import ctypes
    import socket
    import subprocess
    import threading

    writer, workdir, *argv = words
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    os.chdir(STATE)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("monitor")
    listener.listen(64)
    main_program = subprocess.Popen(argv, cwd=workdir, env=CLEAN, start_new_session=True)
    os.write(int(writer), b"%d\n" % os.getpid())
    os.close(int(writer))
    threading.Thread(target=leave_with, args=(main_program,), daemon=True).start()
    while True:
        link, _ = listener.accept()
        threading.Thread(target=serve, args=(link,), daemon=True).start()


def leave_with(program: subprocess.Popen[bytes]) -> NoReturn:
    program.wait()
    for pid in below(os.getpid())[::-1]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def serve(link: Any) -> None:
    import array
    import socket
    import subprocess

    with link:
        fds = array.array("i")
        text, extra, _, _ = link.recvmsg(1 << 20, socket.CMSG_SPACE(3 * fds.itemsize))
        for _, _, data in extra:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        while not text.endswith(b"\n"):
            text += link.recv(1 << 20)
        request = json.loads(text)
        stdin, stdout, stderr = fds
        program = subprocess.Popen(
            request["argv"], cwd=request["workdir"], env=CLEAN | request["env"], start_new_session=True,
            stdin=stdin, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        for fd in fds:
            os.close(fd)
        code = program.wait()
        with suppress(OSError):
            link.sendall(b"%d\n" % (code if code >= 0 else 128 - code))


# ── main ──────────────────────────────────────────────────────────────────────────────────────

COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "run": run,
    "exec": exec_,
    "rename": rename,
    "rm": rm,
    "cp": cp,
    "commit": commit,
    "rmi": rmi,
    "pull": pull,
    "build": build,
    "version": version,
    "ps": lambda words: listed("container", parsed("ps", words)[0]),
    "images": lambda words: listed("image", parsed("images", words)[0]),
}


def main(words: list[str]) -> int:
    if words[:1] == ["monitor"]:
        monitor(words[1:])
    while (STATE / "hangs").exists():  # a service that answers nobody
        time.sleep(0.1)
    for kind in KINDS:
        folder(kind).mkdir(parents=True, exist_ok=True)
    command, *rest = words
    try:
        if command in ("volume", "network"):
            return made_or_removed(command, rest[0], rest[1:])
        if command in KINDS and rest[:1] == ["inspect"]:
            return inspect(command, rest[1:])
        if command not in COMMANDS:
            raise Failure(f"unrecognized command `podman {command}`\nTry 'podman --help' for more information")
        return COMMANDS[command](rest) or 0
    except Failure as failure:
        sys.stderr.write(f"Error: {failure}" + "\n")
        return failure.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
