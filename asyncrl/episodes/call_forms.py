"""Forms in which models write calls of tools: a parser for each, and the choice of one."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from msgspec.structs import replace

from asyncrl.engine import CalledTool, ChatMessage
from asyncrl.episodes.tool_calls import (
    BEGIN,
    END,
    MAX_CALLS,
    TOO_MANY,
    ParsedText,
    Parser,
    Schemas,
    UnreadableCall,
    between,
    end_of_json,
    json_after,
    literal,
    named_call,
    problematic,
    read_object,
    split_thought,
    to_call,
    typed,
)

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
FENCE, END_OF_FENCE = "```json", "```"


def parse_deepseek(text: str, schemas: Schemas) -> ParsedText:
    return without(between(text, CALL, END_OF_CALL, _read_deepseek, end_of_value=_end), SECTION, END_OF_SECTION)


def without(found: ParsedText, *marks: str) -> ParsedText:
    """The same calls, and the content without the marks of their section."""
    if not found.calls:
        return found
    content = found.content
    for mark in marks:
        content = content.replace(mark, "")
    return ParsedText(content.strip(), found.calls)


def _end(text: str, start: int) -> int:
    """End of the code fence with the arguments."""
    end = json_after(FENCE, CALL)(text, start)
    closed = text.find(END_OF_FENCE, end) if end >= 0 else -1
    return closed + len(END_OF_FENCE) if closed >= 0 and not text[end:closed].strip() else end


def _read_deepseek(block: str) -> CalledTool:
    _, separated, rest = block.partition(SEPARATOR)
    name, fenced, rest = rest.partition(FENCE)
    if not separated or not fenced or not name.strip():
        raise UnreadableCall(f"has no {SEPARATOR}name with {FENCE}")
    return CalledTool(name=name.strip(), arguments=read_object(rest.rstrip().removesuffix(END_OF_FENCE)))


# ── deepseek v3.1 ─────────────────────────────────────────────────────────────────────────────
# DeepSeek-V3.1 and V3.2-Exp: the same section, without the kind of the call and without a code fence.
#
#     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>


def parse_deepseek_v3_1(text: str, schemas: Schemas) -> ParsedText:
    def read(block: str) -> CalledTool:
        name, arguments = split_head(block, SEPARATOR)
        return CalledTool(name=name, arguments=read_object(arguments))

    found = between(text, CALL, END_OF_CALL, read, end_of_value=json_after(SEPARATOR, CALL))
    return without(found, SECTION, END_OF_SECTION)


def split_head(block: str, separator: str) -> tuple[str, str]:
    """Text of a call before the separator, and its arguments. Raises `UnreadableCall`."""
    head, separated, arguments = block.partition(separator)
    if not separated or not head.strip():
        raise UnreadableCall(f"has no name with {separator}")
    return head.strip(), arguments


# ── gemma ─────────────────────────────────────────────────────────────────────────────────────
# Gemma 4, and FunctionGemma with other marks: keys without quotes, strings between marks.
#
#     <|tool_call>call:add{a:1,b:{c:[<|"|>text<|"|>,true]}}<tool_call|>
#     <start_function_call>call:add{a:1,b:<escape>text<escape>}<end_function_call>
#
# The thoughts of Gemma 4 stand between ``<|channel>thought`` and ``<channel|>``.

GEMMA_CALL, END_OF_GEMMA_CALL = "<|tool_call>", "<tool_call|>"
FUNCTION_GEMMA_CALL, END_OF_FUNCTION_GEMMA_CALL = "<start_function_call>", "<end_function_call>"
QUOTE, ESCAPE = '<|"|>', "<escape>"
CHANNEL, END_OF_CHANNEL = "<|channel>", "<channel|>"
GEMMA_HEAD = re.compile(r"\s*call:([^\s{}<>]+)(?=\{)")
GEMMA_PART = re.compile(
    r'(?P<quote><\|"\|>|<escape>)(?P<string>.*?)(?P=quote)'
    r'|(?P<structure>[{}\[\],:])|(?P<word>(?:(?!<\|"\|>|<escape>)[^{}\[\],:])+)|(?P<unclosed><)',
    re.DOTALL,
)
"""Pattern of a part of the arguments: a word is a key, or a value that is no string."""


def parse_gemma(text: str, schemas: Schemas) -> ParsedText:
    thought, answer = split_thought(text, begin=CHANNEL, end=END_OF_CHANNEL)
    is_gemma = GEMMA_CALL in answer
    opening = GEMMA_CALL if is_gemma else FUNCTION_GEMMA_CALL
    closing = END_OF_GEMMA_CALL if is_gemma else END_OF_FUNCTION_GEMMA_CALL

    def end_of_value(text: str, start: int) -> int:
        head = GEMMA_HEAD.match(text, start)
        end = _gemma_json(text, head.end())[1] if head else -1
        return end if text.find(opening, start, end) < 0 else -1

    found = between(answer, opening, closing, _read_gemma, end_of_value=end_of_value)
    return ParsedText(found.content, found.calls, thought.removeprefix("thought").strip("\n"))


def _read_gemma(block: str) -> CalledTool:
    head = GEMMA_HEAD.match(block)
    if not head:
        raise UnreadableCall("has no call:name{...}")
    arguments, end = _gemma_json(block, head.end())
    if end < 0 or block[end:].strip():
        raise UnreadableCall(f"of {head[1]} has no arguments in {{...}}")
    return CalledTool(name=head[1], arguments=read_object(arguments))


def _gemma_json(text: str, start: int) -> tuple[str, int]:
    """The object that begins at ``start``, written as JSON, and its end; -1 if it is not closed."""
    parts: list[str] = []
    depth = 0
    for part in GEMMA_PART.finditer(text, start):
        match part.lastgroup:
            case "string":
                parts.append(json.dumps(part["string"]))
            case "word" if word := part[0].strip():
                is_key = text.startswith(":", part.end())
                parts.append(json.dumps(word if is_key else literal(word)))
            case "structure":
                parts.append(part[0])
                depth += (part[0] in "{[") - (part[0] in "}]")
            case "unclosed":
                break
        if depth <= 0:
            return "".join(parts), part.end()
    return "", -1


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


def _read_glm(block: str, schemas: Schemas) -> CalledTool:
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
        arguments[key.strip()] = typed(value, key.strip(), schemas.get(name, {}))
    return CalledTool(name=name, arguments=arguments)


# ── harmony ───────────────────────────────────────────────────────────────────────────────────
# gpt-oss: a turn of several messages, of which the prompt has begun the first by ``<|start|>assistant``.
#
#     <|channel|>analysis<|message|>thought<|end|>
#     <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>
#     <|start|>assistant<|channel|>final<|message|>answer<|return|>
#
# The recipient may stand before the channel as well. Commentary without one is content, as is a turn without channels.

START, HARMONY_CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
BORDER = re.compile(r"<\|(?:end|call|return)\|>(?:<\|start\|>)?|<\|start\|>|\Z")
RECIPIENT = re.compile(r"\bto=([^\s<]+)")


def parse_harmony(text: str, schemas: Schemas) -> ParsedText:
    if HARMONY_CHANNEL not in text and MESSAGE not in text:
        return ParsedText(text)
    content, thoughts, calls = list[str](), list[str](), list[CalledTool]()
    for header, body in _messages(text):
        if recipient := RECIPIENT.search(header):
            if len(calls) == MAX_CALLS:
                calls.append(problematic(TOO_MANY))
                break
            calls.append(to_call(partial(_read_harmony, recipient[1].removeprefix("functions."), body)))
            if calls[-1].problem:
                content.append(header if body is None else header + MESSAGE + body)
        elif HARMONY_CHANNEL + "analysis" in header:
            thoughts.append(body or "")
        elif body is not None or HARMONY_CHANNEL not in header:
            content.append(header.removeprefix("assistant") if body is None else body)
    return ParsedText("\n".join(filter(None, content)), calls, "\n".join(filter(None, thoughts)))


def _read_harmony(name: str, body: str | None) -> CalledTool:
    if not name or body is None:
        raise UnreadableCall(f"of {name} has no {MESSAGE}" if name else "has no name")
    return CalledTool(name=name, arguments=read_object(body))


def _messages(text: str) -> Iterator[tuple[str, str | None]]:
    """Header and body of each message; None if the header does not end. No border is inside of a JSON value."""
    start = 0
    while start < len(text):
        end, after = _border(text, start)
        middle = text.find(MESSAGE, start, end)
        header = text[start : end if middle < 0 else middle]
        body = middle + len(MESSAGE)
        if middle >= 0 and RECIPIENT.search(header):
            end, after = _border(text, max(body, end_of_json(text, body)))
        yield header, text[body:end] if middle >= 0 else None
        start = after


def _border(text: str, start: int) -> tuple[int, int]:
    """End of a message, and the beginning of the next one."""
    border = BORDER.search(text, start)
    return border.span() if border else (len(text), len(text))


# ── hermes ────────────────────────────────────────────────────────────────────────────────────
# Hermes, Qwen2.5 and Qwen3: ``<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>``.


def parse_hermes(text: str, schemas: Schemas) -> ParsedText:
    def read(block: str) -> CalledTool:
        return named_call(read_object(block), "arguments")

    return between(text, OPENING, "</tool_call>", read, end_of_value=end_of_json)


# ── plain ─────────────────────────────────────────────────────────────────────────────────────
# For chat templates that know no tools: texts alone, which any template shows. Calls have Hermes' form.
#
#     system      Be brief.⏎⏎You may call these functions ... {"name": "add", ...}
#     assistant   <tool_call>⏎{"name": "add", "arguments": {"a": 1}}⏎</tool_call>
#     user        <tool_response>⏎+5⏎</tool_response>

DESCRIPTION = """\
You may call these functions, each described by one line:
{functions}

