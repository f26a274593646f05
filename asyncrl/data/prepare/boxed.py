r"""Extraction of the answer of a worked solution: the content of the last ``\boxed{...}``."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")


def last_boxed(text: str) -> str | None:
    r"""Content of the last box, braces balanced; also of ``\fbox{...}`` and ``\boxed 5``. None without a whole box."""
    boxes = list(_BOX.finditer(text))
    return _content(text, boxes[-1].end()) if boxes else None


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        bare = re.compile(r"[^\s$.,}]+").match(text, start)
        return bare[0] if bare else None
    depth = 0
    for place in re.compile(r"\\.|[{}]").finditer(text, start):  # an escaped brace is part of the answer
        depth += {"{": 1, "}": -1}.get(place[0], 0)
        if not depth:
            return text[start + 1 : place.start()].strip()
    return None
