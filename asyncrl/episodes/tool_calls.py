"""Calls of tools in a text of the policy: a parser for each form that models write, the choice of one, and thoughts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.engine import CalledTool

# ── between tags ──────────────────────────────────────────────────────────────────────────────
# Result of a parser, and how calls between tags are found.


Schemas = Mapping[str, Mapping[str, Any]]
"""JSON schema of each parameter of each tool: ``schemas[tool][parameter]``."""
Call = tuple[str, dict[str, Any]]
"""Call of a tool: its name, and its arguments by name."""
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
            calls.append(problematic(f"the call is not closed by {closing}"))
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
UNREADABLE = (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError)
"""Errors of JSON that is malformed, too deep, or has numbers or characters that no message can carry."""


def read_value(text: str) -> Any:
    """A JSON value. Raises one of `UNREADABLE`."""
    value = msgspec.json.decode(text)
    msgspec.msgpack.encode(value)  # Integers of more than 64 bits can be read but not sent.
    return value


def end_of_json(text: str, start: int) -> int:
    """End of the JSON value that begins at ``start``, but for white space; -1 if none does."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        return DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def read_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises `UnreadableCall`."""
    try:
        return as_object(read_value(text))
    except UNREADABLE as error:
        raise UnreadableCall(f"is not valid JSON: {error}") from error


