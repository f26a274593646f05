"""
Extraction of the final answer from a completion, by the two conventions that mark it.

    ... so \\boxed{\\frac{1}{2}} it is.        last_boxed       \\frac{1}{2}
    ... **Answer:** 42.                      after_answer     42

Each takes one pass over the text, whatever the text is.
"""

import re

BOXES = ("\\boxed", "\\fbox")
BOX = re.compile(r"(?P<box>\\(?:boxed|fbox)(?![a-zA-Z]) *)|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
BETWEEN = re.compile(r"(?:[ \t$,;]|\\[,;:! ]|\\q?quad|\\text *\{ *(?:and|or) *\}|and|or)*+")
"""Text between the boxes of a list. What is matched is never tried again."""

MARK = re.compile(r"(?i:answer|答案)[ *_]{0,8}[:：][ \t*_]*")
"""``Answer:`` and its Markdown emphasis. No two parts match the same character, so it cannot backtrack."""


BULLET = re.compile(r"^\s*\n\s*[-*•] ")
"""Mark of a list, on the line after ``Answer:``."""
DISPLAYS = (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)"), ("$\n", "$"))
"""Marks of mathematics that is set apart, often on several lines."""

FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) != "＄"}
"""Forms of ASCII that are as wide as a Chinese character; a dollar of that width is money, a plain one begins LaTeX."""
PUNCTUATION = dict.fromkeys("−–‐‑﹣", "-") | dict.fromkeys("⁄∕", "/") | {"\u3000": " ", "。": ".", "、": ";"}
ASCII = str.maketrans({chr(code): form for code, form in FULL_WIDTH.items()} | PUNCTUATION)
"""Characters of other typesettings that are one of ASCII."""


def last_boxed(text: str) -> str | None:
    """
    Content of the last box, with balanced braces; None if there is no box, or the text ends inside it.

    A box within another one is part of the answer, and so is an escaped brace: ``\\boxed{\\{1, 2\\}}`` is a set. Boxes
    with nothing but commas and conjunctions between them are a list.
    """
    opened: list[tuple[int, int, int]] = []
    """Begin of each box that is not closed, that of its content, and how deep that is."""
    closed: list[tuple[int, int, str]] = []
    """Begin, end and content of each box that is in no other."""
    depth = 0
    for mark in BOX.finditer(text):
        if mark[0] == "{":
            depth += 1
        elif mark[0] == "}":
            depth -= 1
            if opened and opened[-1][2] == depth + 1:
                begin, start, _ = opened.pop()
                while closed and closed[-1][0] > begin:
                    closed.pop()
                closed.append((begin, mark.end(), text[start : mark.start()].strip()))
        elif mark["box"] and text.startswith("{", mark.end()):
            opened.append((mark.start(), mark.end() + 1, depth + 1))
        elif mark["box"] and (bare := text[mark.end() : mark.end() + 64].replace("$", " ").split(maxsplit=1)):
            closed.append((mark.start(), mark.end(), bare[0]))  # the 5 of \boxed 5
    if not closed or (opened and opened[-1][0] > closed[-1][0]):
        return None
    begin, _, content = closed.pop()
    contents = [content]
    while closed and BETWEEN.fullmatch(text, closed[-1][1], begin):
        begin, _, content = closed.pop()
        contents.insert(0, content)
    return ", ".join(dict.fromkeys(contents))


def after_answer(text: str) -> str | None:
    """Text after the last ``Answer:``, to the end of the line or of its display, without emphasis; None if none."""
    marks = list(MARK.finditer(text))
    if not marks:
        return None
    rest = BULLET.sub("", text[marks[-1].end() :]).lstrip()
    opened = next((pair for pair in DISPLAYS if rest.startswith(pair[0])), None)
    end = rest.find(opened[1], len(opened[0])) if opened else 0
    line = rest[: max(end, 0)] + rest[max(end, 0) :].partition("\n")[0]
    return line.strip(" \t\r*_`").removesuffix(".").strip() or None


def closing(text: str) -> int | None:
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


# ── template ──────────────────────────────────────────────────────────────────────────────────
# Templates: fixed pieces of text with gaps between them.
#
#     <think>...</think>...\boxed{...}...         three dots are a gap, of any length and over any number of lines
#
# Searching for fixed pieces takes time proportional to the text; an equivalent regular expression could take
# exponential time on a hostile text.

GAP = "..."


def fits(template: str, text: str) -> bool:
    """Return True if the text is the template with any text, or none, in each gap."""
    first, *rest = template.split(GAP)
    if not rest:
        return text == template
    *middle, last = rest
    begin, end = len(first), len(text) - len(last)
    if begin > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in middle:  # the leftmost place leaves most room for the next pieces
        found = text.find(piece, begin, end)
        if found < 0:
            return False
        begin = found + len(piece)
    return True


def has_each_once(template: str, text: str) -> bool:
    """Return True if no piece occurs in the text more often than in the template."""
    pieces = {piece for piece in template.split(GAP) if piece}
    return all(text.count(piece) <= template.count(piece) for piece in pieces)
