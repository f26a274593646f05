"""JSON schemas of tools mean what the library jsonschema says, and calls of all forms have the types they ask for."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from asyncrl.engine import CalledTool
from asyncrl.episodes.call_forms import PARSERS
from asyncrl.episodes.json_schema import JsonSchema, problem_of
from asyncrl.episodes.tool_calls import ParsedText, judged
from tests.episodes.tool_calls.test_damaged import WRITERS

# ── made schemas ───────────────────────────────────────────────────────────────────────────────

TEXTS = ("", "1", "1.0", "true", "True", "null", "None", "a", " a\n", '"1"', "[1]", '{"a": 1}', "é")
SCALARS = (None, True, False, 0, 1, -2, 1.0, 1.5, 2**62, *TEXTS)
NAMES = ("a", "b", "c")
DEFINED = ("one", "two", "a/b~c")
values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=4,
)
kinds = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
places = st.sampled_from([f"#/$defs/{name.replace('~', '~0').replace('/', '~1')}" for name in DEFINED])
references = st.fixed_dictionaries({"$ref": places})
leaves = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True)}),
    st.fixed_dictionaries({"type": kinds, "nullable": st.booleans(), "description": st.just("x")}),
    st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": values}),
)
deeper = st.one_of(
    st.fixed_dictionaries({"items": references}),
    st.fixed_dictionaries({"properties": st.fixed_dictionaries({"a": references})}),
    st.fixed_dictionaries({"additionalProperties": references}),
)
"""References that lead to themselves only through a part of the value, so that jsonschema ends."""


def extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), some),
        **dict.fromkeys(("items", "additionalProperties"), inner),
        "properties": by_name,
        "required": st.lists(st.sampled_from(NAMES), max_size=2),
        "type": kinds,
    }
    few = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=3, unique=True)
    return few.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


schemas = st.recursive(leaves | references, extended, max_leaves=5)
definitions = st.fixed_dictionaries(dict.fromkeys(DEFINED, st.recursive(leaves | deeper, extended, max_leaves=3)))
UNKNOWN = ({"minimum": 1}, {"not": {"type": "string"}}, {"pattern": "^a"}, {"if": {"type": "string"}, "then": False})


def plain(schema: Any) -> Any:
    """The same schema without ``nullable``, which jsonschema does not know."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: value if key in ("const", "enum") else plain(value) for key, value in schema.items()}
    is_nullable = said.pop("nullable", False) is True and "$defs" not in said
    return {"anyOf": [said, {"type": "null"}]} if is_nullable else said


def means(schema: Any, value: object) -> bool:
    """Whether jsonschema finds the value valid."""
    return bool(Draft202012Validator(plain(schema)).is_valid(value))


# ── meaning ────────────────────────────────────────────────────────────────────────────────────


@given(schema=schemas, defined=definitions, value=values)
def test_a_schema_allows_what_jsonschema_finds_valid(schema: Any, defined: dict[str, Any], value: object) -> None:
    whole = {"allOf": [schema], "$defs": defined}
    assert JsonSchema(whole).allows(value) is means(whole, value)


@given(schema=schemas, defined=definitions, value=values, unknown=st.sampled_from(UNKNOWN))
def test_what_is_not_understood_leads_to_no_wrong_answer(
    schema: Any, defined: dict[str, Any], value: object, unknown: dict[str, Any]
) -> None:
    """It may lead to none: then nothing is forbidden."""
    for whole in (
        {"allOf": [schema, unknown], "$defs": defined},
        {"oneOf": [schema, unknown], "$defs": defined},
        {"anyOf": [schema], "$defs": {**defined, "one": unknown}},
    ):
        assert JsonSchema(whole).allows(value) in (None, means(whole, value))


@pytest.mark.parametrize(
    "reference", ["#/$defs/none", "#/$defs/a/0", "#/$defs/b/7", "#a", "other.json", "", 5, "#/type"]
)
def test_a_reference_that_leads_nowhere_forbids_nothing(reference: object) -> None:
    schema = {"$defs": {"a": "text", "b": [{}]}, "$ref": reference, "type": "object"}
    assert JsonSchema(schema).allows({}) is None
    assert JsonSchema(schema).allows(1) is False


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_references_that_lead_to_each_other_end(keyword: str) -> None:
    others = [{"$ref": f"#/$defs/{name}"} for name in "abcdefgh"]
    schema = {"$defs": {name: {keyword: others} for name in "abcdefgh"}, **others[0]}
    assert JsonSchema(schema).allows("text") is None
    assert problem_of({"a": 1}, schema) == ""


def test_a_value_is_compared_as_deep_as_it_is() -> None:
    tree = {"$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"}
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    assert JsonSchema(tree).allows([[], [[]]]) is True
    assert JsonSchema(tree).allows([[], [[1]]]) is False
    assert JsonSchema(tree).allows(deep) is None


# ── forms ──────────────────────────────────────────────────────────────────────────────────────


