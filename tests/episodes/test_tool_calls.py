import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from asyncrl.engine import CalledTool
from asyncrl.episodes.call_forms import (
    PARSERS,
    form_of,
    no_calls,
    parse_deepseek,
    parse_deepseek_v3_1,
    parse_gemma,
    parse_glm,
    parse_harmony,
    parse_hermes,
    parse_kimi,
    parse_llama_json,
    parse_mistral,
    parse_qwen_xml,
)
from asyncrl.episodes.tool_calls import (
    MAX_CALLS,
    UnreadableCall,
    after_thought,
    between,
    named_call,
    opened_thought,
    read_object,
    to_call,
    typed,
)
from tests.episodes.tool_calls.hostile import long_texts, texts
from tests.rollout.engines.chat_families import (
    FAMILIES,
    deepseek,
    deepseek_v3_1,
    gemma,
    harmony,
    hermes,
    kimi,
    mistral,
    template,
)


def test_calls_are_in_a_section_of_their_own() -> None:
    second = "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
    found = parse_deepseek(
        "Look." + deepseek("f", "```").replace("<｜tool▁calls▁end｜>", second + "<｜tool▁calls▁end｜>"), {}
    )
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"a": "```"}), ("g", {})]
    assert found.content == "Look."


@pytest.mark.parametrize("block", ["f", "function<｜tool▁sep｜>f {}", "function<｜tool▁sep｜>```json{}```"])
def test_other_blocks_are_problems(block: str) -> None:
    (call,) = parse_deepseek(f"<｜tool▁call▁begin｜>{block}<｜tool▁call▁end｜>", {}).calls
    assert "has no <｜tool▁sep｜>name with ```json" in call.problem


# ── test deepseek v3.1 ────────────────────────────────────────────────────────────────────────


def test_a_call_of_deepseek_v3_1_has_neither_kind_nor_fence() -> None:
    second = "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    first = "Look." + deepseek_v3_1("f", "<｜tool▁call▁end｜>")
    found = parse_deepseek_v3_1(first.replace("<｜tool▁calls▁end｜>", second + "<｜tool▁calls▁end｜>"), {})
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"a": "<｜tool▁call▁end｜>"}), ("g", {})]
    assert found.content == "Look."


