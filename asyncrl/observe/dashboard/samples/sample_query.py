"""Which samples are wanted, in which order, and the page of them: from numbers in memory alone."""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from asyncrl.observe.dashboard.query import Query
from asyncrl.observe.dashboard.samples.sample_index import CUT, SPLITS, WORDS, SampleIndex

RANGES = {
    "step": "step",
    "reward": "reward",
    "length": "num_tokens",
    "staleness": "staleness",
    "turns": "num_turns",
    "group": "group_id",
}
"""Field of a query to column: ``step_min`` and ``step_max``, and the order ``step``."""
ANY = "any"
MAX_PAGE = 200
MAX_OFFSET = 100_000_000

Mask = NDArray[np.bool_]


class SampleQuery(Struct, frozen=True, kw_only=True):
    ranges: dict[str, tuple[float | None, float | None]]
    """Column to lowest and highest value, both included; None is no bound."""
    words: dict[str, str] = {}
    """Column to the word it must be."""
    split: str = ANY
    truncated: str = ANY
    """``yes``, ``no`` or any."""
    sort: str = "step"
    """Column."""
    descending: bool = True
    offset: int = 0
    limit: int = 50

    @classmethod
    def read(cls, query: Query) -> "SampleQuery":
        """The query of a request; raises `Refused`."""
        return cls(
            ranges={
                column: (query.number(f"{field}_min"), query.number(f"{field}_max")) for field, column in RANGES.items()
            },
            words={name: word for name in ("node", "data_source") if (word := query.text(name))},
            split=query.choice("split", (ANY, *SPLITS)),
            truncated=query.choice("truncated", (ANY, "yes", "no")),
            sort=RANGES[query.choice("sort", tuple(RANGES))],
            descending=query.choice("order", ("descending", "ascending")) == "descending",
            offset=query.count("offset", 0, most=MAX_OFFSET),
            limit=query.count("limit", 50, most=MAX_PAGE),
        )


class SamplePage(Struct, frozen=True, kw_only=True):
    total: int
    """Samples that match."""
    indexed: int
    """Samples that were looked at."""
    files: int
    files_waiting: int
    rows: list[dict[str, Any]]
    nodes: list[str]
    data_sources: list[str]
    problems: dict[str, str]


def page(index: SampleIndex, query: SampleQuery) -> SamplePage:
    """The wanted page of an index, in the wanted order; ties are ordered by step, group and index."""
    columns = index.columns
    matching = np.flatnonzero(matches(index, query))
    ordered = _ordered(columns, matching, query)[query.offset : query.offset + query.limit]
    return SamplePage(
        total=len(matching),
        indexed=len(columns["step"]),
        files=index.num_files,
        files_waiting=index.num_waiting,
        rows=[_row(index, int(place)) for place in ordered],
        nodes=sorted(index.words["node"]),
        data_sources=sorted(filter(None, index.words["data_source"])),
        problems=index.problems,
    )


def matches(index: SampleIndex, query: SampleQuery) -> Mask:
    """True for each sample that is wanted."""
    columns = index.columns
    wanted = np.ones(len(columns["step"]), np.bool_)
    for name, (low, high) in query.ranges.items():
        if low is not None:
            wanted &= columns[name] >= low
        if high is not None:
            wanted &= columns[name] <= high
    for name, word in query.words.items():
        wanted &= columns[name] == index.code(name, word)
    if query.split != ANY:
        wanted &= columns["split"] == SPLITS.index(query.split)
    if query.truncated != ANY:
        wanted &= (columns["finish_reason"] == index.code("finish_reason", CUT)) == (query.truncated == "yes")
    return wanted


def _ordered(columns: dict[str, Any], matching: NDArray[np.intp], query: SampleQuery) -> NDArray[np.intp]:
    """The first ``offset + limit`` of ``matching``; only those near the page are sorted by all keys."""
    keys = columns[query.sort][matching].astype(np.float64)
    if query.descending:
        keys = -keys
    needed = query.offset + query.limit
    if needed < len(keys):
        worst = np.partition(keys, needed - 1)[needed - 1] if needed else -np.inf
        near = keys <= worst
        matching, keys = matching[near], keys[near]
    newest = -columns["step"][matching].astype(np.int64)
    order = np.lexsort((columns["index"][matching], columns["group_id"][matching], newest, keys))
    ordered: NDArray[np.intp] = matching[order]
    return ordered


def _row(index: SampleIndex, place: int) -> dict[str, Any]:
    columns = index.columns
    row: dict[str, Any] = {
        name: columns[name][place].item()
        for name in ("step", "group_id", "index", "num_tokens", "staleness", "oldest_version", "num_turns", "row")
    }
    row["reward"] = float(f"{columns['reward'][place]:.6g}")
    row |= {name: index.words[name][columns[name][place]] for name in WORDS}
    row["split"] = SPLITS[columns["split"][place]]
    row["file"] = index.files[columns["file"][place]].path.name
    return row
