"""
Named places in the code where a test can kill the process, like ``kill -9``, from the n-th pass on.

    failpoint("spool.synced")  does nothing unless this process was armed for that place, and its file is missing

Random kills seldom hit the microseconds between a sync and its acknowledgement; an armed place always does. Only
processes started by asyncrl are ever armed, through `VARIABLE`; a host that embeds an actor is not.
"""

import os
import signal
from collections.abc import Collection
from pathlib import Path

from asyncrl.errors import ConfigError

VARIABLE = "ASYNCRL_FAIL_AT"
"""
Environment variable, ``PLACE:N:MARKER``: die at the n-th pass or a later one, after making the file MARKER; never while
it exists, so removing it kills one more process. Several places are separated by semicolons.
"""

_armed: dict[str, tuple[int, Path]] = {}


def arm(plan: str, places: Collection[str]) -> None:
    """
    Arm places of this process.

    Args:
        plan: ``PLACE:N:MARKER``, or several separated by semicolons.
        places: All places that this process has.

    Raises:
        ConfigError: The plan does not have this form, or there is no such place. Nothing is armed then.
    """
    armed = {}
    for one in plan.split(";"):
        place, _, rest = one.partition(":")
        count, _, marker = rest.partition(":")
        if place not in places or not count.isdecimal() or not marker:
            raise ConfigError(f"{VARIABLE} has {one!r}: expected PLACE:N:MARKER with one of {', '.join(places)}")
        armed[place] = int(count), Path(marker)
    _armed.update(armed)


def failpoint(place: str) -> None:
    """Kill this process if it is armed for ``place``, and this is the n-th pass or a later one."""
    if not _armed or place not in _armed:
        return
    left, marker = _armed[place]
    _armed[place] = left - 1, marker
    if left > 1:
        return
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return  # A process died here.
    os.kill(os.getpid(), signal.SIGKILL)
