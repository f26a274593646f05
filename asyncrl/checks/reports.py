"""Values of messages to the broker that no sound node sends, whatever the state of the run."""

import math
from collections.abc import Callable
from typing import Any

from asyncrl.actor.message import Message
from asyncrl.actor.stacks import MAX_CHARS as MAX_STACKS_CHARS
from asyncrl.messages.rollout import Failed, Offer, StartedOver
from asyncrl.messages.session import Asleep, Beat, Bye, Hello, Ready, StoreGet, StoreSet
from asyncrl.messages.supervisor import Exited, Stacks
from asyncrl.messages.trainer import Commit, Resumed, StepFailed, Stepped, Take
from asyncrl.messages.weights import Live, Publishing, TransferFailed, Transferred, Uploaded
from asyncrl.messages.wire import ToBroker

MAX_NAME_CHARS = 200
"""Characters of a node's name, an incarnation, a key of a rendezvous."""
MAX_RUN_ID_CHARS = 64
MAX_KEY_BYTES = 64
MAX_REASON_CHARS = 100_000
MAX_RANKS = 4096
MAX_COUNT = 1 << 40
"""Largest count, step or version."""
MAX_VALUE_BYTES = 1 << 20
"""Size of a value in a rendezvous; process groups exchange some hundred bytes."""
MAX_CHECKPOINTS = 1000
MAX_METRICS = 1000
"""Metrics of one step."""


def problem_of(message: ToBroker) -> str:
    """Description of the first value that cannot be right, such as ``step is -1``; empty if there is none."""
    return CHECKS[kind](message) if (kind := type(message)) in CHECKS else ""


# ── by message ──────────────────────────────────────────────────────────────────────────────


def _hello(message: Hello) -> str:
    return (
        _name("node", message.node)
        or _name("incarnation", message.incarnation)
        or ("run_id is too long" if len(message.run_id) > MAX_RUN_ID_CHARS else "")
        or (_name("host", message.host) if message.host else "")
        or _spool(message)
    )


def _spool(message: Hello) -> str:
    spool = message.spool
    if (spool is None) == (message.role == "spool"):
        return "a spool says where it serves, and other roles do not"
    if spool is None:
        return ""
    if spool.name != message.node:
        return f"spool is named {spool.name[:40]!r}, expected the name of its node"
    return _name("address", spool.address) or (f"key has {n} bytes" if (n := len(spool.key)) > MAX_KEY_BYTES else "")


def _beat(message: Beat) -> str:
    return (
        _seconds("lag_s", message.lag_s)
        or next((problem for name, value in message.seconds.items() if (problem := _seconds(name, value))), "")
        or _seconds("memory_stall", message.memory_stall)
        or _count("tokens", message.tokens)
        or _seconds("decode_steps", message.decode_steps)
        or _seconds("cores_busy", message.cores_busy)
        or _count("progress", message.progress)
        or _seconds("cores", message.cores)
    )


def _asleep(message: Asleep) -> str:
    return _seconds("seconds", message.seconds) or _count("num_bytes", message.num_bytes)


def _ready(message: Ready) -> str:
    if not 1 <= message.ranks <= MAX_RANKS:
        return f"ranks is {message.ranks}"
    num_chars = len(message.layout_hash)
    return f"layout_hash has {num_chars} characters" if num_chars > MAX_NAME_CHARS else ""


def _offer(message: Offer) -> str:
    return _count("limit", message.limit)


def _live(message: Live) -> str:
    return (
        _count("policy_version", message.policy_version)
        or _seconds("pause_s", message.pause_s)
        or _seconds("receive_s", message.receive_s)
    )


def _transferred(message: Transferred) -> str:
    return (
        _count("policy_version", message.policy_version)
        or _count("num_bytes", message.num_bytes)
        or _seconds("seconds", message.seconds)
    )


def _uploaded(message: Uploaded) -> str:
    return (
        _count("policy_version", message.policy_version)
        or _count("num_bytes", message.num_bytes)
        or _seconds("seconds", message.seconds)
        or _reason(message.problem)
    )


def _resumed(message: Resumed) -> str:
    if (number := len(message.damaged)) > MAX_CHECKPOINTS:
        return f"there are {number} damaged checkpoints"
    texts = [message.checkpoint, *(text for one in message.damaged for text in (one.checkpoint, one.cause))]
    return _count("steps", message.steps) or next((problem for text in texts if (problem := _reason(text))), "")


def _step_failed(message: StepFailed) -> str:
    return _count("step", message.step) or _reason(message.reason)


def _step(message: Take | Commit) -> str:
    return _count("step", message.step)


def _publishing(message: Publishing) -> str:
    return _count("policy_version", message.policy_version) or _count("next_step", message.next_step)


def _stepped(message: Stepped) -> str:
    if len(message.metrics) > MAX_METRICS:
        return f"there are {len(message.metrics)} metrics"
    long = (name for name in message.metrics if len(name) > MAX_NAME_CHARS)
    return (
        _count("step", message.step)
        or ("" if message.policy_version >= -1 else f"policy_version is {message.policy_version}")
        or next((f"a metric's name has {len(name)} characters" for name in long), "")
    )


def _reasoned(message: Bye | TransferFailed | Failed) -> str:
    return _reason(message.reason)


def _started_over(message: StartedOver) -> str:
    return _count("num_tokens", message.num_tokens) or _reason(message.reason)


def _exited(message: Exited) -> str:
    return _reason(message.cause)


def _store_set(message: StoreSet) -> str:
    num_bytes = len(message.value)
    too_large = f"the value has {num_bytes} bytes" if num_bytes > MAX_VALUE_BYTES else ""
    return _name("group", message.group) or _name("key", message.key) or too_large


def _store_get(message: StoreGet) -> str:
    return _name("group", message.group) or _name("key", message.key)


def _stacks(message: Stacks) -> str:
    num_chars = len(message.text)
    return f"text has {num_chars} characters" if num_chars > 2 * MAX_STACKS_CHARS else ""


CHECKS: dict[type[Message], Callable[[Any], str]] = {
    Hello: _hello,
    Beat: _beat,
    Asleep: _asleep,
    Ready: _ready,
    Offer: _offer,
    Live: _live,
    Transferred: _transferred,
    Resumed: _resumed,
    StepFailed: _step_failed,
    Take: _step,
    Commit: _step,
    Publishing: _publishing,
    Uploaded: _uploaded,
    Stepped: _stepped,
    Bye: _reasoned,
    TransferFailed: _reasoned,
    Failed: _reasoned,
    StartedOver: _started_over,
    Exited: _exited,
    StoreSet: _store_set,
    Stacks: _stacks,
    StoreGet: _store_get,
}
"""Items of `Stored` and `Scored` are checked one by one, each with its own consequence; the rest has no such values."""


# ── by kind of value ────────────────────────────────────────────────────────────────────────


def _seconds(key: str, value: float) -> str:
    return "" if 0.0 <= value < math.inf else f"{key} is {value}"  # NaN compares false too


def _count(key: str, value: int) -> str:
    return "" if 0 <= value <= MAX_COUNT else f"{key} is {value}"


def _name(key: str, value: str) -> str:
    if 0 < len(value) <= MAX_NAME_CHARS and value.isprintable():
        return ""
    return f"{key} is {value[:40]!r}, expected up to {MAX_NAME_CHARS} printable characters"


def _reason(reason: str) -> str:
    return f"the reason has {len(reason)} characters" if len(reason) > MAX_REASON_CHARS else ""