def test_a_call_of_deepseek_v3_1_has_a_name() -> None:
    calls = parse_deepseek_v3_1("<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>" + deepseek_v3_1("f", "x"), {}).calls
    assert [call.problem for call in calls] == ["the call has no name with <｜tool▁sep｜>", ""]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}]},
        {"enum": ["1", "2"]},
    ],
)
def test_a_value_whose_schema_allows_text_is_text(schema: dict[str, Any]) -> None:
    assert typed("123", "a", {"properties": {"a": schema}}) == "123"
    assert typed("123", "a", {"properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}) == 123


@pytest.mark.parametrize("odd", [5, "x", True, [{}], [None], {"a": 1}])
@pytest.mark.parametrize("key", ["type", "enum", "anyOf", "oneOf"])
def test_a_schema_that_is_none_is_no_fault_of_a_turn(key: str, odd: object) -> None:
    assert typed("[1]", "a", {"properties": {"a": {key: odd}}}) == "[1]"


# ── test forms ────────────────────────────────────────────────────────────────────────────────
# All forms: they are total, and found by the text of a template.


@pytest.mark.parametrize("form", PARSERS)
@given(text=texts)
def test_no_text_makes_a_parser_fail(form: str, text: str) -> None:
    found = PARSERS[form](text, {"f": {"properties": {"a": {"type": "integer"}}}})
    assert len(found.calls) <= MAX_CALLS + 1
    for call in found.calls:
        assert bool(call.name) != bool(call.problem)
        msgspec.msgpack.encode(call.arguments)  # can be sent on


@pytest.mark.parametrize("form", PARSERS)
def test_long_texts_are_read_once(form: str) -> None:
    for text in long_texts:
        assert len(PARSERS[form](text, {}).calls) <= MAX_CALLS + 1


@pytest.mark.parametrize("form", PARSERS)
def test_a_text_without_calls_is_content_unchanged(form: str) -> None:
    text = " 1 < 2, {a}, and [b];\n"
    assert PARSERS[form](text, {}).content == text == no_calls(text, {}).content


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_form_is_that_of_the_template(family) -> None:
    assert form_of(template(family.name)) == family.form


def test_a_template_without_calls_has_no_form() -> None:
    assert form_of("{{ messages[0].content }}") is None


# ── test found ────────────────────────────────────────────────────────────────────────────────


def read(block: str) -> CalledTool:
    if block == "bad":
        raise UnreadableCall("is bad")
    return CalledTool(name=block, arguments={})


def test_content_is_the_text_around_calls() -> None:
    found = between("Look. <a>x</a> then <a>y</a>", "<a>", "</a>", read)
    assert found.content == "Look.  then"
    assert [call.name for call in found.calls] == ["x", "y"]


def test_what_cannot_be_read_stays_in_the_content_as_does_what_follows() -> None:
    assert (
        between("Look. <a>bad</a> then <a>y</a> and on", "<a>", "</a>", read).content == "Look. <a>bad</a> then  and on"
    )


def test_a_call_that_is_not_closed_ends_where_the_next_begins() -> None:
    found = between("<a>x <a>y</a>", "<a>", "</a>", read)
    assert [(call.name, call.problem) for call in found.calls] == [("", "the call is not closed by </a>"), ("y", "")]
    assert found.content == "<a>x"


def test_a_call_inside_another_is_a_part_of_it() -> None:
    (call,) = between("<a>x <a>y</a> z</a>", "<a>", "</a>", read).calls
    assert call.name == "x <a>y</a> z"


def test_a_call_that_cannot_be_read_is_a_problem_beside_the_others() -> None:
    assert [call.problem for call in between("<a>bad</a><a>x</a>", "<a>", "</a>", read).calls] == [
        "the call is bad",
        "",
    ]


def test_a_call_that_is_cut_is_a_problem() -> None:
    found = between("Look. <a>x</a><a>y", "<a>", "</a>", read)
    assert [call.problem for call in found.calls] == ["", "the call is not closed by </a>"]


def test_calls_beyond_the_most_are_one_problem() -> None:
    calls = between("<a>x</a>" * (MAX_CALLS + 9), "<a>", "</a>", read).calls
    assert len(calls) == MAX_CALLS + 1
    assert calls[-1].problem == f"the turn has more than {MAX_CALLS} calls"


def test_a_call_has_name_and_arguments() -> None:
    assert to_call(lambda: CalledTool(name="f", arguments={"a": 1})).arguments == {"a": 1}


# ── test gemma ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("{}", {}),
        ("{a:1,b:-2.5e3,c:true,d:null,e:None}", {"a": 1, "b": -2500, "c": True, "d": None, "e": None}),
        ('{a:<|"|>5<|"|>,b:[<|"|>x, y<|"|>,{c:[]}]}', {"a": "5", "b": ["x, y", {"c": []}]}),
        ('{a:<|"|>"{}\\n<tool_call|><|"|>}', {"a": '"{}\\n<tool_call|>'}),
        ('{<|"|>a b<|"|>:{c:1}}', {"a b": {"c": 1}}),
        ("{a: <b> }", {"a": "<b>"}),
    ],
)
def test_arguments_of_gemma_have_the_types_of_json(arguments: str, read: dict[str, Any]) -> None:
    found = parse_gemma(f"Look.<|tool_call>call:f{arguments}<tool_call|>", {})
    assert found.calls == [CalledTool(name="f", arguments=read)]
    assert found.content == "Look."


def test_function_gemma_has_marks_of_its_own() -> None:
    text = "<start_function_call>call:f{a:1,b:<escape>}<end_function_call><escape>}<end_function_call>"
    found = parse_gemma(text + "<start_function_call>call:g{}<end_function_call>", {})
    assert [(call.name, call.arguments) for call in found.calls] == [
        ("f", {"a": 1, "b": "}<end_function_call>"}),
        ("g", {}),
    ]