def gemma_value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{gemma_value(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(gemma_value, value))}]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def without_quotes(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def gemma(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call>call:{name}{gemma_value(arguments)}<tool_call|>"


TEXT_FORMS = ("glm", "qwen_xml")
"""Forms that write strings without quotes."""


def written(form: str, arguments: dict[str, Any]) -> str:
    writers: dict[str, Callable[[str, dict[str, Any]], str]] = {**WRITERS, "plain": WRITERS["hermes"], "gemma": gemma}
    spoken = {key: without_quotes(value) for key, value in arguments.items()} if form in TEXT_FORMS else arguments
    return writers[form]("f", spoken)


WRAPPERS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    lambda schema: schema,
    lambda schema: {"$defs": schema.pop("$defs"), "allOf": [schema, {}]},
    lambda schema: {"$defs": {**schema.pop("$defs"), "all": schema}, "$ref": "#/$defs/all"},
)


@given(
    properties=st.fixed_dictionaries(dict.fromkeys(NAMES, schemas)),
    defined=definitions,
    drawn=st.fixed_dictionaries(dict.fromkeys(NAMES, values)),
    wrapper=st.sampled_from(WRAPPERS),
)
def test_a_call_that_is_written_and_parsed_is_the_same(
    properties: dict[str, Any], defined: dict[str, Any], drawn: dict[str, Any], wrapper: Callable[..., dict[str, Any]]
) -> None:
    """In any form. Without quotes, a value whose text is allowed as well is that text."""

    def may_be(name: str, value: object) -> bool:
        return means({"properties": {name: properties[name]}, "$defs": defined}, {name: value})

    parameters = wrapper({"type": "object", "properties": properties, "$defs": defined})
    arguments = {name: value for name, value in drawn.items() if may_be(name, value)}
    for form, parse in PARSERS.items():
        (call,) = judged(parse(written(form, arguments), {"f": parameters}), {"f": parameters}).calls
        expected = dict(arguments)
        for name, value in arguments.items() if form in TEXT_FORMS else ():
            if may_be(name, text := without_quotes(value)):
                expected[name] = text
        assert json.dumps(call.arguments, sort_keys=True) == json.dumps(expected, sort_keys=True)
        assert (call.problem, call.fault) == ("", "")
        assert means(parameters, call.arguments)


REFERRED = {"$defs": {"text": {"type": "string"}, "number": {"type": "integer"}}}


@pytest.mark.parametrize("form", TEXT_FORMS)
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        *(({"$ref": "#/$defs/text"}, text, text) for text in ("1", "true", "null", "None", "[1]")),
        ({"allOf": [{"$ref": "#/$defs/text"}]}, "1", "1"),
        ({"$ref": "#/$defs/number"}, "1", 1),
        ({"const": 1}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": [1]}, "true", "true"),
        ({"type": ["string", "integer"]}, "1", "1"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "integer", "minimum": 0}, "1", 1),
        ({"type": "int"}, "1", "1"),
        ({"$ref": "#/$defs/none"}, "1", "1"),
        ({"not": {"type": "string"}}, "1", "1"),
        ({}, "1", "1"),
        (True, "1", "1"),
        (False, "1", "1"),
        ({"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
        ({"type": "object"}, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}'),
    ],
)
def test_a_value_changes_its_type_where_the_schema_asks_for_it(
    form: str, schema: object, text: str, value: object
) -> None:
    parameters = {"properties": {"a": schema}, **REFERRED}
    (call,) = PARSERS[form](WRITERS[form]("f", {"a": text}), {"f": parameters}).calls
    assert json.dumps(call.arguments) == json.dumps({"a": value})


# ── arguments ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"properties": {"path": {}}}, "there is no argument 'dir', expected path"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {"path": {}}}}}, "no argument 'dir'"),
        ({"anyOf": [{"properties": {"path": {}}}, {"properties": {"url": {}}}]}, "there is no argument 'dir'"),
        ({"additionalProperties": False}, "there is no argument 'dir', expected none"),
        ({"properties": {"dir": {}}, "required": ["dir", "path"]}, "argument 'path' is missing"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"required": ["path"]}}}, "argument 'path' is missing"),
        ({"properties": {"dir": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}}, "expected an integer"),
        ({"properties": {"dir": {"type": ["integer", "null"]}}}, "'dir' is '/etc', expected an integer or null"),
        ({"properties": {"dir": {"const": "/"}}}, """expected what fits {"const": "/"}"""),
        ({"properties": {"dir": False}}, "argument 'dir' is '/etc', expected what fits false"),
        ({"const": {}}, "the arguments do not fit the schema together"),
        ({"properties": {"path": {}}, "additionalProperties": {}}, ""),
        ({"properties": {"path": {}}, "patternProperties": {}}, ""),
        *(({"properties": {"path": {}}, "allOf": [more]}, "") for more in ({"$ref": "other.json"}, {"if": True})),
        ({}, ""),
        ({"type": "object"}, ""),
        ({"properties": [], "required": "path"}, ""),
    ],
)  # fmt: skip
def test_the_problem_of_arguments_is_told(parameters: dict[str, Any], problem: str) -> None:
    found = problem_of({"dir": "/etc"}, parameters)
    assert problem in found
    assert bool(problem) == bool(found)
    (call,) = judged(ParsedText("", [CalledTool(name="ls", arguments={"dir": "/etc"})]), {"ls": parameters}).calls
    assert call.fault == ("arguments" if problem else "")
