import random
from pathlib import Path
from typing import Any

import pytest

from asyncrl.observe.dashboard.query import Query, Refused
from asyncrl.observe.dashboard.samples.sample_index import SampleIndex
from asyncrl.observe.dashboard.samples.sample_query import SampleQuery, page
from tests.observe.dashboard.browser_free import a_sample, write

FIELDS = {"step": "step", "reward": "reward", "length": "num_tokens", "staleness": "staleness", "group": "group_id"}


@pytest.fixture
def index(tmp_path: Path) -> SampleIndex:
    """60 samples with many ties."""
    rng = random.Random(0)
    for step in range(6):
        rows = [
            a_sample(
                step, group_id=step * 2 + i // 5, index=i % 5, reward=float(rng.randint(0, 2)),
                staleness=rng.randint(0, 3),
                finish_reason=rng.choice(["stop", "length"]), node=rng.choice(["a", "b"]),
                completion_ids=bytes(4 * rng.randint(0, 4)), behavior_logprobs=b"", spans=[],
                data_source=rng.choice(["", "math"]),
            )
            for i in range(10)
        ]  # fmt: skip
        write(tmp_path, *rows)
    write(tmp_path, a_sample(3, 99), held_out=True)
    index = SampleIndex(tmp_path)
    index.advance(60)
    return index


def asked(index: SampleIndex, query: str) -> list[dict[str, Any]]:
    return page(index, SampleQuery.read(Query(query.encode()))).rows


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("order", ["descending", "ascending"])
def test_pages_together_are_every_sample_in_order(index: SampleIndex, field: str, order: str) -> None:
    rows = [
        row for offset in range(0, 70, 7) for row in asked(index, f"sort={field}&order={order}&offset={offset}&limit=7")
    ]
    sign = -1 if order == "descending" else 1
    keys = [(sign * row[FIELDS[field]], -row["step"], row["group_id"], row["index"]) for row in rows]
    assert len(rows) == 61
    assert keys == sorted(keys)
    assert len({(row["file"], row["split"], row["row"]) for row in rows}) == 61


@pytest.mark.parametrize(
    ("query", "is_wanted"),
    [
        ("reward_min=1&reward_max=1", lambda row: row["reward"] == 1),
        ("step_min=2&step_max=3.5", lambda row: 2 <= row["step"] <= 3),
        ("length_max=1", lambda row: row["num_tokens"] <= 1),
        ("staleness_min=2", lambda row: row["staleness"] >= 2),
        ("group_min=3&group_max=3", lambda row: row["group_id"] == 3),
        ("truncated=yes", lambda row: row["finish_reason"] == "length"),
        ("truncated=no&node=a", lambda row: row["finish_reason"] != "length" and row["node"] == "a"),
        ("data_source=math", lambda row: row["data_source"] == "math"),
        ("split=held_out", lambda row: row["split"] == "held_out"),
        ("node=nobody", lambda row: False),
    ],
)
def test_a_filter_keeps_what_it_says(index: SampleIndex, query: str, is_wanted: Any) -> None:
    every = asked(index, "limit=200")
    found = page(index, SampleQuery.read(Query(f"limit=200&{query}".encode())))
    assert found.rows == [row for row in every if is_wanted(row)]
    assert (found.total, found.indexed) == (len(found.rows), 61)


def test_a_page_beyond_the_end_is_empty(index: SampleIndex) -> None:
    assert asked(index, "offset=1000") == []
    assert asked(index, "limit=0") == []


@pytest.mark.parametrize("query", ["sort=secret", "order=up", "limit=1000", "offset=-1", "reward_min=x", "split=all"])
def test_other_queries_are_refused(query: str) -> None:
    with pytest.raises(Refused, match="expected"):
        SampleQuery.read(Query(query.encode()))