def test_a_channel_of_gemma_is_the_thought() -> None:
    found = parse_gemma(f"<|channel>thought\nhm{gemma('f', 'x')}\n<channel|>{gemma('g', 'x')}", {})
    assert ([call.name for call in found.calls], found.content) == (["g"], "")
    assert found.thought == "hm" + gemma("f", "x")
    assert parse_gemma("<|channel>thought\nhm", {}).thought == "hm"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("f{a:1}", "has no call:name{...}"),
        ("call:f", "has no call:name{...}"),
        ("call:f{a:1", "of f has no arguments in {...}"),
        ('call:f{a:<|"|>x}', "of f has no arguments in {...}"),
        ("call:f{a:1}}", "of f has no arguments in {...}"),
        ("call:f{a:}", "is not valid JSON"),
        ("call:f{a:1,}", "is not valid JSON"),
    ],
)
def test_other_blocks_are_problems_of_gemma(block: str, problem: str) -> None:
    broken, sound = parse_gemma(f"<|tool_call>{block}<tool_call|>{gemma('g', 'x')}", {}).calls
    assert broken.problem.startswith(f"the call {problem}")
    assert sound.name == "g"


# ── test glm ──────────────────────────────────────────────────────────────────────────────────


def test_arguments_are_pairs_of_tags() -> None:
    pairs = "<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value> x\n</arg_value>\n"
    (call,) = parse_glm(
        f"<tool_call>add\n{pairs}</tool_call>", {"add": {"properties": {"a": {"type": "string"}}}}
    ).calls
    assert (call.name, call.arguments) == ("add", {"a": "1", "b": " x\n"})


def test_a_call_may_have_no_arguments() -> None:
    assert parse_glm("<tool_call>look</tool_call>", {}).calls[0].name == "look"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("", "has no name"),
        ("f<arg_key>a</arg_key>", "of f has <arg_key>a without"),
        ("f<arg_key>a</arg_key><arg_value>", "of f"),
    ],
)
def test_other_blocks_are_problems_of_glm(block: str, problem: str) -> None:
    (call,) = parse_glm(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem.startswith(f"the call {problem}")


# ── test harmony ──────────────────────────────────────────────────────────────────────────────

ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize(
    "call",
    [
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|end|>"}<|call|>',
        '<|channel|>commentary to=functions.f<|message|>{"a": "<|end|>"} <|call|>',
        ' to=functions.f<|channel|>commentary json<|message|>{"a": "<|end|>"}<|call|>',
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": "<|end|>"}',
    ],
    ids=["in channel", "without type", "in role", "without end"],
)
def test_a_message_to_a_function_is_a_call(call: str) -> None:
    assert parse_harmony(call, {}).calls == [CalledTool(name="f", arguments={"a": "<|end|>"})]


@pytest.mark.parametrize("end", ["<|end|>", ""], ids=["shown", "hidden"])
def test_a_turn_has_thoughts_and_what_is_said(end: str) -> None:
    found = parse_harmony(
        f"{ANALYSIS}hm{end}<|start|>assistant<|channel|>commentary<|message|>Look.{end}"
        f"<|start|>assistant{ANALYSIS}to=functions.f{end}<|start|>assistant{harmony('f', 'x')}<|call|>"
        f"<|start|>assistant{FINAL} 5\n<|return|>",
        {},
    )
    assert (found.content, found.thought) == ("Look.\n 5\n", "hm\nto=functions.f")
    assert [(call.name, call.arguments) for call in found.calls] == [("f", {"a": "x"})]


@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        ("yes", "yes", ""),
        ("yes<|end|><|start|>assistant" + FINAL + "no", "yes\nno", ""),
        (ANALYSIS + "hm", "", "hm"),
        (ANALYSIS + "hm<|end|><|start|>assistant<|channel|>fin", "", "hm"),
        (ANALYSIS + "hm<|end|><|start|>assistant", "", "hm"),
    ],
    ids=["no channel", "no channel at first", "cut thought", "cut header", "cut role"],
)
def test_a_turn_without_a_header_is_content(text: str, content: str, thought: str) -> None:
    found = parse_harmony(text, {})
    assert (found.content, found.thought, found.calls) == (content, thought, [])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("<|channel|>commentary to=functions.f<|message|>{", "is not valid JSON"),
        ("<|channel|>commentary to=functions.f<|message|>{} and more", "is not valid JSON"),
        ("<|channel|>commentary to=python code<|message|>print(5)", "is not valid JSON"),
        ("<|channel|>commentary to=functions.f json{}", "of f has no <|message|>"),
        ("<|channel|>commentary to=functions.<|message|>{}", "has no name"),
    ],
)
def test_other_messages_to_functions_are_problems(message: str, problem: str) -> None:
    found = parse_harmony(f"{message}<|call|><|start|>assistant{harmony('g', 'x')}", {})
    broken, sound = found.calls
    assert broken.problem.startswith(f"the call {problem}")
    assert (sound.name, found.content) == ("g", message)


