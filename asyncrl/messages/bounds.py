"""
Bounds of values in messages to the broker, beyond which no sound node goes, whatever the state of the run.

    Take(step=-1).out_of_bounds() ─▶ "step is -1"                      Take(step=3).out_of_bounds() ─▶ ""

Each function describes one value that is out of its bounds; the text is empty if it is within.
"""

import math

from msgspec import Struct
from msgspec.structs import asdict

from asyncrl import foreign_text

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
SHOWN_CHARS = 2048
"""Length of a reason that is shown. `asyncrl.plug_in.describe`, all of which people need, writes fewer."""


def seconds(key: str, value: float) -> str:
    """A duration or a share is 0 or more, and finite."""
    return "" if 0.0 <= value < math.inf else f"{key} is {value}"  # NaN compares false too


def count(key: str, value: int) -> str:
    """A count, a step or a version is 0 to `MAX_COUNT`."""
    return "" if 0 <= value <= MAX_COUNT else f"{key} is {value}"


def numbers(value: Struct) -> str:
    """Each field of a value whose fields are `count` and, as floats, `seconds`."""
    found = asdict(value).items()
    checked = (seconds(key, one) if isinstance(one, float) else count(key, one) for key, one in found)
    return next(filter(None, checked), "")


def name(key: str, value: str) -> str:
    """A name has 1 to `MAX_NAME_CHARS` printable characters: two names must not look alike."""
    if 0 < len(value) <= MAX_NAME_CHARS and value.isprintable():
        return ""
    return f"{key} is {value[:40]!r}, expected up to {MAX_NAME_CHARS} printable characters"


def reason(text: str) -> str:
    """A reason or a cause has at most `MAX_REASON_CHARS` characters."""
    return f"the reason has {len(text)} characters" if len(text) > MAX_REASON_CHARS else ""


def shown(text: str) -> str:
    """A reason or a cause of at most `SHOWN_CHARS`, made fit to be shown by `asyncrl.foreign_text.shown`."""
    return foreign_text.shown(text, SHOWN_CHARS)