Write a call as
<tool_call>
{{"name": "the name", "arguments": {{"a parameter": "its value"}}}}
</tool_call>
and read its result between <tool_response> and </tool_response>."""


def plain(messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[ChatMessage]:
    """
    The same chat, and tools in OpenAI's form, as texts of the system, the user and the assistant.

    Results that follow each other are one message of the user, with what the user says next: many templates that know
    no tools take turns alone. The tools are described behind the system message with which the chat begins, or else
    before what the user says first.
    """
    told: list[ChatMessage] = []
    is_answered = False
    for message in messages:
        spoken = _spoken(message)
        if is_answered and spoken.get("role") == "user":
            told[-1] = {"role": "user", "content": f"{told[-1]['content']}\n{spoken.get('content') or ''}"}
            continue
        told.append(spoken)
        is_answered = message.get("role") == "tool"
    return _described(told, tools) if tools else told


def _spoken(message: ChatMessage) -> ChatMessage:
    content = message.get("content") or ""
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if not (calls := message.get("tool_calls")):
        return message
    said = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**said, "content": "\n".join(filter(None, [content, *map(_written, calls)]))}


def _written(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    name = json.dumps(function.get("name"), ensure_ascii=False)
    value = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{OPENING}\n{{"name": {name}, "arguments": {value}}}\n</tool_call>'


def _described(messages: list[ChatMessage], tools: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    text = DESCRIPTION.format(functions=functions)
    begins = bool(messages) and messages[0].get("role") == "system"
    place = 0 if begins else next((n for n, message in enumerate(messages) if message.get("role") == "user"), -1)
    if place < 0:
        return [{"role": "user", "content": text}, *messages]
    said = messages[place].get("content") or ""
    whole = "\n\n".join(filter(None, [said, text] if begins else [text, said]))
    return [*messages[:place], {**messages[place], "content": whole}, *messages[place + 1 :]]


# ── kimi ──────────────────────────────────────────────────────────────────────────────────────
# Kimi K2: a section of calls, each with its id, in which its name is.
#
#     <|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}
#     <|tool_call_end|><|tool_calls_section_end|>

KIMI_SECTION, END_OF_KIMI_SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, END_OF_KIMI_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
NUMBER_OF_CALL = re.compile(r":\d+\Z")


def parse_kimi(text: str, schemas: Schemas) -> ParsedText:
    found = between(text, KIMI_CALL, END_OF_KIMI_CALL, _read_kimi, end_of_value=json_after(KIMI_ARGUMENTS, KIMI_CALL))
    return without(found, KIMI_SECTION, END_OF_KIMI_SECTION)


def _read_kimi(block: str) -> CalledTool:
    call_id, arguments = split_head(block, KIMI_ARGUMENTS)
    name = NUMBER_OF_CALL.sub("", call_id).removeprefix("functions.")
    if not name:
        raise UnreadableCall(f"has the id {call_id} without a name")
    return CalledTool(name=name, arguments=read_object(arguments), id=call_id)


# ── llama json ────────────────────────────────────────────────────────────────────────────────
# Llama 3.1 and 3.2: the whole turn is ``{"name": "add", "parameters": {"a": 1}}``, several are separated by ``;``.
#
# ``<|python_tag|>`` may precede them. Without it, a turn that does not begin with an object with a name is content.

PYTHON_TAG = "<|python_tag|>"
SEPARATORS = "; \t\r\n"
ENDS = re.compile(r"\s*(?:[;\n]|$|\{)")
"""Pattern of what may follow a call."""
NEXT_CALL = re.compile(r'[;\n]\s*\{\s*"name"\s*:')
"""Pattern of the beginning of a call behind another one."""
NAMED_OBJECT = re.compile(r'\s*\{\s*"name"\s*:')


def parse_llama_json(text: str, schemas: Schemas) -> ParsedText:
    before, tag, after = text.partition(PYTHON_TAG)
    if not tag and not NAMED_OBJECT.match(text):
        return ParsedText(text)
    content, calls = [before.strip() if tag else ""], list[CalledTool]()
    for value in _values(after if tag else text, SEPARATORS, ENDS, NEXT_CALL):
        if len(calls) == MAX_CALLS:
            calls.append(problematic(TOO_MANY))
            break
        calls.append(to_call(partial(_read_llama_json, value)))
        if calls[-1].problem:
            content.append(value.strip())
    return ParsedText("\n".join(filter(None, content)), calls)


def _read_llama_json(text: str) -> CalledTool:
    return named_call(read_object(text), "parameters", "arguments")


def _values(text: str, separators: str, ends: re.Pattern[str], next_call: re.Pattern[str]) -> Iterator[str]:
    """
    JSON values, one after another; what is none up to where the next call begins.

    Inside a string of JSON its quotation marks would have backslashes, so that is no text of a broken call.

    Args:
        separators: Characters between values.
        ends: Matches what may follow a value.
        next_call: Finds the beginning of a call behind a broken one.
    """
    start = 0
    while start < len(text):
        if text[start] in separators:
            start += 1
            continue
        end = end_of_json(text, start)
        if end < 0 or not ends.match(text, end):
            following = next_call.search(text, start)
            end = following.start() if following else len(text)
        yield text[start:end]
        start = end


# ── mistral ───────────────────────────────────────────────────────────────────────────────────
# Mistral: from version 11 of its tokenizers on a mark for each call; before, a list of calls behind one mark.
#
#     [TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 2}
#     [TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abc123def"}]
#
# The thoughts of Magistral stand between ``[THINK]`` and ``[/THINK]``.

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK, END_OF_THINK = "[THINK]", "[/THINK]"
LIST = re.compile(r"\s*(?:\{|\[\s*\{)")
"""Pattern of the beginning of a list of calls, or of a single one."""
LIST_SEPARATORS = ", \t\r\n"
END_IN_LIST = re.compile(r"\s*(?:,|\Z)")
NEXT_IN_LIST = re.compile(r',\s*\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"arguments"\s*:')


def parse_mistral(text: str, schemas: Schemas) -> ParsedText:
    thought, answer = split_thought(text, begin=THINK, end=END_OF_THINK)
    around, calls = list[str](), list[CalledTool]()
    before, opened, rest = answer.partition(TOOL_CALLS)
    while opened and len(calls) <= MAX_CALLS:
        is_list = bool(LIST.match(rest))
        end = end_of_json(rest, 0) if is_list else json_after(ARGS, TOOL_CALLS)(rest, 0)
        if end < 0:
            following = rest.find(TOOL_CALLS)
            end = len(rest) if following < 0 else following
        written = rest[:end]
        found = list(_listed(written)) if is_list else [to_call(partial(_read_mistral, written))]
        around += [before, opened + written if any(call.problem for call in found) else ""]
        calls += found
        before, opened, rest = rest[end:].partition(TOOL_CALLS)
    too_many = [problematic(TOO_MANY)] if len(calls) > MAX_CALLS else []
    content = "".join([*around, before, opened, rest])
    return ParsedText(content.strip() if calls else content, calls[:MAX_CALLS] + too_many, thought)


def _read_mistral(block: str) -> CalledTool:
    head, arguments = split_head(block, ARGS)
    name, _, call_id = head.partition(CALL_ID)
    if not name.strip():
        raise UnreadableCall("has no name")
    return CalledTool(name=name.strip(), arguments=read_object(arguments), id=call_id.strip())


def _listed(block: str) -> Iterator[CalledTool]:
    """Calls of a list, no more than one too many."""
    inner = block.strip()
    inner = inner[1:].removesuffix("]") if inner.startswith("[") else inner
    for written in islice(_values(inner, LIST_SEPARATORS, END_IN_LIST, NEXT_IN_LIST), MAX_CALLS + 1):
        yield to_call(partial(_read_listed, written))


def _read_listed(written: str) -> CalledTool:
    value = read_object(written)
    call_id = value.get("id")
    return replace(named_call(value, "arguments", beside=["id"]), id=call_id if isinstance(call_id, str) else "")


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


def _read_qwen_xml(block: str, schemas: Schemas) -> CalledTool:
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
            problem = f"of {name} has a parameter {key} that is not closed by {END_OF_PARAMETER}"
            raise UnreadableCall(problem, "unclosed")
        if key in arguments:
            raise UnreadableCall(f"of {name} has the parameter {key} twice")
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), key, known)
    return CalledTool(name=name, arguments=arguments)


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
    "deepseek_v3_1": parse_deepseek_v3_1,
    "kimi": parse_kimi,
    "mistral": parse_mistral,
    "harmony": parse_harmony,
    "gemma": parse_gemma,
    "plain": parse_hermes,
}
TRACES: Mapping[str, tuple[str, ...]] = {
    "qwen_xml": ("<function=",),
    "glm": ("<arg_key>",),
    "kimi": (KIMI_CALL, KIMI_ARGUMENTS),
    "harmony": (HARMONY_CHANNEL, "functions."),
    "gemma": ("_call>call:",),
    "mistral": (TOOL_CALLS,),
    "deepseek": (CALL, FENCE),
    "deepseek_v3_1": (CALL,),
    "hermes": ("<tool_call>",),
    "llama_json": ('"parameters": ', '{"name": '),
}
"""Texts that a chat template contains, all of them, if its model writes calls in this form; the first that fits."""
MARKS = frozenset(
    {
        *("<tool_call>", "</tool_call>", PYTHON_TAG, BEGIN, END),
        *(SECTION, END_OF_SECTION, CALL, END_OF_CALL, SEPARATOR),
        *(KIMI_SECTION, END_OF_KIMI_SECTION, KIMI_CALL, KIMI_ARGUMENTS, END_OF_KIMI_CALL),
        *(TOOL_CALLS, CALL_ID, ARGS, THINK, END_OF_THINK),
        *(START, HARMONY_CHANNEL, CONSTRAIN, MESSAGE),
        *(GEMMA_CALL, END_OF_GEMMA_CALL, QUOTE, CHANNEL, END_OF_CHANNEL),
        *(FUNCTION_GEMMA_CALL, END_OF_FUNCTION_GEMMA_CALL, ESCAPE),
    }
)
"""
Texts that parsers look for and that a tokenizer may have as special tokens. Those that end a turn are none of them:
``<|end|>`` is no border for a model that ends its turns with it.
"""


def form_of(chat_template: str) -> str | None:
    """Name of the form in which a model with this chat template writes calls; None if it has none of them."""
    fitting = (form for form, traces in TRACES.items() if all(trace in chat_template for trace in traces))
    return next(fitting, None)


def no_calls(text: str, schemas: Schemas) -> ParsedText:
    """The whole text as content: a parser for models without a known form of calls."""
    return ParsedText(text)
