"""`asyncrl doctor --probe`: answers one question of `asyncrl doctor --cluster` about this machine."""

import errno
import hashlib
import hmac
import os
import platform
import resource
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from asyncrl.config.engines import ENGINE_PACKAGES
from asyncrl.errors import ConfigError
from asyncrl.messages.wire import PROTOCOL
from asyncrl.runtime.local_address import route_to
from asyncrl.runtime.machine import CORE, DEV, TRAIN, find, missing_packages
from asyncrl.version import VERSION
from asyncrl.weights.groups.device import installed_version
from asyncrl.weights.groups.network_interface import interface_name
from asyncrl.wire.keys.key import fingerprint, read_key

# ── key state ─────────────────────────────────────────────────────────────────────────────────
# State of a key file: its name and roles, and what keeps a node from using it. Its private key is not told.


class KeyState(Struct, frozen=True, kw_only=True):
    """Public part of a key file."""

    problem: str = ""
    """Sentence that says why a node cannot use the file; empty: it can."""
    name: str = ""
    """Nodes that use the key are named so, or so with a dash and anything."""
    roles: list[str] = []
    """Roles that the key was made for; empty: the file does not tell."""
    broker: str = ""
    """Fingerprint of the key of its broker."""

    def others(self, roles: list[str]) -> list[str]:
        """Roles among ``roles`` that the key is not for; the broker has keys of its own."""
        return [role for role in roles if role != "broker" and role not in self.roles] if self.roles else []


def read_key_state(path: Path) -> KeyState:
    """Name and roles of a key file, or its problem."""
    try:
        key = read_key(path)
    except ConfigError as error:
        return KeyState(problem=str(error))
    return KeyState(name=key.name, roles=list(key.roles), broker=fingerprint(key.broker or key.public))


# ── probe messages ────────────────────────────────────────────────────────────────────────────
# Questions to a machine and their answers: a line of JSON each, on standard input and output of `asyncrl doctor
# --probe`.
#
#     Look ─▶ Facts        Listen ─▶ Listening        Send ─▶ Sent        any ─▶ Unable

UNLIMITED = -1
"""A limit of the kernel that is not set."""


