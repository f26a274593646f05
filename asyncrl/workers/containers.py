"""
Containers of episodes: the runtime's command line, and who owns what is in it.

    node ── start, rename, snapshot, remove ─▶ docker | podman          names a container for each episode
    worker of environments ── run, put, get ─▶ docker | podman          in the container that it was told

A container belongs to the process that started it, whose name it carries as the label `OWNER`: whoever finds a dead
owner's containers, volumes, networks and snapshot images removes them. Nothing here remembers anything: what there is,
the runtime knows.

It needs the standard library of Python 3.9 alone, because workers of environments load it under other interpreters.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import secrets
import shutil
import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asyncrl.environment import Output
from asyncrl.errors import ConfigError, ContainerFailed
from asyncrl.plug_in import is_path, load_callable

RUNTIMES = ("docker", "podman")
SETTING = "environment.container.runtime"

# ── owner ─────────────────────────────────────────────────────────────────────────────────────
# The process that a container belongs to, as a label that says on every machine whether it lives.
#
#     HOST BOOT NAMESPACE PID START      separated by slashes

OWNER, RUN, NODE, EPISODE = "asyncrl.owner", "asyncrl.run", "asyncrl.node", "asyncrl.episode"
"""Labels. A container of a warm pool has no episode yet: its name tells it, once it is leased."""
SAVED = "asyncrl.saved"
"""Label of a snapshot: the time at which it was made, in seconds since the epoch."""
PROC = Path("/proc")


def owner_of(pid: int) -> str:
    """Name a process, this one's or another's of this machine, so that no later process has the same name."""
    return "/".join((*_machine(), str(pid), _started(pid)))


def is_dead(owner: str) -> bool:
    """True if the owner ran on this machine and does so no more; False for one that cannot be judged from here."""
    host, boot, namespace, pid, start = (owner.split("/") + [""] * 5)[:5]
    here = _machine()
    if host != here[0]:
        return False
    if boot != here[1]:
        return True  # the machine was started again
    return namespace == here[2] and _started(int(pid)) != start


def _machine() -> tuple[str, str, str]:
    boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname(), boot, str((PROC / "self/ns/pid").stat().st_ino)


def _started(pid: int) -> str:
    """Time at which a process was started, in the kernel's ticks; empty if it has ended."""
    with suppress(OSError):
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


# ── interface ─────────────────────────────────────────────────────────────────────────────────


class Owned(NamedTuple):
    """Something in a runtime that carries an `OWNER`."""

    kind: str
    """``container``, ``volume``, ``network`` or ``image``."""
    id: str
    labels: Mapping[str, str]