# ── test hermes ───────────────────────────────────────────────────────────────────────────────


def test_a_call_is_json_between_tags() -> None:
    found = parse_hermes('Look.\n<tool_call>\n{"name": "add", "arguments": {"a": "水\\n"}}\n</tool_call>', {})
    assert found.content == "Look."
    assert found.calls == [CalledTool(name="add", arguments={"a": "水\n"})]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("add(1)", "is not valid JSON"),
        ('{"arguments": {}}', 'has no "name"'),
        ('{"name": "f", "arguments": 5}', "of f has"),
    ],
)
def test_other_blocks_are_problems_of_hermes(block: str, problem: str) -> None:
    (call,) = parse_hermes(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem.startswith("the call ")
    assert problem in call.problem


# ── test json values ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ("NaN", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": 99999999999999999999999}', "not valid JSON"),
        ('{"a": "\\ud800"}', "not valid JSON"),
        ("[1]", "a list, expected a JSON object"),
        ('"a"', "a string, expected"),
        ("true", "a boolean, expected"),
    ],
)
def test_only_objects_that_can_be_sent_are_read(text: str, problem: str) -> None:
    with pytest.raises(UnreadableCall, match=problem):
        read_object(text)


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ({"name": "f", "arguments": {"a": 1}}, ("f", {"a": 1})),
        ({"name": "f", "arguments": '{"a": 1}'}, ("f", {"a": 1})),
    ],
)
def test_arguments_are_an_object_or_its_text(value: dict[str, Any], call: tuple[str, dict[str, Any]]) -> None:
    assert named_call(value, "arguments") == CalledTool(name=call[0], arguments=call[1])


@pytest.mark.parametrize("value", [{}, {"name": 5}, {"name": ""}, {"name": "f", "arguments": [1]}])
def test_a_call_without_a_name_or_with_other_arguments_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(UnreadableCall):
        named_call(value, "arguments")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ({}, 'of ls has no "KEY", expected "name" and "KEY"'),
        *(({key: {"path": "/etc"}}, f"of ls has the key {key!r}, expected") for key in ("args", "input", "kwargs", "")),
        ({"path": "/etc"}, "of ls has the key 'path', expected"),
        ({"KEY": {}, "path": "/etc"}, "of ls has the key 'path', expected"),
        ({"KEY": None}, "of ls has null as"),
        ({"KEY": {"path": "/etc"}, "id": "3"}, "of ls has the key 'id', expected"),
    ],
)
@pytest.mark.parametrize(("form", "key"), [("hermes", "arguments"), ("llama_json", "parameters")])
def test_a_call_whose_arguments_stand_elsewhere_is_a_problem(
    form: str, key: str, call: dict[str, Any], problem: str
) -> None:
    written = json.dumps({"name": "ls", **call}).replace("KEY", key)
    (found,) = PARSERS[form](written if form == "llama_json" else f"<tool_call>{written}</tool_call>", {}).calls
    assert found.problem.startswith("the call " + problem.replace("KEY", key))
    assert (found.fault, found.arguments) == ("arguments" if "null" in problem else "form", {})


def test_of_two_names_for_the_arguments_of_llama_a_call_has_one() -> None:
    assert parse_llama_json('{"name": "f", "arguments": {"a": 1}}', {}).calls[0].arguments == {"a": 1}
    (both,) = parse_llama_json('{"name": "f", "parameters": {"a": 1}, "arguments": {"a": 1}}', {}).calls
    assert (
        both.problem
        == 'the call of f has its arguments twice, as parameters and arguments, expected "name" and "parameters"'
    )


