"""Text of a run file with comments, from settings by their full keys."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncrl.files.toml_text import toml_key, toml_value

SECTIONS = (
    "run", "model", "data", "schedule", "sampling", "rollout", "environment", "reward", "algorithm", "trainer",
    "critic", "weights", "evaluation", "checkpoint", "trackers",
)  # fmt: skip
WIDTH = 110


def to_toml(settings: Mapping[str, Any], comments: Mapping[str, str], head: Sequence[str] = ()) -> str:
    """
    Run file with ``settings``; a list of tables becomes one ``[[table]]`` for each.

    Args:
        comments: Sentences above settings, by key.
        head: Lines of the comment at the start of the file.
    """
    lines = [line for sentence in head for line in _comment(sentence)]
    for table, keys in _tables(settings).items():
        if all(_is_tables(settings[key]) for key in keys):
            lines.append("")
        else:
            lines += ["", f"[{_quoted(table)}]"]
        for key in keys:
            lines += _comment(comments.get(key, ""))
            lines += _array(key, settings[key]) if _is_tables(settings[key]) else [_line(key, settings[key])]
    return "\n".join(lines).lstrip("\n") + "\n"


def _tables(settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Keys by table, in the order of `SECTIONS`."""
    tables: dict[str, list[str]] = {}
    for key in sorted(settings, key=lambda key: (SECTIONS.index(key.partition(".")[0]), key.count("."))):
        tables.setdefault(key.rpartition(".")[0], []).append(key)
    return tables


def _comment(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(text, WIDTH))


def _line(key: str, value: Any) -> str:
    return f"{toml_key(key.rpartition('.')[2])} = {toml_value(value)}"


def _array(key: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for place, table in enumerate(tables):
        yield from [""] * (place > 0)
        yield f"[[{_quoted(key)}]]"
        yield from (f"{toml_key(name)} = {toml_value(value)}" for name, value in table.items())


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _quoted(key: str) -> str:
    return ".".join(map(toml_key, key.split(".")))
