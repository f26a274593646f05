"""All forms: they are total, and found by the text of a template."""

import msgspec
import pytest
from hypothesis import given

from asyncrl.rollout.episodes.tool_calls.forms import PARSERS, form_of, no_calls
from asyncrl.rollout.episodes.tool_calls.found import MAX_CALLS
from tests.rollout.engines.chat_families import FAMILIES, template
from tests.rollout.episodes.tool_calls.hostile import long_texts, texts


@pytest.mark.parametrize("form", PARSERS)
@given(text=texts)
def test_no_text_makes_a_parser_fail(form: str, text: str) -> None:
    found = PARSERS[form](text, {"f": {"a": {"type": "integer"}}})
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
