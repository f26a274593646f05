"""Tests of programs: decoding and comparison."""

import json

import pytest

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.catalogue import resolve
from asyncrl.reward.verifier import Verdict, VerifierInput, verdict_of
from asyncrl.reward.verifiers.code import Case, Code, last_block, read_tests
from asyncrl.workers.sandbox import Sandbox


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


# ── test code ─────────────────────────────────────────────────────────────────────────────────
# Code verifier: programs are run and their outputs compared.

FOUND = Sandbox.find()
needs_namespaces = pytest.mark.skipif(
    FOUND is None or not FOUND.has_namespaces, reason="the kernel gives no namespaces here"
)
DOUBLE = json.dumps({"inputs": ["2", "5"], "outputs": ["4", "10"]})
ADD = json.dumps({"inputs": [[2, 3]], "outputs": [5], "fn_name": "add"})


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```\nDone."


@needs_namespaces
@pytest.mark.parametrize(
    ("code", "tests", "score", "passed"),
    [
        ("print(2 * int(input()))", DOUBLE, 1.0, 1.0),
        ("print(4)", DOUBLE, 0.0, 0.5),
        ("print(1 / 0)", DOUBLE, 0.0, 0.0),
        ("def add(a, b):\n    print('adding')\n    return a + b", ADD, 1.0, 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", ADD, 1.0, 1.0),
        ("def sub(a, b):\n    return a - b", ADD, 0.0, 0.0),
        ("import sys\nsys.exit()", ADD, 0.0, 0.0),
    ],
)
def test_scores_worked_by_hand(code: str, tests: str, score: float, passed: float) -> None:
    verdict = verdict_of(Code()(VerifierInput(completion=fenced(code), answer=tests)))

    assert verdict == Verdict(score, {"passed": passed, "correct": score})


@needs_namespaces
def test_the_score_may_be_the_share_of_tests_passed() -> None:
    inputs = VerifierInput(completion=fenced("n = int(input())\nprint(10 if n == 5 else 0)"), extra={"cases": DOUBLE})

    assert verdict_of(Code(share=True, tests="cases")(inputs)) == Verdict(0.5, {"passed": 0.5, "correct": 0.0})


@needs_namespaces
def test_a_deadline_that_passes_before_the_tests_end_is_no_verdict() -> None:
    verifier = Code(cpu_s=2, deadline_s=1.0)

    with pytest.raises(VerifierError, match="0 of 2 tests took all of deadline_s = 1 s"):
        verifier(VerifierInput(completion=fenced("print(4)"), answer=DOUBLE))


@needs_namespaces
def test_a_row_without_tests_is_an_error_and_not_a_zero_of_code() -> None:
    with pytest.raises(VerifierError, match="no tests under 'cases'"):
        Code(tests="cases")(VerifierInput(completion="", answer=DOUBLE))


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("```python\na\n```\nthen\n```python\nb\n```", "b"),
        ("```python\na\n```\nprints\n```text\n1\n```", "a"),
        ("```\na\n```", "a"),
        ("```python\na\nb", "a\nb"),
        ("  ```py\n  a\n  ```", "  a"),
        ("a", ""),
        ("```", ""),
        ("", ""),
    ],
)
def test_the_last_block_of_python_is_the_program(completion: str, code: str) -> None:
    assert last_block(completion) == code


def test_without_namespaces_it_does_not_start_unless_the_option_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "find", classmethod(lambda cls: Sandbox(has_namespaces=False)))

    with pytest.raises(ConfigError, match="require_walls = false"):
        resolve("code")
    assert resolve("code", {"require_walls": False})


def test_an_interpreter_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no program can be run on this machine with '/nonexistent'"):
        resolve("code", {"python": "/nonexistent"})
