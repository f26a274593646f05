"""Tools of rows: every form gives the policy the same list."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.sections.data import Data
from asyncrl.data.check import inspect
from asyncrl.data.dataset import Dataset
from asyncrl.data.prepare.own_rows import own_rows
from asyncrl.data.prepare.published import prepare
from asyncrl.data.row import to_prompt
from asyncrl.data.table import Columns, Row, open_rows
from asyncrl.data.tools import read_tools, tool_names
from asyncrl.errors import DataError

NAME = st.from_regex(r"[a-z]{1,4}", fullmatch=True)
SCHEMA = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(
            NAME, st.fixed_dictionaries({"type": st.sampled_from(["string", "integer"])}), min_size=1, max_size=3
        ),
        "required": st.lists(NAME, min_size=1, max_size=2),
    },
)
FUNCTION = st.fixed_dictionaries({"name": NAME}, optional={"description": NAME, "parameters": SCHEMA})
TOOLS = st.lists(FUNCTION, min_size=1, max_size=3, unique_by=lambda function: str(function["name"]))
CHAT = [{"role": "user", "content": "2 + 3?"}]


def framed(functions: list[Any]) -> list[Any]:
    return [{"type": "function", "function": function} for function in functions]


def chat_with(tools: Any) -> Row:
    return {"prompt": CHAT, "answer": "5"} | ({} if tools is None else {"tools": tools})


@given(TOOLS)
def test_a_list_its_text_and_a_list_without_frames_are_the_same(functions: list[Any]) -> None:
    tools = framed(functions)
    found = read_tools(tools, "tools")
    assert json.loads(found) == tools
    assert read_tools(functions, "tools") == found
    for text in (json.dumps(tools), json.dumps(functions, indent=2)):
        assert read_tools(text, "tools") == json.dumps(tools, separators=(",", ":"))
    assert tool_names(found) == tuple(function["name"] for function in functions)


@given(st.lists(st.none() | TOOLS, min_size=1, max_size=4))
def test_rows_of_parquet_have_their_own_tools_and_no_keys_of_other_rows(
    tmp_path_factory: pytest.TempPathFactory, several: list[list[Any] | None]
) -> None:
    rows = [chat_with(tools and framed(tools)) for tools in several]
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in ("prompt", "answer", "tools")}), path)
    dataset = Dataset.open([str(path)], Data(train=""))
    found = [dataset.prompt(row).tools for row in range(len(rows))]
    assert [json.loads(tools or "null") for tools in found] == [row.get("tools") for row in rows]


@pytest.mark.parametrize("value", [None, [], "", " ", "[]"])
def test_a_row_without_tools_shows_none(value: Any) -> None:
    assert to_prompt({"prompt": "?", "answer": "1", "tools": value}, Data(train="")).tools == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("hammer", "'tools' cannot be read: it is not a JSON object: JSON is malformed"),
        ({"name": "add"}, "'tools' is no list"),
        (3, "'tools' is no list"),
        (["add"], "'tools[0]' has no name"),
        ([{"type": "function", "function": {"name": "add"}}, {"type": "web_search"}], "'tools[1]' has no name"),
        ([{"name": "add", "parameters": "{}"}], "'tools' has parameters that are no object"),
        ([{"name": "add"}, {"name": "add"}], "'tools' has two tools 'add'"),
        ("[" * 100_000, "'tools' cannot be read: "),
    ],
)
def test_what_is_no_list_of_tools_is_refused_with_the_setting(value: Any, problem: str) -> None:
    with pytest.raises(DataError) as refused:
        to_prompt(chat_with(value), Data(train=""))
    assert str(refused.value).startswith(problem)
    assert str(refused.value).endswith('set data.tools_column = "" if the rows have no tools')
    to_prompt(chat_with(value), Data(train="", tools_column=""))


def test_plain_text_has_no_place_for_tools() -> None:
    row = {"prompt": "2 + 3?", "answer": "5", "tools": [{"name": "add"}]}
    with pytest.raises(
        DataError, match=r"it has 'tools', and plain text has no place for tools: .*data\.as_chat = true"
    ):
        to_prompt(row, Data(train=""))
    assert tool_names(to_prompt(row, Data(train="", as_chat=True)).tools) == ("add",)


def test_tools_are_counted_by_a_check_and_kept_by_a_conversion(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    path.write_text("\n".join(map(json.dumps, [chat_with(None), chat_with([{"name": "add"}])])))
    assert inspect(path).tools == {"add": 1}
    assert "  tools          add 1" in inspect(path).text()
    prepare(own_rows("own", Columns("prompt", "answer")), path, out)
    assert [open_rows(out)[row]["tools"] for row in range(2)] == [
        None,
        '[{"type":"function","function":{"name":"add"}}]',
    ]
    with pytest.raises(DataError, match="it has tools, and plain text has no place for them: leave --text out"):
        prepare(own_rows("own", Columns("prompt", "answer")), path, out, is_chat=False)
