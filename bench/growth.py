"""
What processes and folders hold, sampled while a run goes on, and how it grows: start, end, and slope per hour.

`process_values` and `disk_values` look once; `rows` fits the samples of a whole run.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from asyncrl.workers import folders

MB = 1e6
BLOCK_BYTES = 512
"""Unit of ``st_blocks``."""
WARM_UP_S = 600.0
AGE_S, TOO_OLD_S = 45.0, 65.0
"""Ages between which processes that are replaced are compared: they have loaded, and work."""
AT_ENDS = 6
"""Samples whose median is the value at the start, or the end."""
FEWEST = 4
"""Samples from which a slope is fitted."""


class Sample(Struct, frozen=True):
    """One look at a process tree, or at a part of the run directory."""

    at_s: float
    """Since the first sample."""
    of: str
    """What is compared over time, such as ``broker``."""
    name: str
    """Process, if those of one kind are replaced; else empty."""
    age_s: float
    steps: int
    """Steps of the run so far."""
    values: dict[str, float]


class Row(Struct, frozen=True):
    """Growth of one quantity."""

    of: str
    quantity: str
    start: float
    end: float
    slope: float
    """Per hour."""
    late_slope: float
    """Per hour, of the last half."""
    bytes_per_step: int | None = None
    """Of a part of the run directory."""


def process_values(pid: int) -> dict[str, float]:
    """Memory, descriptors and threads of a process and those below it; empty if one of them has just ended."""
    total: defaultdict[str, float] = defaultdict(float)
    try:
        for each in (pid, *(process.pid for process in folders.below(pid))):
            memory = _memory(each)
            total["memory MB"] += (memory["Pss_Anon"] + memory["Pss_Shmem"]) / MB
            total["pss MB"] += memory["Pss"] / MB
            total["descriptors"] += sum(1 for _ in Path(f"/proc/{each}/fd").iterdir())
            total["threads"] += sum(1 for _ in Path(f"/proc/{each}/task").iterdir())
    except (OSError, KeyError):
        return {}
    return {key: round(value, 3) for key, value in total.items()}


def disk_values(paths: list[Path]) -> dict[str, float]:
    """Space allocated, and number of files, at and below ``paths``."""
    num_bytes = num_files = 0
    for path in paths:
        for file in (path, *path.rglob("*")):
            with suppress(FileNotFoundError):
                num_bytes += file.stat().st_blocks * BLOCK_BYTES
                num_files += file.is_file()
    return {"MB": round(num_bytes / MB, 4), "files": num_files}


def rows(samples: list[Sample], replaced: str, by_steps: tuple[str, ...]) -> Iterator[Row]:
    """
    Growth of each quantity after the warm-up: ten minutes, or a third of a shorter run.

    Args:
        samples: All of a run, in the order of time.
        replaced: Kind of processes that are compared at equal age, by the time at which each started.
        by_steps: Kinds whose bytes are counted for each step, too.
    """
    warm_up_s = min(WARM_UP_S, samples[-1].at_s / 3)
    kinds: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        kinds[sample.of].append(sample)
    kinds[replaced] = list(_at_equal_age(kinds[replaced]))
    for of, found in kinds.items():
        late = [sample for sample in found if sample.at_s >= warm_up_s]
        if len(late) >= FEWEST:
            yield from (_row(of, quantity, late, counts_steps=of in by_steps) for quantity in late[0].values)


def _row(of: str, quantity: str, samples: list[Sample], *, counts_steps: bool) -> Row:
    points = [(sample.at_s / 3600, sample.values[quantity]) for sample in samples]
    values = [value for _, value in points]
    return Row(
        of,
        quantity,
        start=round(statistics.median(values[:AT_ENDS]), 2),
        end=round(statistics.median(values[-AT_ENDS:]), 2),
        slope=_slope(points),
        late_slope=_slope(points[len(points) // 2 :]),
        bytes_per_step=_bytes_per_step(samples) if counts_steps and quantity == "MB" else None,
    )


def _bytes_per_step(samples: list[Sample]) -> int | None:
    first, last = samples[0], samples[-1]
    steps = last.steps - first.steps
    return round((last.values["MB"] - first.values["MB"]) * MB / steps) if steps else None


def _at_equal_age(samples: list[Sample]) -> Iterator[Sample]:
    """Of each process its first sample at `AGE_S` or later, dated to its start."""
    seen: set[str] = set()
    for sample in samples:
        if AGE_S <= sample.age_s < TOO_OLD_S and sample.name not in seen:
            seen.add(sample.name)
            yield replace(sample, at_s=sample.at_s - sample.age_s)


def _slope(points: list[tuple[float, float]]) -> float:
    hours, values = zip(*points, strict=True)
    return round(statistics.linear_regression(hours, values).slope, 2) + 0.0  # not -0.0


def _memory(pid: int) -> dict[str, int]:
    """Bytes by kind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {key: int(rest.split()[0]) << 10 for key, _, rest in (line.partition(":") for line in lines)}
