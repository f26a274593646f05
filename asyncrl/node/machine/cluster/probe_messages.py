"""
Questions to a machine and their answers: a line of JSON each, on standard input and output of `asyncrl doctor --probe`.

    Look ─▶ Facts        Listen ─▶ Listening        Send ─▶ Sent        any ─▶ Unable
"""

from msgspec import Struct

from asyncrl.node.machine.cluster.key_state import KeyState

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
