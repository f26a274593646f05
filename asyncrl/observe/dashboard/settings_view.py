"""Every setting of a run with its value, its default and its meaning."""

from typing import Any

import msgspec

from asyncrl.config.meanings import meanings
from asyncrl.observe.run_record import RunRecord
from asyncrl.observe.trackers.follower import SECRET

HIDDEN = "hidden"


def settings(record: RunRecord) -> list[dict[str, Any]]:
    """The settings in the order of the documentation, then keys that it does not know, such as those of a table."""
    known = meanings()
    values = dict(record.config)
    rows = []
    for key, meaning in known.items():
        value, is_set = _taken(values, key)
        default = msgspec.to_builtins(meaning.default)
        value = value if is_set else default
        rows.append(
            {
                "key": key,
                "value": _shown(key, value),
                "default": "required" if meaning.is_required else _shown(key, default),
                "is_changed": is_set and not meaning.is_required and not _same(value, default),
                "meaning": meaning.text,
            }
        )
    rows += [
        {"key": key, "value": _shown(key, value), "default": "", "is_changed": True, "meaning": ""}
        for key, value in values.items()
    ]
    return rows


def _taken(values: dict[str, Any], key: str) -> tuple[Any, bool]:
    """Remove a setting from ``values``: its value, or the table that its keys make; and whether it was there."""
    if key in values:
        return values.pop(key), True
    inner = [name for name in values if name.startswith(f"{key}.")]
    table = {name.removeprefix(f"{key}."): values.pop(name) for name in inner}
    return table, bool(inner)


def _same(value: Any, default: Any) -> bool:
    empty: tuple[Any, ...] = (None, "", [], {})
    return bool(value == default) or (value in empty and default in empty)


def _shown(key: str, value: Any) -> str:
    if SECRET.search(key) and isinstance(value, str) and value:
        return HIDDEN
    if isinstance(value, dict):
        value = {name: HIDDEN if SECRET.search(name) and inner else inner for name, inner in value.items()}
    if value is None:
        return "unset"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
