"""
The final answer in what a policy wrote, by the two customs for marking it.

    ... so \\boxed{\\frac{1}{2}} it is.        last_boxed       \\frac{1}{2}
    ... **Answer:** 42.                      after_answer     42

One pass over the text each, whatever it is.
"""

import re

BOXES = ("\\boxed", "\\fbox")

MARK = re.compile(r"(?i:answer)[ *_]{0,8}:[ \t*_]*")
"""``Answer:`` and how it is dressed up. No two parts can match the same character: it cannot backtrack."""


def last_boxed(text: str) -> str | None:
    """
    What is in the last box, with its braces balanced; None if there is no box, or the text ends inside it.

    An escaped brace belongs to the answer: ``\\boxed{\\{1, 2\\}}`` is the set ``\\{1, 2\\}``.
    """
    start, box = max((text.rfind(box), box) for box in BOXES)
    if start < 0:
        return None
    rest = text[start + len(box) :].lstrip(" ")
    if not rest.startswith("{"):
        return _word(rest)
    end = _closing(rest)
    return None if end is None else rest[1:end].strip()


def after_answer(text: str) -> str | None:
    """What follows the last ``Answer:``, to the end of its line, without the ornaments; None if there is none."""
    marks = list(MARK.finditer(text))
    if not marks:
        return None
    line = text[marks[-1].end() :].lstrip().partition("\n")[0]
    return line.strip(" \t\r*_").removesuffix(".").strip() or None


def _word(rest: str) -> str | None:
    """The 5 of ``\\boxed 5``."""
    words = rest[:64].replace("$", " ").split(maxsplit=1)
    return words[0] if words else None


def _closing(text: str) -> int | None:
    """Where the brace closes that the text begins with."""
    depth, place = 0, 0
    while place < len(text):
        character = text[place]
        if character == "\\":
            place += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return None
