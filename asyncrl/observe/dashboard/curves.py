"""The numbers of every step as columns, and histograms of the newest samples."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncrl.observe.dashboard.samples.sample_index import SampleIndex
from asyncrl.observe.run_record import RunRecord

HISTOGRAM_STEPS = 50
"""Newest steps whose samples a histogram counts."""
BINS = 24


def columns(record: RunRecord, start: int) -> dict[str, list[float | None]]:
    """Every metric from the ``start``-th recorded step on; None where a step has none."""
    lines = record.metrics[start:]
    return {name: [_number(line.get(name)) for line in lines] for name in record.metric_names}


def histograms(index: SampleIndex) -> dict[str, dict[str, Any]]:
    """Histograms of staleness, reward and length, of the samples of the newest steps."""
    newest = index.newest(HISTOGRAM_STEPS)
    steps = newest["step"]
    found: dict[str, Any] = {
        "files_waiting": index.num_waiting,
        "steps": {"from": int(steps.min()), "to": int(steps.max())} if len(steps) else {},
        "staleness": _counts(newest["staleness"], whole=True),
        "reward": _counts(newest["reward"], whole=False),
        "length": _counts(newest["num_tokens"], whole=True),
    }
    return found


def _counts(values: "np.ndarray[Any, Any]", *, whole: bool) -> dict[str, Sequence[float]]:
    """Edges of bins, and how many values are in each; whole numbers have bins of whole width, if few a bin each."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"edges": [], "counts": []}
    low, high = float(values.min()), float(values.max())
    if whole:
        width = max(1, math.ceil((high - low + 1) / BINS))
        edges = np.arange(low - 0.5, high + 0.5 + width, width)
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts, _ = np.histogram(values, edges)
    return {"edges": [float(f"{edge:.6g}") for edge in edges], "counts": counts.tolist()}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.6g}")
