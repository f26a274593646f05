"""The query of a request: typed, bounded values, or a refusal that names the field."""

import math
from urllib.parse import parse_qsl

MAX_BYTES = 4096
"""Longest query."""
MAX_TEXT = 200
"""Most characters of a text to search for."""


class RefusedAnswer(Exception):
    """An answer other than 200: its status, and one sentence for people."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Query:
    """
    Values of a query string by name.

    Raises:
        Refused: It is too long, not text, or names a value twice; from each method: the value is not of its kind.
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) > MAX_BYTES:
            raise RefusedAnswer(414, f"the query has {len(raw)} bytes, expected at most {MAX_BYTES}")
        try:
            pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
        except (UnicodeDecodeError, ValueError):
            raise RefusedAnswer(400, "the query is not percent-encoded UTF-8") from None
        self._values = dict(pairs)
        if len(self._values) < len(pairs):
            raise RefusedAnswer(400, "the query names a value twice")

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        if len(value) > MAX_TEXT:
            raise RefusedAnswer(400, f"{name} has {len(value)} characters, expected at most {MAX_TEXT}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number; None if it is absent or empty."""
        if not (value := self.text(name)):
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RefusedAnswer(400, f"{name} is {value!r}, expected a number")
        return number

    def count(self, name: str, default: int, *, most: int) -> int:
        """A whole number from 0 to ``most``."""
        if not (value := self.text(name)):
            return default
        if not (value.isascii() and value.isdigit() and int(value) <= most):
            raise RefusedAnswer(400, f"{name} is {value!r}, expected a whole number from 0 to {most}")
        return int(value)

    def choice(self, name: str, choices: "tuple[str, ...]") -> str:
        """One of ``choices``; the first if it is absent."""
        value = self.text(name) or choices[0]
        if value not in choices:
            raise RefusedAnswer(400, f"{name} is {value!r}, expected one of {', '.join(choices)}")
        return value
