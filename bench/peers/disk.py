"""
The limit of whatever is durable: a process that appends to a file and syncs, and nothing else. No sockets, no reader.

    batch ─ write ─▶ page cache ─ fdatasync ─▶ disk: now the next one

A segment is as large as the spool's in the same run, and is written over when it is full, so that its memory and its
blocks are used again, as those of trimmed segments are. It bounds logs that append through the page cache; blocks laid
out beforehand and written past the page cache would be faster, and are not a log that grows.
"""

import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from meter import Meter, Rate
from payloads import batches
from processes import Processes, report

WINDOW = 2048
"""Trajectories that may gather for one sync: all that ``durable`` and ``spool`` let anybody have under way."""
SEGMENT_BYTES = 32 << 20
PATIENCE_S = 60.0


async def flow(processes: Processes, batch: int, seconds: float, *, window: int = 1) -> Rate:
    """Trajectories a second onto disk, with one sync for as many whole batches as fit ``window``, at least one."""
    together = max(1, window // batch)
    writer = await processes.start(__name__, "write", batch, together, seconds, str(processes.path))
    return await processes.result(writer, Rate, seconds + PATIENCE_S)


gathering_flow = partial(flow, window=WINDOW)
"""The same if a whole window has always gathered while the last sync ran."""


def write(batch: str, together: str, seconds: str, directory: str) -> None:
    meter = Meter(float(seconds), os.getpid())
    appends = cycle([b"".join(some) for some in batches(int(batch))])
    while meter.rate is None:
        _write_segment(Path(directory) / "segment", appends, int(batch), int(together), meter)
    report(directory, meter.rate)


def _write_segment(path: Path, appends: Iterator[bytes], batch: int, together: int, meter: Meter) -> None:
    with path.open("wb", buffering=0) as segment:
        while segment.tell() < SEGMENT_BYTES and meter.rate is None:
            group = list(islice(appends, together))
            segment.writelines(group)
            os.fdatasync(segment.fileno())
            meter.add(batch * together, sum(map(len, group)))


CHILDREN = {"write": write}
