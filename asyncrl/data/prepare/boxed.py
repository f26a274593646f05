r"""The answer in a worked solution: what is inside the last ``\boxed{...}``."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")


def last_boxed(text: str) -> str | None:
    r"""
    What the last box holds, braces balanced; also ``\fbox{...}`` and ``\boxed 5``. None without a whole box.

    Example:
        last_boxed(r"so $\boxed{\frac{1}{2}}$.") == r"\frac{1}{2}"
    """
    boxes = list(_BOX.finditer(text))
    return _content(text, boxes[-1].end()) if boxes else None


def _content(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        bare = re.compile(r"[^\s$.,}]+").match(text, start)
        return bare[0] if bare else None
    depth = 0
    for place in re.compile(r"\\.|[{}]").finditer(text, start):  # A brace behind a backslash is a sign of the answer.
        depth += {"{": 1, "}": -1}.get(place[0], 0)
        if not depth:
            return text[start + 1 : place.start()].strip()
    return None
