"""Result of a parser, and how calls between tags are found."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from asyncrl.environment.interface import CalledTool

Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of each parameter of each tool: ``schemas[tool][parameter]``."""
Call = tuple[str, dict[str, Any]]
"""Name and arguments."""
MAX_CALLS = 64
"""Most calls of one turn; the next one is a problem, and the rest is left out."""
TOO_MANY = f"the turn has more than {MAX_CALLS} calls"


class Found(Struct, frozen=True):
    """Calls in a text, and the text without them."""

    content: str
    calls: list[CalledTool] = []


Parser = Callable[[str, Schemas], Found]


class UnreadableCall(Exception):
    """A call cannot be read. The message completes the sentence "the call ..."."""


def to_call(read: Callable[[], Call]) -> CalledTool:
    """The call that ``read`` returns, or one with the problem that it raises."""
    try:
        name, arguments = read()
    except UnreadableCall as problem:
        return problematic(f"the call {problem}")
    return CalledTool(name=name, arguments=arguments)


def problematic(problem: str) -> CalledTool:
    """A call that cannot be read."""
    return CalledTool(name="", arguments={}, problem=problem)


def between(
    text: str,
    opening: str,
    closing: str,
    read: Callable[[str], Call],
    *,
    end_of_value: Callable[[str, int], int] | None = None,
) -> Found:
    """
    Calls between ``opening`` and ``closing``, each read by ``read``.

    A block ends where its own value does, or at the closing that belongs to its opening: one that is opened again
    inside is a part of it, and one that is never closed ends where the next begins. So no call is made of the pieces of
    two, and none that is sound is lost beside a broken one.

    Args:
        end_of_value: Given the text and the beginning of a block, the end of the value there, if the form tells it; -1
            if there is none. A closing inside the value does not count.

    Returns:
        The content is the text around the calls, with those that cannot be read as they were written.
    """
    closings = _closings(text, opening, closing)
    around: list[str] = []
    calls: list[CalledTool] = []
    start = 0
    while (found := text.find(opening, start)) >= 0 and len(calls) < MAX_CALLS:
        around.append(text[start:found])
        inside = found + len(opening)
        end = _closed_after(text, closing, end_of_value(text, inside) if end_of_value else -1)
        end = closings.get(inside, -1) if end < 0 else end
        if end < 0:
            calls.append(problematic(f"the call is not closed by {closing}"))
            after = text.find(opening, inside)
            start = len(text) if after < 0 else after
        else:
            calls.append(_call_in(text[inside:end], read))
            start = end + len(closing)
        if calls[-1].problem:
            around.append(text[found:start])
    if found >= 0 and calls:
        calls.append(problematic(TOO_MANY))
    return Found("".join([*around, text[start:]]).strip(), calls) if calls else Found(text)


def _call_in(block: str, read: Callable[[str], Call]) -> CalledTool:
    return to_call(lambda: read(block))


def _closings(text: str, opening: str, closing: str) -> dict[int, int]:
    """Ends of the blocks that are closed, by their beginnings. A closing belongs to the last opening before it."""
    found: dict[int, int] = {}
    open_blocks: list[int] = []
    for mark in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text):
        if mark[0] == opening:
            open_blocks.append(mark.end())
        elif open_blocks:
            found[open_blocks.pop()] = mark.start()
    return found


def _closed_after(text: str, closing: str, end: int) -> int:
    """Place of the closing that follows ``end``, but for white space; -1 if something else does."""
    while 0 <= end < len(text) and text[end].isspace():
        end += 1
    return end if end >= 0 and text.startswith(closing, end) else -1
