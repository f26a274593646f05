"""One line that says where to look."""

import json
from pathlib import Path

from asyncrl.reward.fault import MAX_CHARS, describe, hung


def parse(text: str) -> object:
    return json.loads(text)


def test_the_line_is_the_callers_own_and_not_deep_inside_a_library() -> None:
    try:
        parse("{")
    except ValueError as error:
        said = describe(error)

    line = parse.__code__.co_firstlineno + 1
    assert said.startswith("JSONDecodeError: Expecting property name")
    assert said.endswith(f"({__file__}:{line})")


def test_our_own_frames_are_not_blamed() -> None:
    try:
        parse("{")
    except ValueError as error:
        said = describe(error, __file__)

    assert Path(json.__file__).parent.name in said
    assert __file__ not in said


def test_an_exception_is_one_line_of_bounded_length_in_valid_text() -> None:
    said = describe(ValueError("a\nb\udcff" + "x" * 10_000))

    assert said.startswith("ValueError: a b?")
    assert len(said) <= MAX_CHARS + len("ValueError: ")
    assert describe(KeyError()) == "KeyError"


def test_a_hang_is_told_with_its_limit() -> None:
    assert "within 0.3 s" in hung(0.3)