@pytest.mark.parametrize(
    "written",
    [
        hermes("f", "x").replace('"a": "x"', '"a": 1, "a": 2'),
        hermes("f", "x").replace('"a": "x"', '"a": [{"b": 1, "b": 1}]'),
        hermes("f", "x").replace('"name": "f"', '"name": "f", "name": "g"'),
        kimi("f", "x").replace('"a": "x"', '"a": 1, "a": 2'),
        mistral("f", "x").replace('"a": "x"', '"a": 1, "a": 2'),
        deepseek("f", "x").replace('"a": "x"', '"a": 1, "a": 2'),
        gemma("f", "x").replace('a:<|"|>x<|"|>', "a:1,a:2"),
    ],
)
def test_a_key_that_stands_twice_in_a_call_is_a_problem(written: str) -> None:
    parse = next(parse for form, parse in PARSERS.items() if parse(written, {}).calls)
    (call,) = parse(written, {}).calls
    assert (call.fault, call.arguments) == ("form", {})
    assert "stands twice in an object" in call.problem


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("5", "string", "5"),
        ("5", ["string", "null"], "5"),
        ("5", "integer", 5),
        ("True", "boolean", True),
        ("true", "boolean", True),
        ("None", ["integer", "null"], None),
        ("None", "integer", "None"),
        ("[1, 2]", "array", [1, 2]),
        ("five", "integer", "five"),
        ("5", None, "5"),
        ('"5"', None, '"5"'),
        ("a b", None, "a b"),
    ],
)
def test_values_have_the_type_of_their_schema(text: str, kind: object, value: object) -> None:
    assert typed(text, "a", {"properties": {"a": {"type": kind} if kind else {}}}) == value


# ── test kimi ─────────────────────────────────────────────────────────────────────────────────


def test_the_id_of_a_call_has_its_name() -> None:
    calls = "".join(kimi("f", "<|tool_call_end|>").partition("<|tool_calls_section_end|>")[:1])
    second = "<|tool_call_begin|> g.h:12 <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    found = parse_kimi(f"Look.{calls}{second}", {})
    assert found.content == "Look."
    assert found.calls == [
        CalledTool(name="f", arguments={"a": "<|tool_call_end|>"}, id="functions.f:0"),
        CalledTool(name="g.h", arguments={}, id="g.h:12"),
    ]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("functions.f:0{}", "has no name with <|tool_call_argument_begin|>"),
        ("functions.:0<|tool_call_argument_begin|>{}", "has the id functions.:0 without a name"),
        ("functions.f:0<|tool_call_argument_begin|>{", "is not valid JSON"),
    ],
)
def test_other_blocks_are_problems_of_kimi(block: str, problem: str) -> None:
    broken, sound = parse_kimi(f"<|tool_call_begin|>{block}<|tool_call_end|>{kimi('g', 'x')}", {}).calls
    assert broken.problem.startswith(f"the call {problem}")
    assert sound.name == "g"


# ── test llama json ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})], ""),
        ('<|python_tag|>{"name": "f", "parameters": {}}', [("f", {})], ""),
        (' {"name": "f", "arguments": {"a": 1}}; {"name": "g", "parameters": {}};', [("f", {"a": 1}), ("g", {})], ""),
        ('Look. <|python_tag|>{"name": "f", "parameters": {}}', [("f", {})], "Look."),
        ('{"answer": 5}', [], '{"answer": 5}'),
        ('I call {"name": "f"}', [], 'I call {"name": "f"}'),
    ],
)
def test_a_turn_is_calls_or_content(text: str, calls: list[object], content: str) -> None:
    found = parse_llama_json(text, {})
    assert [(call.name, call.arguments) for call in found.calls] == calls
    assert found.content == content


@pytest.mark.parametrize("text", ['{"name": "f"', "<|python_tag|>print(5)", '{"name": "f"} and more'])
def test_a_turn_that_begins_as_a_call_and_goes_on_otherwise_is_a_problem(text: str) -> None:
    assert "not valid JSON" in parse_llama_json(text, {}).calls[-1].problem


# ── test mistral ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (mistral("f", "[TOOL_CALLS]"), [("f", {"a": "[TOOL_CALLS]"}, "")], ""),
        ("Look.[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}" + mistral("g", "x"), ["f", "g"], "Look."),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]', [("f", {"a": 1}, "abc123def")], ""),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', ["f", "g"], ""),
        ('[TOOL_CALLS]{"name": "f", "arguments": {}}', ["f"], ""),
        ("[TOOL_CALLS]f[ARGS]{} and more", ["f"], "and more"),
    ],
)
def test_calls_follow_a_mark(text: str, calls: list[Any], content: str) -> None:
    found = parse_mistral(text, {})
    assert found.content == content
    assert [call.name for call in found.calls] == [call if isinstance(call, str) else call[0] for call in calls]
    for call, expected in zip(found.calls, calls, strict=True):
        assert isinstance(expected, str) or (call.arguments, call.id) == expected[1:]
    assert not any(call.problem for call in found.calls)


