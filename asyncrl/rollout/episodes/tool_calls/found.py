"""Result of a parser, and how calls between tags are found."""

from collections.abc import Callable, Iterator, Mapping
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


def between(text: str, opening: str, closing: str, read: Callable[[str], Call]) -> Found:
    """Calls between ``opening`` and ``closing``, each read by ``read``. The content is the text around them."""
    around: list[str] = []
    calls: list[CalledTool] = []
    for before, block in _blocks(text, opening, closing):
        around.append(before)
        if len(calls) == MAX_CALLS:
            calls.append(problematic(TOO_MANY))
            break
        calls.append(problematic(f"the call is not closed by {closing}") if block is None else _call_in(block, read))
    return Found("".join(around).strip(), calls) if calls else Found(text)


def _call_in(block: str, read: Callable[[str], Call]) -> CalledTool:
    return to_call(lambda: read(block))


def _blocks(text: str, opening: str, closing: str) -> Iterator[tuple[str, str | None]]:
    """Each block with the text before it; None for one that is never closed. The last text is left out."""
    start = 0
    while (found := text.find(opening, start)) >= 0:
        inside = found + len(opening)
        end = text.find(closing, inside)
        yield text[start:found], None if end < 0 else text[inside:end]
        if end < 0:
            return
        start = end + len(closing)
