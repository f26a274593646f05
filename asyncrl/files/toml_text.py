"""TOML text of keys and values."""

import re
from typing import Any

import msgspec


def toml_value(value: Any) -> str:
    """Text of a value; a dict becomes an inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())} }}"
    if isinstance(value, str):
        return _string(value)
    return repr(value)


def toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    """Quoted string: JSON's escapes are valid TOML, but TOML also requires DEL to be escaped."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")