class Look(Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the facts of a machine. Empty paths are not looked at."""

    broker_host: str
    broker_port: int
    address: str = ""
    key: str = ""
    model: str = ""
    dir: str = "."


class Listen(Struct, frozen=True, kw_only=True, tag=True):
    """Ask a machine to accept one transfer with ``token``, and to drop connections without it."""

    host: str
    port: int = 0
    token: str
    listen_s: float


class Send(Struct, frozen=True, kw_only=True, tag=True):
    """Ask a machine to send to a listener for ``send_s`` seconds."""

    host: str
    port: int
    token: str
    send_s: float


class File(Struct, frozen=True, kw_only=True):
    """State of a file."""

    problem: str = ""
    """Reason why it cannot be read; empty: it can."""
    digest: str = ""
    """SHA-256 of the content, hexadecimal."""


class Facts(Struct, frozen=True, kw_only=True, tag=True):
    """Answer to `Look`."""

    protocol: int
    """Version of asyncrl's messages."""
    versions: dict[str, str]
    """Distribution -> version, of those that are installed."""
    missing: list[str]
    """Distributions that trainers and rollouts need, and that are not installed."""
    clock_s: float
    """Unix time when the answer was written."""
    address: str
    """IP address of the route to the broker, or the one that was asked for; empty: there is none."""
    interface: str
    """Interface with ``address``; empty: none has it."""
    broker_problem: str
    """Reason why the broker's port cannot be reached; empty: it can."""
    devices: str
    """Accelerators, such as ``cuda 0,1``; ``cpu`` without."""
    open_files: int
    """Hard limit of open files."""
    locked_bytes: int
    """Hard limit of locked memory; `UNLIMITED` without."""
    free_bytes: int
    """Free space where the folder is, or will be made."""
    key: KeyState | None = None
    model_config: File | None = None
    """``config.json`` of the model."""
    lacks_model: bool = False
    """The model directory that was asked for does not exist."""


class Listening(Struct, frozen=True, kw_only=True, tag=True):
    """Answer to `Listen`, as soon as connections are accepted."""

    port: int


class Sent(Struct, frozen=True, kw_only=True, tag=True):
    """Answer to `Send`."""

    num_bytes: int
    """Bytes that the listener received."""
    seconds: float
    round_trip_s: float
    """Shortest time from one byte sent to its return."""

    @property
    def bits_per_s(self) -> float:
        return 8 * self.num_bytes / self.seconds


class Unable(Struct, frozen=True, kw_only=True, tag=True):
    """The machine ran the question, and it failed."""

    reason: str
    address_in_use: bool = False


class NoAnswer(Struct, frozen=True):
    """The command of a machine gave no answer. Not on the wire."""

    reason: str


Question = Look | Listen | Send
Answer = Facts | Listening | Sent | Unable


# ── facts ─────────────────────────────────────────────────────────────────────────────────────
# Facts of this machine that `asyncrl doctor --cluster` compares with those of others. Imports no torch.

COMPARED = ("pyzmq", "msgspec", "numpy", "torch", *ENGINE_PACKAGES, "torch-npu")
"""Distributions whose versions are compared, beside Python and asyncrl."""
CONNECT_S = 5.0


def look(request: Look, environment: Mapping[str, str] = os.environ, dev: Path = DEV) -> Facts:
    """Facts of this machine."""
    problem = connection_problem(request.broker_host, request.broker_port)
    address = request.address or source_address(request.broker_host)
    found = {name: installed_version(name) for name in COMPARED}
    folder = Path(request.dir).absolute()
    ours = {"python": platform.python_version(), "asyncrl": VERSION}
    return Facts(
        protocol=PROTOCOL,
        versions=ours | {name: version for name, version in found.items() if version},
        missing=missing_packages((*CORE, *TRAIN)),
        clock_s=time.time(),
        address=address,
        interface=_interface(address),
        broker_problem=problem,
        devices=str(find("auto", environment, dev)),
        open_files=_hard_limit(resource.RLIMIT_NOFILE),
        locked_bytes=_hard_limit(resource.RLIMIT_MEMLOCK),
        free_bytes=shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free,
        key=read_key_state(Path(request.key)) if request.key else None,
        model_config=read_state(Path(request.model) / "config.json") if request.model else None,
        lacks_model=bool(request.model) and not Path(request.model).is_dir(),
    )


def connection_problem(host: str, port: int) -> str:
    """Reason why nothing answers a TCP connection; empty if something does."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return ""
    except OSError as error:
        return reason_of(error)


def reason_of(error: OSError) -> str:
    """Text of the error's number, without the addresses that Python adds; its own text if it has no number."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def source_address(host: str) -> str:
    """IP address of this machine on its route to ``host``, as nodes find it; empty if there is no route."""
    try:
        return route_to(host)
    except ConfigError:
        return ""


def read_state(path: Path) -> File:
    """Digest of a file, or the reason why it cannot be read."""
    try:
        return File(digest=hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        return File(problem=reason_of(error))


def _interface(address: str) -> str:
    try:
        return interface_name(address) if address else ""
    except ConfigError:
        return ""


def _hard_limit(which: int) -> int:
    limit = resource.getrlimit(which)[1]
    return UNLIMITED if limit == resource.RLIM_INFINITY else limit


# ── transfer ──────────────────────────────────────────────────────────────────────────────────
# A short TCP transfer between two machines: proves that one can connect to the other, and measures the connection.
#
#     sender: token ─▶ listener: acknowledgement ─▶ round trips of one byte ─▶ zeros for some seconds ─▶ bytes received
#
# Every wait has a time limit. A connection without the token is closed, and counts for nothing.

STEP_S = 10.0
"""Time limit of each wait for the peer."""
STRANGER_S = 1.0
"""Time limit of a connection that has not shown the token."""
ROUND_TRIPS = 20
BLOCK = bytes(256 << 10)
ACKNOWLEDGED = b"+"
COUNT_BYTES = 8


def listen(request: Listen, ready: Callable[[int], None], until: int) -> None:
    """
    Accept connections until one transfer is complete, the time is over, or ``until`` is readable or at its end.

    Args:
        ready: Called with the port once connections are accepted.
        until: File descriptor.

    Raises:
        OSError: The address cannot be listened on.
    """
    family = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((request.host, request.port), family=family) as server:
        ready(server.getsockname()[1])
        deadline_s = time.monotonic() + request.listen_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([server.fileno(), until], [], [], left_s)
            if until in readable:
                return
            if readable and _accepted(server, request.token.encode()):
                return


def send(request: Send) -> Sent:
    """Send zeros to a listener. Raises OSError if it cannot be reached, refuses the token, or stops answering."""
    token = request.token.encode()
    with socket.create_connection((request.host, request.port), timeout=STEP_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(token)
        if _exactly(connection, len(ACKNOWLEDGED)) != ACKNOWLEDGED:
            raise ConnectionRefusedError("the listener does not know the token")
        round_trip_s = min(_round_trip_s(connection) for _ in range(ROUND_TRIPS))
        begin_s = time.monotonic()
        while time.monotonic() < begin_s + request.send_s:
            connection.sendall(BLOCK)
        connection.shutdown(socket.SHUT_WR)
        num_bytes = int.from_bytes(_exactly(connection, COUNT_BYTES), "big")
        return Sent(num_bytes=num_bytes, seconds=time.monotonic() - begin_s, round_trip_s=round_trip_s)


def _accepted(server: socket.socket, token: bytes) -> bool:
    """True if the next connection was a complete transfer."""
    connection, _ = server.accept()
    with connection, suppress(OSError):  # The sender reports what failed; a stranger is not waited for.
        connection.settimeout(STRANGER_S)
        if not hmac.compare_digest(_exactly(connection, len(token)), token):
            return False
        connection.settimeout(STEP_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ACKNOWLEDGED)
        for _ in range(ROUND_TRIPS):
            connection.sendall(_exactly(connection, 1))
        connection.sendall(_count(connection).to_bytes(COUNT_BYTES, "big"))
        return True
    return False


def _count(connection: socket.socket) -> int:
    """Bytes until the sender has ended."""
    buffer, total = bytearray(1 << 20), 0
    while received := connection.recv_into(buffer):
        total += received
    return total


def _round_trip_s(connection: socket.socket) -> float:
    begin_s = time.monotonic()
    connection.sendall(b".")
    _exactly(connection, 1)
    return time.monotonic() - begin_s


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """The next bytes; raises ConnectionError if the peer ends before them."""
    found = b""
    while len(found) < num_bytes:
        if not (part := connection.recv(num_bytes - len(found))):
            raise ConnectionError("the other end closed the connection")
        found += part
    return found


# ── probe ─────────────────────────────────────────────────────────────────────────────────────


def answer(questions: BinaryIO, answers: BinaryIO) -> None:
    """Read one line with a `Question` and write one with an `Answer`. A listener ends with its input, too."""

    def say(message: Answer) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    try:
        match msgspec.json.decode(questions.readline(), type=Question):
            case Look() as request:
                say(look(request))
            case Listen() as request:
                listen(request, lambda port: say(Listening(port=port)), questions.fileno())
            case Send() as request:
                say(send(request))
    except msgspec.DecodeError as error:
        say(Unable(reason=f"asyncrl here does not understand the question ({error}): install the same version"))
    except OSError as error:
        say(Unable(reason=reason_of(error), address_in_use=error.errno == errno.EADDRINUSE))
