"""Calls of tools and thoughts in a text of the policy: what all forms of calls share; `call_forms` has the forms."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from asyncrl.engine import CalledTool
from asyncrl.episodes.json_schema import JsonSchema, problem_of
from asyncrl.messages.words import CallFault

# ── between tags ──────────────────────────────────────────────────────────────────────────────
# Result of a parser, and how calls between tags are found.


Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of the arguments of each tool, by its name."""
MAX_CALLS = 64
"""Most calls of one turn; the next one is a problem, and the rest is left out."""
TOO_MANY = f"the turn has more than {MAX_CALLS} calls"


class ParsedText(Struct, frozen=True):
    """Calls in a text, and the text without them."""

    content: str
    calls: list[CalledTool] = []
    thought: str = ""
    """Thought that the form itself sets apart; that of ``<think>`` tags is told by `split_thought`."""


Parser = Callable[[str, Schemas], ParsedText]


class UnreadableCall(Exception):
    """A call cannot be read. The message completes the sentence "the call ..."."""

    def __init__(self, problem: str, fault: CallFault = "form") -> None:
        super().__init__(problem)
        self.fault: CallFault = fault


def to_call(read: Callable[[], CalledTool]) -> CalledTool:
    """The call that ``read`` returns, or one with the problem that it raises."""
    try:
        return read()
    except UnreadableCall as problem:
        return problematic(f"the call {problem}", problem.fault)


def problematic(problem: str, fault: CallFault = "form") -> CalledTool:
    """A call that cannot be read."""
    return CalledTool(name="", arguments={}, problem=problem, fault=fault)


def as_message(found: ParsedText) -> dict[str, Any]:
    """A turn as a message with its thought, under the names that templates have for it, and its calls."""
    thought = {"reasoning_content": found.thought, "thinking": found.thought} if found.thought else {}
    calls = [
        {
            "id": call.id or f"call{number:05}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(found.calls)
        if not call.problem
    ]
    return {"role": "assistant", "content": found.content, **thought, **({"tool_calls": calls} if calls else {})}


def between(
    text: str,
    opening: str,
    closing: str,
    read: Callable[[str], CalledTool],
    *,
    end_of_value: Callable[[str, int], int] | None = None,
) -> ParsedText:
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
            calls.append(problematic(f"the call is not closed by {closing}", "unclosed"))
            after = text.find(opening, inside)
            start = len(text) if after < 0 else after
        else:
            calls.append(to_call(partial(read, text[inside:end])))
            start = end + len(closing)
        if calls[-1].problem:
            around.append(text[found:start])
    if found >= 0 and calls:
        calls.append(problematic(TOO_MANY))
    return ParsedText("".join([*around, text[start:]]).strip(), calls) if calls else ParsedText(text)


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


# ── json values ───────────────────────────────────────────────────────────────────────────────
# JSON that the policy wrote: only values that can be sent on, and one sentence for the rest.

DECODER = json.JSONDecoder()


class RepeatedKey(ValueError):
    """An object of JSON has a key twice; the message names it."""


def _unique(pairs: list[tuple[str, Any]]) -> None:
    keys = set[str]()
    for key, _ in pairs:
        if key in keys:
            raise RepeatedKey(f"the key {key[:80]!r} stands twice in an object")
        keys.add(key)


KEYS = json.JSONDecoder(object_pairs_hook=_unique)
UNREADABLE = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError, RepeatedKey)
"""
Errors of JSON that is malformed, too deep, has a key twice, or numbers or characters that no message can carry.
"""
LONGEST_HEAD = 1000
"""Characters between the beginning of a call and its arguments."""


def read_value(text: str) -> Any:
    """A JSON value. Raises one of `UNREADABLE`."""
    value = msgspec.json.decode(text)
    msgspec.msgpack.encode(value)  # Integers of more than 64 bits can be read but not sent.
    KEYS.decode(text)  # msgspec takes the last of two values, though the policy has written both.
    return value