def test_a_call_of_mistral_may_have_an_id() -> None:
    assert parse_mistral("[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}", {}).calls[0].id == "abc123def"


def test_a_thought_of_magistral_is_no_content() -> None:
    found = parse_mistral(f"[THINK]hm{mistral('f', 'x')}[/THINK]Look.{mistral('g', 'x')}", {})
    assert ([call.name for call in found.calls], found.content) == (["g"], "Look.")
    assert found.thought == "hm" + mistral("f", "x")
    assert parse_mistral("[THINK]hm", {}).thought == "hm"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("f{}", "has no name with [ARGS]"),
        ("[ARGS]{}", "has no name with [ARGS]"),
        ("[CALL_ID]abc123def[ARGS]{}", "has no name"),
        ('f[ARGS]{"a":', "is not valid JSON"),
        ("[]", "has no name with [ARGS]"),
    ],
)
def test_other_blocks_are_problems_of_mistral(block: str, problem: str) -> None:
    found = parse_mistral(f"[TOOL_CALLS]{block}{mistral('g', 'x')}", {})
    assert [call.problem.partition(":")[0] for call in found.calls] == [f"the call {problem}", ""]
    assert found.content == f"[TOOL_CALLS]{block}"


def test_a_broken_call_in_a_list_is_broken_alone() -> None:
    sound = '{"name": "f", "arguments": {"a": [1, {"name": "x"}]}}'
    broken = '{"name": "g", "arguments": {"a": [1, {"name": "x"}}}'
    found = parse_mistral(f"[TOOL_CALLS][{sound}, {broken}, {sound}]", {})
    assert [call.name for call in found.calls] == ["f", "", "f"]
    assert "not valid JSON" in found.calls[1].problem


def test_calls_of_a_list_beyond_the_most_are_one_problem() -> None:
    calls = parse_mistral(
        "[TOOL_CALLS][" + ", ".join(['{"name": "f", "arguments": {}}'] * (MAX_CALLS + 9)) + "]", {}
    ).calls
    assert [call.name for call in calls] == ["f"] * MAX_CALLS + [""]


# ── test qwen xml ─────────────────────────────────────────────────────────────────────────────

CALL = """<tool_call>
<function=write>
<parameter=text>
 two
lines
</parameter>
<parameter=times>
3
</parameter>
</function>
</tool_call>"""


def test_values_lose_the_newlines_of_their_tags_alone() -> None:
    (call,) = parse_qwen_xml(
        CALL, {"write": {"properties": {"text": {"type": "string"}, "times": {"type": "integer"}}}}
    ).calls
    assert (call.name, call.arguments) == ("write", {"text": " two\nlines", "times": 3})


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("f", "has no <function=name> with </function>"),
        ("</function><function=f>", "has no <function=name> with </function>"),
        ("<function=></function>", "has a tag <function= without a name and >"),
        ("<function=f><parameter=a>1</function>", "of f has a parameter a that is not closed by </parameter>"),
    ],
)
def test_other_blocks_are_problems_of_qwen_xml(block: str, problem: str) -> None:
    (call,) = parse_qwen_xml(f"<tool_call>{block}</tool_call>", {}).calls
    assert call.problem == f"the call {problem}"


# ── test thoughts ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "is_open", "answer"),
    [
        ("yes", False, "yes"),
        ("<think>\nhm\n</think>\n\nyes", False, "yes"),
        ("hm</think>yes", True, "yes"),
        ("\n<think>hm", False, ""),
        ("hm", True, ""),
        ("<think>a</think>b</think>c", False, "c"),
        ("I <think> so", False, "I <think> so"),
    ],
)
def test_the_answer_follows_the_thought(text: str, is_open: bool, answer: str) -> None:
    assert after_thought(text, is_open=is_open) == answer


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("assistant\n<think>\n", "<think>\n"),
        ("<think>a</think><think>", "<think>"),
        ("assistant\n", ""),
        ("<think>\n\n</think>\n\n", ""),
        ("", ""),
    ],
)
def test_a_prompt_opens_a_thought_if_it_ends_with_its_tag(prompt: str, opened: str) -> None:
    assert opened_thought(prompt) == opened
