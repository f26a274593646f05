"""
Extraction of the final answer from a completion, by the two conventions that mark it.

    ... so \\boxed{\\frac{1}{2}} it is.        last_boxed       \\frac{1}{2}
    ... **Answer:** 42.                      after_answer     42

Each takes one pass over the text, whatever the text is.
"""

import re

BOXES = ("\\boxed", "\\fbox")

MARK = re.compile(r"(?i:answer)[ *_]{0,8}:[ \t*_]*")
"""``Answer:`` and its Markdown emphasis. No two parts match the same character, so it cannot backtrack."""


def last_boxed(text: str) -> str | None:
    """
    Content of the last box, with balanced braces; None if there is no box, or the text ends inside it.

    An escaped brace is part of the answer: ``\\boxed{\\{1, 2\\}}`` is the set ``\\{1, 2\\}``.
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
    """Text after the last ``Answer:``, to the end of the line, without emphasis; None if there is none."""
    marks = list(MARK.finditer(text))
    if not marks:
        return None
    line = text[marks[-1].end() :].lstrip().partition("\n")[0]
    return line.strip(" \t\r*_").removesuffix(".").strip() or None


def _word(rest: str) -> str | None:
    """First word: the 5 of ``\\boxed 5``."""
    words = rest[:64].replace("$", " ").split(maxsplit=1)
    return words[0] if words else None


def _closing(text: str) -> int | None:
    """Position of the brace that closes the first character."""
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