def end_of_json(text: str, start: int) -> int:
    """End of the JSON value that begins at ``start``, but for white space; -1 if none does."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def json_after(mark: str, opening: str) -> Callable[[str, int], int]:
    """``end_of_value`` of blocks with a JSON value behind a mark, for `between`."""

    def end(text: str, start: int) -> int:
        found = text.find(mark, start, start + LONGEST_HEAD)
        return end_of_json(text, found + len(mark)) if found >= 0 and opening not in text[start:found] else -1

    return end


def read_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises `UnreadableCall`."""
    try:
        return as_object(read_value(text))
    except RepeatedKey as error:
        raise UnreadableCall(f"cannot be read: {error}") from error
    except UNREADABLE as error:
        raise UnreadableCall(f"is not valid JSON: {error}", "json") from error


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object that can be sent. Raises `UnreadableCall`."""
    if not isinstance(value, dict):
        raise UnreadableCall(f"is {_kind(value)}, expected a JSON object")
    try:
        msgspec.msgpack.encode(value)
    except (*UNREADABLE, TypeError) as error:
        raise UnreadableCall(f"cannot be sent on: {error}") from error
    return value


def named_call(value: dict[str, Any], *names: str, beside: Sequence[str] = ()) -> CalledTool:
    """
    The call of an object with its name and its arguments.

    A key that the form has not may be where the policy wrote the arguments, so it is a problem, as is one that misses.

    Args:
        names: Names of the key for the arguments, of which one is there: the first is what models of the form write.
        beside: Further keys that the form has.

    Raises `UnreadableCall`.
    """
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise UnreadableCall('has no "name"')
    expected = f'expected "name" and "{names[0]}"'
    given = [key for key in value if key in names]
    if others := [key for key in value if key not in ("name", *names, *beside)]:
        raise UnreadableCall(f"of {name} has the key {others[0][:80]!r}, {expected}")
    if len(given) != 1:
        missing = f'has no "{names[0]}"' if not given else f"has its arguments twice, as {' and '.join(given)}"
        raise UnreadableCall(f"of {name} {missing}, {expected}")
    arguments = value[given[0]]
    if isinstance(arguments, str):
        arguments = read_object(arguments)
    if not isinstance(arguments, dict):
        problem = f'of {name} has {_kind(arguments)} as "{given[0]}", expected a JSON object'
        raise UnreadableCall(problem, "arguments")
    return CalledTool(name=name, arguments=arguments)


def typed(text: str, name: str, parameters: Mapping[str, Any]) -> Any:
    """
    Value of the argument ``name`` that is written without quotes, by the JSON schema of all arguments.

    It is the text where the schema allows that, be it one choice of several, such as a string or an integer: so nobody
    need guess. It is what the text means as JSON where the schema allows this alone. All else is the text: what does
    not fit, an argument that the schema does not name, and what depends on a keyword that is not understood.
    """
    schema = JsonSchema(parameters)
    if schema.allows_member(name, text) is not False:
        return text
    value = literal(text)
    return value if schema.allows_member(name, value) is not False else text


def literal(text: str) -> Any:
    """Value other than a string, in JSON or as chat templates render it; else the text."""
    if text.strip() in PYTHON_WORDS:
        return PYTHON_WORDS[text.strip()]
    try:
        value = read_value(text)
    except UNREADABLE:
        return text
    return text if isinstance(value, str) else value


PYTHON_WORDS = {"True": True, "False": False, "None": None}
"""Spellings of Python, in which chat templates render values that are not strings."""


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# ── faults ────────────────────────────────────────────────────────────────────────────────────
# Faults of calls that can be read, by the schemas of the tools. Such a call is delivered all the same: its answer says
# what is wrong.

FAULTS: tuple[CallFault, ...] = get_args(CallFault)


def judged(found: ParsedText, tools: Schemas) -> ParsedText:
    """The same calls, with the faults that they have for these tools."""

    def fault(call: CalledTool) -> CallFault | Literal[""]:
        if call.name not in tools:
            return "name"
        return "arguments" if problem_of(call.arguments, tools[call.name]) else ""

    return replace(found, calls=[call if call.problem else replace(call, fault=fault(call)) for call in found.calls])


# ── thoughts ──────────────────────────────────────────────────────────────────────────────────
# Thoughts of reasoning models: ``<think> ... </think> answer``.

BEGIN, END = "<think>", "</think>"
OPENING_TOKENS = 8
"""Last tokens of a prompt, in which it may have opened a thought."""


def opened_thought(text: str) -> str:
    """Beginning of a thought with which a prompt ends; empty if it ends otherwise. Ends in ``<think>`` and spaces."""
    return text[text.rfind(BEGIN) :] if text.rstrip().endswith(BEGIN) else ""


def opened_by(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> str:
    """Beginning of a thought with which these tokens end, by their text; see `opened_thought`."""
    return opened_thought(decode(list(token_ids[-OPENING_TOKENS:])))


def split_thought(text: str, *, is_open: bool = False, begin: str = BEGIN, end: str = END) -> tuple[str, str]:
    """
    The thought without its tags, and the text after it; see `after_thought`.

    A text that has no thought is all after it; one whose thought is not finished is all thought.
    """
    answer = after_thought(text, is_open=is_open, begin=begin, end=end)
    before = text[: text.rindex(end)] if end in text else "" if answer else text
    return before.lstrip().removeprefix(begin).strip("\n"), answer


def after_thought(text: str, *, is_open: bool = False, begin: str = BEGIN, end: str = END) -> str:
    """
    Text after the thought, the whole text if there is none, or nothing if the thought is not finished.

    Args:
        is_open: The prompt has opened the thought already.
        begin: Tag before a thought.
        end: Tag after a thought.
    """
    _, closed, answer = text.rpartition(end)
    if closed:
        return answer.lstrip("\n")
    return "" if is_open or text.lstrip().startswith(begin) else text
