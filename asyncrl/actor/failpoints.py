"""
Named places in the protocol where a process can be made to die, as by ``kill -9``, at the n-th time it comes past.

    reach("spool.synced")      nothing, unless this process was armed for that place

Random kills seldom hit the microseconds between a sync and its acknowledgement; a test that arms a place always does.
Only a process of ours is ever armed (`asyncrl.node.process`), by `VARIABLE`; a host that embeds an actor is not.
"""

import os
import signal
from pathlib import Path

from asyncrl.errors import ConfigError

VARIABLE = "ASYNCRL_FAIL_AT"
"""Environment: ``place:n:marker``. Dies at the n-th pass, unless the file ``marker`` is there; it is made first."""

PLACES = (
    "rollout.generated",
    "rollout.put",
    "rollout.transferred",
    "rollout.swapped",
    "spool.appended",
    "spool.synced",
    "broker.decided",
    "broker.committed",
    "reward.judged",
    "trainer.batch_came",
    "trainer.trained",
    "trainer.staged",
    "trainer.checkpoint_partial",
    "trainer.checkpoint_written",
)
"""After: a completion ended; it was put; weights arrived; they were swapped in; payloads were written, and synced;
messages were decided on but not yet recorded; records are on disk and nobody was told; a verdict came and was not sent;
a batch came; a step was taken; a version was staged; a checkpoint lacks its manifest; it is whole and not announced."""

_armed: dict[str, tuple[int, Path]] = {}


def arm(plan: str) -> None:
    """
    Prepare this process to die.

    Raises:
        ConfigError: The plan is not ``place:n:marker``, or there is no such place.
    """
    place, _, rest = plan.partition(":")
    count, _, marker = rest.partition(":")
    if place not in PLACES or not count.isdecimal() or not marker:
        raise ConfigError(f"{VARIABLE} is {plan!r}: expected PLACE:N:MARKER with one of {', '.join(PLACES)}")
    _armed[place] = int(count), Path(marker)


def reach(place: str) -> None:
    """This process comes past ``place``."""
    if not _armed or place not in _armed:
        return
    left, marker = _armed[place]
    _armed[place] = left - 1, marker
    if left > 1:
        return
    del _armed[place]
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return  # An earlier life died here.
    os.kill(os.getpid(), signal.SIGKILL)