class Containers(Protocol):
    """
    A container runtime; ``file.py:name`` in ``environment.container.runtime`` names a class with these methods.

    Nodes, workers of environments and the reaper each make an instance, without arguments. Every method has a deadline
    of its own and raises `ContainerFailed`, whose message names the runtime.
    """

    program: str
    """Path of a command line that people and environments may use; empty without one."""

    async def check(self) -> str:
        """Describe the runtime, such as ``podman 5.2``, if it answers."""

    async def has(self, image: str) -> bool:
        """True if the image is here."""

    async def prepare(self, image: str, build: str = "") -> None:
        """Have an image here: build it from the folder ``build`` if that is given, else pull it, unless it is here."""

    async def start(self, name: str, image: str, settings: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        """Start a container; ``settings`` are those of ``[environment.container]``."""

    async def rename(self, name: str, new: str) -> None:
        """Give a running container another name."""

    async def run(self, name: str, argv: Sequence[str], input: bytes, timeout_s: float) -> Output:  # noqa: A002
        """See `Container.run`."""

    async def put(self, name: str, files: Mapping[str, bytes]) -> None:
        """Write files by their absolute paths, with the folders above them; all of them may be executed."""

    async def get(self, name: str, path: str) -> bytes:
        """Read a file; raises `FileNotFoundError`."""

    async def snapshot(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        """Save the files of a container as an image, which carries the labels of the container and these."""

    async def owned(self) -> list[Owned]:
        """All that carries an `OWNER`."""

    async def remove(self, kind: str, id: str) -> None:  # noqa: A002
        """Remove one of these with what is anonymous in it; no error if it is gone."""


def runtime_of(name: str) -> Containers:
    """The runtime that a worker or a reaper was told: ``file.py:name``, or the path of a command line."""
    found: Containers = load_callable(name, setting=SETTING)() if is_path(name) else CommandLine(name)
    return found


async def chosen(runtime: str) -> str:
    """
    Find what ``environment.container.runtime`` means on this machine, for `runtime_of`.

    Raises:
        ConfigError: There is no such runtime, or it does not answer; says what to do.
    """
    problems = []
    for name in RUNTIMES if runtime == "auto" else [runtime]:
        path = name if is_path(name) else shutil.which(name)
        if path is None:
            problems.append(f"{name}: not installed")
            continue
        try:
            await runtime_of(path).check()
        except ContainerFailed as error:
            problems.append(str(error))
        else:
            return path
    raise ConfigError(
        f"environment.container needs a container runtime on the machine of each rollout, and {SETTING} = {runtime!r} "
        f"has none that answers ({'; '.join(problems)}); install docker or podman or start its service, or remove "
        f"[environment.container] (the tool 'python' has a sandbox of its own)"
    )


# ── command line ──────────────────────────────────────────────────────────────────────────────
# docker and podman, which share their command line.

CALL_S = 30.0
"""Seconds for one call of a runtime that only looks, renames or removes."""
START_S = 120.0
"""Seconds to start or to save a container; images are here already."""
FETCH_S = 1800.0
"""Seconds to pull or to build an image."""
MAX_BYTES = 16 << 20
"""Output of a program that is kept, of each stream."""
MAX_REASON = 300
TOKEN = "ASYNCRL_CALL"
KILL = (
    'for e in /proc/[0-9]*/environ; do if grep -q "$0" "$e" 2>/dev/null; then p="${e#/proc/}"; '
    'kill -9 "${p%/environ}" 2>/dev/null; fi; done; true'
)
"""
Kills the processes of one call, which carry its token in their environment: the runtime's client does not take them
with it when it ends.
"""
FAILED = (125, 126, 127, 255)
"""Exit codes of a runtime for failures of its own; a program may have them too."""
GONE = ("no such", "not known", "not found", "no container with", "unable to find", "does not exist")
"""Words of a runtime, in lower case, for what is not there."""
LISTED = {
    "container": ("ps", "--all", "--quiet", "--no-trunc"),
    "volume": ("volume", "ls", "--quiet"),
    "network": ("network", "ls", "--quiet"),
    "image": ("images", "--quiet", "--no-trunc"),
}
REMOVED = {
    "container": ("rm", "--force", "--volumes"),
    "volume": ("volume", "rm"),
    "network": ("network", "rm"),
    "image": ("rmi",),  # without --force, by which podman would remove containers that use it
}


class TookTooLong(ContainerFailed):
    """A command of the runtime did not end before its deadline."""


class CommandLine:
    """`Containers` of a program with the command line of docker and podman."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._name = Path(program).name

    async def check(self) -> str:
        """Describe the runtime, if its daemon answers too."""
        told = await self._call("version", "--format", "{{.Client.Version}}", deadline_s=CALL_S)
        await self._call("ps", "--quiet", "--filter", f"label={OWNER}", deadline_s=CALL_S)
        return f"{self._name} {told.stdout.decode().strip()}"

    async def has(self, image: str) -> bool:
        found = await self._attempt("image", "inspect", image, deadline_s=CALL_S)
        if found.code and not _is_gone(found):
            raise ContainerFailed(f"{self._name} image inspect {image} failed: {_reason(found)}")
        return not found.code

    async def prepare(self, image: str, build: str = "") -> None:
        if await self.has(image):
            return
        if build:
            await self._call("build", "--tag", image, build, deadline_s=FETCH_S)
        else:
            await self._call("pull", image, deadline_s=FETCH_S)

    async def start(self, name: str, image: str, settings: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        program, *rest = settings["command"]
        await self._call(
            *("run", "--detach", "--pull=never", "--init", f"--name={name}", "--stop-signal=SIGKILL"),
            *(f"--label={key}={value}" for key, value in labels.items()),
            *(f"--cpus={settings['cpus']:g}", f"--memory={settings['memory_bytes']}"),
            *(f"--pids-limit={settings['pids']}", f"--network={settings['network']}"),
            *(f"--volume={mount}" for mount in settings["mounts"]),
            *([f"--workdir={settings['workdir']}"] if settings["workdir"] else []),
            *settings["arguments"],
            *(f"--entrypoint={program}", image, *rest),
            deadline_s=START_S,
        )

    async def rename(self, name: str, new: str) -> None:
        await self._call("rename", name, new, deadline_s=CALL_S)

    async def run(self, name: str, argv: Sequence[str], input: bytes, timeout_s: float) -> Output:  # noqa: A002
        token = secrets.token_hex(8)
        call = ("exec", "--interactive", f"--env={TOKEN}={token}", name, *argv)
        try:
            found = await self._attempt(*call, deadline_s=timeout_s, input=input)
        except TookTooLong:
            await self._kill(name, token)
            raise TimeoutError(f"{argv[0]} took longer than {timeout_s:g} s and was killed") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._kill(name, token))
            raise
        is_suspect = found.code in FAILED or found.stderr.startswith(b"Error")
        if found.code < 0 or (is_suspect and not await self._is_running(name)):
            raise ContainerFailed(f"{self._name} exec in {name} failed: {_reason(found)}")
        return found

    async def put(self, name: str, files: Mapping[str, bytes]) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, data in files.items():
                about = tarfile.TarInfo(path.lstrip("/"))
                about.size, about.mode = len(data), 0o755
                archive.addfile(about, io.BytesIO(data))
        await self._call("cp", "-", f"{name}:/", deadline_s=START_S, input=packed.getvalue())

    async def get(self, name: str, path: str) -> bytes:
        for _ in range(10):  # links
            found = await self._attempt("cp", f"{name}:{path}", "-", deadline_s=START_S, max_bytes=None)
            if found.code > 0 and await self._is_running(name):
                raise FileNotFoundError(f"there is no {path} in the container: {_reason(found)}")
            if found.code:
                raise ContainerFailed(f"{self._name} cp from {name} failed: {_reason(found)}")
            with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
                first = archive.next()
                if first is None or not (first.issym() or first.isfile()):
                    raise FileNotFoundError(f"{path} in the container is no file")
                if first.isfile():
                    content = archive.extractfile(first)
                    return content.read() if content else b""
                path = posixpath.normpath(posixpath.join(posixpath.dirname(path), first.linkname))
        raise FileNotFoundError(f"{path} in the container is a link to a link without end")

    async def snapshot(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        changes = (f"--change=LABEL {key}={value}" for key, value in labels.items())
        await self._call("commit", *changes, name, image, deadline_s=START_S)

    async def owned(self) -> list[Owned]:
        return [one for kind in LISTED for one in await self._owned(kind)]

    async def remove(self, kind: str, id: str) -> None:  # noqa: A002
        done = await self._attempt(*REMOVED[kind], id, deadline_s=CALL_S)
        if done.code and not _is_gone(done):
            raise ContainerFailed(f"{self._name} {' '.join(REMOVED[kind])} {id} failed: {_reason(done)}")

    async def _owned(self, kind: str) -> list[Owned]:
        listed = await self._call(*LISTED[kind], "--filter", f"label={OWNER}", deadline_s=CALL_S)
        ids = list(dict.fromkeys(listed.stdout.decode().split()))
        if not ids:
            return []
        # One that was removed meanwhile is an error, and the others are told all the same.
        told = await self._attempt(kind, "inspect", *ids, deadline_s=CALL_S, max_bytes=None)
        if told.code and not _is_gone(told):
            raise ContainerFailed(f"{self._name} {kind} inspect failed: {_reason(told)}")
        found = json.loads(told.stdout or b"[]")
        return [Owned(kind, _id(about), _labels(about)) for about in found if OWNER in _labels(about)]

    async def _is_running(self, name: str) -> bool:
        about = ("container", "inspect", "--format", "{{.State.Running}}", name)
        return (await self._attempt(*about, deadline_s=CALL_S)).stdout.strip() == b"true"

    async def _kill(self, name: str, token: str) -> None:
        with suppress(ContainerFailed):  # the container may be gone
            await self._attempt("exec", name, "sh", "-c", KILL, token, deadline_s=CALL_S)

    async def _call(self, *arguments: str, deadline_s: float, input: bytes = b"") -> Output:  # noqa: A002
        """Run a command of the runtime that must succeed."""
        done = await self._attempt(*arguments, deadline_s=deadline_s, input=input)
        if done.code:
            raise ContainerFailed(f"{self._name} {arguments[0]} failed: {_reason(done)}")
        return done

    async def _attempt(
        self,
        *arguments: str,
        deadline_s: float,
        input: bytes = b"",  # noqa: A002
        max_bytes: int | None = MAX_BYTES,
    ) -> Output:
        """Run a command of the runtime, which is killed after its deadline."""
        pipe = asyncio.subprocess.PIPE
        stdin = pipe if input else asyncio.subprocess.DEVNULL
        try:
            client = await asyncio.create_subprocess_exec(
                self.program, *arguments, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise ContainerFailed(f"{self.program} cannot be run: {error.strerror}") from error
        told = asyncio.gather(
            _fed(client.stdin, input), _drained(client.stdout, max_bytes), _drained(client.stderr, max_bytes)
        )
        try:
            _, stdout, stderr = await asyncio.wait_for(told, deadline_s)
            return Output(await client.wait(), stdout, stderr)
        except asyncio.TimeoutError:  # noqa: UP041  another class before Python 3.11
            late = f"{self._name} {arguments[0]} did not answer within {deadline_s:g} s: is its service stuck?"
            raise TookTooLong(late) from None
        finally:
            if client.returncode is None:
                with suppress(ProcessLookupError):
                    client.kill()
                await client.wait()


async def _fed(stdin: asyncio.StreamWriter | None, data: bytes) -> None:
    if stdin is None:
        return
    with suppress(ConnectionError, RuntimeError):  # uvloop has the latter for a pipe that its reader has closed
        stdin.write(data)
        await stdin.drain()
    stdin.close()


async def _drained(stream: asyncio.StreamReader | None, max_bytes: int | None) -> bytes:
    assert stream is not None, "started with a pipe"
    kept, cut = bytearray(), 0
    while chunk := await stream.read(1 << 16):
        room = len(chunk) if max_bytes is None else max(0, max_bytes - len(kept))
        kept += chunk[:room]
        cut += len(chunk[room:])
    return bytes(kept) + (b"\n[%d more bytes]" % cut if cut else b"")


def _is_gone(done: Output) -> bool:
    said = done.stderr.decode("utf-8", "replace").lower()
    return any(words in said for words in GONE)


def _reason(done: Output) -> str:
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[-MAX_REASON:]
    ended = f"signal {-done.code} ended it" if done.code < 0 else f"exit code {done.code}"
    return f"{said} ({ended})" if said else ended


def _id(about: Mapping[str, Any]) -> str:
    """Id in the account of a thing; volumes have a name alone, and podman's networks write it small."""
    return str(about.get("Id") or about.get("id") or about.get("Name") or about.get("name"))


def _labels(about: Mapping[str, Any]) -> Mapping[str, str]:
    config = about.get("Config") or {}
    return config.get("Labels") or about.get("Labels") or about.get("labels") or {}


# ── one container ─────────────────────────────────────────────────────────────────────────────


class EpisodeContainer:
    """`asyncrl.environment.Container`: one container of a runtime."""

    def __init__(self, runtime: str, name: str, label: str) -> None:
        self._runtime = runtime_of(runtime)
        self.name = name
        self.program = self._runtime.program
        self.label = label

    async def run(self, argv: Sequence[str], input: bytes = b"", timeout_s: float = 60.0) -> Output:  # noqa: A002
        return await self._runtime.run(self.name, list(argv), input, timeout_s)

    async def put(self, path: str, data: bytes) -> None:
        await self._runtime.put(self.name, {path: data})

    async def get(self, path: str) -> bytes:
        return await self._runtime.get(self.name, path)


# ── reaping ───────────────────────────────────────────────────────────────────────────────────
# What belongs to dead processes is removed: by whoever comes next, and by a reaper that outlives its node.

LINGER_S = 40.0
"""
Seconds for which the images of an episode are kept after its process plays it no more, so that another one of this
machine may continue it from them.
"""


STALE_S = 600.0
"""Age of a snapshot from which on whoever comes next removes it with its dead owner: no reaper keeps it any more."""


def is_left(one: Owned, now_s: float) -> bool:
    """True for what a dead process has left; ``now_s`` is in seconds since the epoch."""
    if not is_dead(one.labels[OWNER]):
        return False
    return one.kind != "image" or now_s - float(one.labels.get(SAVED, 0)) > STALE_S


async def reap(runtime: Containers, wanted: Callable[[Owned], bool]) -> list[str]:
    """
    Remove all that is ``wanted``.

    Returns:
        A sentence for each that is still there, as an image that a container uses.

    Raises:
        ContainerFailed: The runtime does not tell what there is.
    """
    order = {kind: place for place, kind in enumerate(REMOVED)}
    left = []
    found = sorted(filter(wanted, await runtime.owned()), key=lambda one: one.labels.get(SAVED, ""), reverse=True)
    for one in sorted(found, key=lambda one: order[one.kind]):  # an image after those that were made from it
        try:
            await runtime.remove(one.kind, one.id)
        except ContainerFailed as error:
            left.append(str(error))
    return left
