"""Tests of programs: decoding and comparison."""

import json

import pytest

from asyncrl.errors import VerifierError
from asyncrl.reward.code_tests import Case, read_tests


def test_inputs_and_outputs_are_paired() -> None:
    tests = read_tests('{"inputs": ["2 3\\n", ["1", "2"]], "outputs": ["5\\n", 3]}')

    assert tests.cases == [Case("2 3\n", "5\n"), Case("1\n2", "3")]
    assert tests.program("print(1)") == "print(1)"


@pytest.mark.parametrize(
    ("output", "expected", "passes"),
    [("5", "5\n", True), ("1  2 \n\n3", "1 2\n3", True), ("5.0", "5", False), ("", "5", False), ("5 6", "5\n6", False)],
)
def test_spaces_and_empty_lines_are_no_mistakes(output: str, expected: str, passes: bool) -> None:
    tests = read_tests(json.dumps({"inputs": [""], "outputs": [expected]}))

    assert tests.passes(tests.cases[0], output) is passes


@pytest.mark.parametrize(
    ("given", "expected", "output", "passes"),
    [
        ([2, 3], 5, "5", True),
        ("2\n3", "5", "5", True),
        ([[1, 2]], [[2, 1]], "[2, 1]", True),
        ([2, 3], 5, "6", False),
        ([2, 3], 5, "five", False),
        ([2, 3], 5, "[" * 100_000, False),
    ],
)
def test_a_functions_result_is_compared_as_a_value(given: object, expected: object, output: str, passes: bool) -> None:
    tests = read_tests(json.dumps({"inputs": [given], "outputs": [expected], "fn_name": "add"}))

    assert tests.passes(tests.cases[0], output) is passes
    assert "'add'" in tests.program("def add(a, b): ...")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("assert f(1) == 2", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"inputs": ["1"]}', "missing required field `outputs`"),
        ('{"inputs": [], "outputs": []}', "0 inputs"),
        ('{"inputs": ["1"], "outputs": ["1", "2"]}', "1 inputs and 2 outputs"),
        ('{"inputs": ["1"], "outputs": ["1"], "fn_name": "a.b"}', "not a function name"),
    ],
)
def test_a_row_without_tests_is_an_error_and_not_a_zero(text: str, said: str) -> None:
    with pytest.raises(VerifierError, match=said):
        read_tests(text)
