"""
Upper bound for durable throughput: a process that appends to a file and syncs, without sockets or a reader.

    batch ─ write ─▶ page cache ─ fdatasync ─▶ disk, then the next batch

Segments are as large as the spool's in the same bench. A full segment is overwritten, so its memory and disk blocks are
reused like those of trimmed segments. The bound holds for logs that append through the page cache; preallocated blocks
written with direct I/O would be faster, but are not a growing log.
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
"""Maximum trajectories per sync: the number that ``durable`` and ``spool`` allow in transit."""
SEGMENT_BYTES = 32 << 20
PATIENCE_S = 60.0


async def flow(processes: Processes, batch: int, seconds: float, *, window: int = 1) -> Rate:
    """Trajectories per second written to disk, with one sync per ``window`` trajectories in whole batches."""
    together = max(1, window // batch)
    writer = await processes.start(__name__, "write", batch, together, seconds, str(processes.path))
    return await processes.result(writer, Rate, seconds + PATIENCE_S)


gathering_flow = partial(flow, window=WINDOW)
"""`flow` with a full window of trajectories in each sync."""


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