def as_object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object that can be sent. Raises `UnreadableCall`."""
    if not isinstance(value, dict):
        raise UnreadableCall(f"is {_kind(value)}, expected a JSON object")
    try:
        msgspec.msgpack.encode(value)
    except (*UNREADABLE, TypeError) as error:
        raise UnreadableCall(f"cannot be sent on: {error}") from error
    return value


def named_call(value: dict[str, Any], arguments_key: str) -> Call:
    """The call of an object with ``name`` and arguments, which may be missing. Raises `UnreadableCall`."""
    name, arguments = value.get("name"), value.get(arguments_key, {})
    if not isinstance(name, str) or not name:
        raise UnreadableCall('has no "name"')
    if isinstance(arguments, str):
        arguments = read_object(arguments)
    if not isinstance(arguments, dict):
        raise UnreadableCall(f'of {name} has {_kind(arguments)} as "{arguments_key}", expected a JSON object')
    return name, arguments


def typed(text: str, schema: Mapping[str, Any] | None) -> Any:
    """
    Value of an argument that is written without quotes.

    A parameter whose schema allows a string is one. Any other is read as JSON, and is the text if it is none.
    """
    kinds = schema.get("type") if schema else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text
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


# ── deepseek ──────────────────────────────────────────────────────────────────────────────────
# DeepSeek-V3 and R1: a section of calls, each with its arguments in a code fence.
#
#     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add
#     ```json
#     {"a": 1}
#     ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

SECTION, END_OF_SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, END_OF_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
LONGEST_HEAD = 1000
"""Characters between the beginning of a call and its code fence."""
FENCE, END_OF_FENCE = "```json", "```"


def parse_deepseek(text: str, schemas: Schemas) -> ParsedText:
    found = between(text, CALL, END_OF_CALL, _read_deepseek, end_of_value=_end)
    if not found.calls:
        return found
    return ParsedText(found.content.replace(SECTION, "").replace(END_OF_SECTION, "").strip(), found.calls)


def _end(text: str, start: int) -> int:
    """End of the code fence with the arguments."""
    fence = text.find(FENCE, start, start + LONGEST_HEAD)
    end = end_of_json(text, fence + len(FENCE)) if fence >= 0 and CALL not in text[start:fence] else -1
    closed = text.find(END_OF_FENCE, end) if end >= 0 else -1
    return closed + len(END_OF_FENCE) if closed >= 0 and not text[end:closed].strip() else end


def _read_deepseek(block: str) -> Call:
    _, separated, rest = block.partition(SEPARATOR)
    name, fenced, rest = rest.partition(FENCE)
    if not separated or not fenced or not name.strip():
        raise UnreadableCall(f"has no {SEPARATOR}name with {FENCE}")
    return name.strip(), read_object(rest.rstrip().removesuffix(END_OF_FENCE))


# ── glm ───────────────────────────────────────────────────────────────────────────────────────
# GLM-4.5 and later: the name, then a pair of tags for each argument, strings without quotes.
#
#     <tool_call>add
#     <arg_key>a</arg_key>
#     <arg_value>1</arg_value>
#     </tool_call>

OPENING = "<tool_call>"
KEY, END_OF_KEY = "<arg_key>", "</arg_key>"
VALUE, END_OF_VALUE = "<arg_value>", "</arg_value>"


def parse_glm(text: str, schemas: Schemas) -> ParsedText:
    return between(text, OPENING, "</tool_call>", lambda block: _read_glm(block, schemas))


def _read_glm(block: str, schemas: Schemas) -> Call:
    before, *pairs = block.split(KEY)
    name = before.strip()
    if not name or "<" in name:
        raise UnreadableCall("has no name" if not name else f"has {name[:80]!r} as its name")
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, _, rest = pair.partition(END_OF_KEY)
        between_tags, opened, rest = rest.partition(VALUE)
        value, closed, rest = rest.partition(END_OF_VALUE)
        if not (opened and closed) or between_tags.strip() or rest.strip() or OPENING in value or VALUE in value:
            raise UnreadableCall(f"of {name} has {KEY}{key.strip()} without {END_OF_KEY}{VALUE}...{END_OF_VALUE}")
        if key.strip() in arguments:
            raise UnreadableCall(f"of {name} has {KEY}{key.strip()} twice")
        arguments[key.strip()] = typed(value, schemas.get(name, {}).get(key.strip()))
    return name, arguments


# ── hermes ────────────────────────────────────────────────────────────────────────────────────
# Hermes, Qwen2.5 and Qwen3: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``.


def parse_hermes(text: str, schemas: Schemas) -> ParsedText:
    def read(block: str) -> Call:
        return named_call(read_object(block), "arguments")

    return between(text, OPENING, "</tool_call>", read, end_of_value=end_of_json)


# ── llama json ────────────────────────────────────────────────────────────────────────────────
# Llama 3.1 and 3.2: the whole turn is ``{"name": "add", "parameters": {"a": 1}}``, several are separated by ``;``.
#
# ``<|python_tag|>`` may precede them. Without it, a turn that does not begin with an object with a name is content.

PYTHON_TAG = "<|python_tag|>"
SEPARATORS = "; \t\r\n"
ENDS = re.compile(r"\s*(?:[;\n]|$|\{)")
NEXT_CALL = re.compile(r'[;\n]\s*\{\s*"name"\s*:')
"""Pattern of the beginning of a call behind another one."""
NAMED_OBJECT = re.compile(r'\s*\{\s*"name"\s*:')


def parse_llama_json(text: str, schemas: Schemas) -> ParsedText:
    before, tag, after = text.partition(PYTHON_TAG)
    if not tag and not NAMED_OBJECT.match(text):
        return ParsedText(text)
    content, calls = [before.strip() if tag else ""], list[CalledTool]()
    for value in _values(after if tag else text):
        if len(calls) == MAX_CALLS:
            calls.append(problematic(TOO_MANY))
            break
        calls.append(to_call(partial(_read_llama_json, value)))
        if calls[-1].problem:
            content.append(value.strip())
    return ParsedText("\n".join(filter(None, content)), calls)


def _read_llama_json(text: str) -> Call:
    value = read_object(text)
    return named_call(value, "parameters" if "parameters" in value else "arguments")


def _values(text: str) -> Iterator[str]:
    """
    JSON values, one after another; what is none up to where the next call begins.

    Inside a string of JSON its quotation marks would have backslashes, so that is no text of a broken call.
    """
    start = 0
    while start < len(text):
        if text[start] in SEPARATORS:
            start += 1
            continue
        end = end_of_json(text, start)
        if end < 0 or not ENDS.match(text, end):
            following = NEXT_CALL.search(text, start)
            end = following.start() if following else len(text)
        yield text[start:end]
        start = end


# ── qwen xml ──────────────────────────────────────────────────────────────────────────────────
# Qwen3-Coder, Qwen3.5 and Nemotron 3: tags for the function and each parameter, values without quotes.
#
#     <tool_call>
#     <function=add>
#     <parameter=a>
#     1
#     </parameter>
#     </function>
#     </tool_call>

FUNCTION, PARAMETER = "<function=", "<parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "</function>", "</parameter>"


def parse_qwen_xml(text: str, schemas: Schemas) -> ParsedText:
    return between(text, OPENING, "</tool_call>", lambda block: _read_qwen_xml(block, schemas))


def _read_qwen_xml(block: str, schemas: Schemas) -> Call:
    start, end = block.find(FUNCTION), block.rfind(END_OF_FUNCTION)
    if start < 0 or end < start:
        raise UnreadableCall(f"has no {FUNCTION}name> with {END_OF_FUNCTION}")
    if block.count(FUNCTION) > 1 or OPENING in block:
        raise UnreadableCall(f"has another {FUNCTION if block.count(FUNCTION) > 1 else OPENING} inside")
    name, rest = _named(block[start + len(FUNCTION) : end], FUNCTION)
    arguments: dict[str, Any] = {}
    known = schemas.get(name, {})
    while rest.strip():
        before, opened, rest = rest.partition(PARAMETER)
        if before.strip() or not opened:
            raise UnreadableCall(f"of {name} has {before.strip()[:80]!r} between its parameters")
        key, rest = _named(rest, PARAMETER)
        value, closed, rest = rest.partition(END_OF_PARAMETER)
        if not closed or PARAMETER in value:
            raise UnreadableCall(f"of {name} has a parameter {key} that is not closed by {END_OF_PARAMETER}")
        if key in arguments:
            raise UnreadableCall(f"of {name} has the parameter {key} twice")
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), known.get(key))
    return name, arguments


def _named(text: str, tag: str) -> tuple[str, str]:
    """Name in a tag that was opened before ``text``, and the text after the tag."""
    name, closed, rest = text.partition(">")
    if not closed or not name.strip() or "<" in name:
        raise UnreadableCall(f"has a tag {tag} without a name and >")
    return name.strip(), rest


# ── forms ─────────────────────────────────────────────────────────────────────────────────────
# Choice of a parser: by ``environment.tool_parser``, or by the text of the chat template.

PARSERS: Mapping[str, Parser] = {
    "hermes": parse_hermes,
    "qwen_xml": parse_qwen_xml,
    "glm": parse_glm,
    "llama_json": parse_llama_json,
    "deepseek": parse_deepseek,
}
TRACES: Mapping[str, tuple[str, ...]] = {
    "qwen_xml": ("<function=",),
    "glm": ("<arg_key>",),
    "deepseek": (CALL,),
    "hermes": ("<tool_call>",),
    "llama_json": ('"parameters": ', '{"name": '),
}
"""Texts that a chat template contains, all of them, if its model writes calls in this form; the first that fits."""
MARKS = frozenset(
    {
        "<tool_call>",
        "</tool_call>",
        PYTHON_TAG,
        SECTION,
        END_OF_SECTION,
        CALL,
        END_OF_CALL,
        SEPARATOR,
        "<think>",
        "</think>",
    }
)
"""Texts that parsers look for and that a tokenizer may have as special tokens."""


def form_of(chat_template: str) -> str | None:
    """Name of the form in which a model with this chat template writes calls; None if it has none of them."""
    fitting = (form for form, traces in TRACES.items() if all(trace in chat_template for trace in traces))
    return next(fitting, None)


def no_calls(text: str, schemas: Schemas) -> ParsedText:
    """The whole text as content: a parser for models without a known form of calls."""
    return ParsedText(text)


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


def split_thought(text: str, *, is_open: bool = False) -> tuple[str, str]:
    """
    The thought without its tags, and the text after it; see `after_thought`.

    A text that has no thought is all after it; one whose thought is not finished is all thought.
    """
    answer = after_thought(text, is_open=is_open)
    before = text[: text.rindex(END)] if END in text else "" if answer else text
    return before.lstrip().removeprefix(BEGIN).strip("\n"), answer


def after_thought(text: str, *, is_open: bool = False) -> str:
    """
    Text after the thought, the whole text if there is none, or nothing if the thought is not finished.

    Args:
        is_open: The prompt has opened the thought already.
    """
    _, closed, answer = text.rpartition(END)
    if closed:
        return answer.lstrip("\n")
    return "" if is_open or text.lstrip().startswith(BEGIN) else text
