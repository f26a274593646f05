"""
Tests of a program: inputs and expected outputs, as JSON.

    {"inputs": ["2 3\\n"], "outputs": ["5\\n"]}                         stdin and stdout
    {"inputs": ["[2, 3]"], "outputs": ["5"], "fn_name": "add"}         arguments and result of a function

The expected outputs stay in this process, so that a program cannot read and print them. For the same reason there are
no tests made of assertions: they would run where the program can reach them.
"""

import json
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.errors import VerifierError

CALL = """

import json as _json, sys as _sys
_arguments = _json.loads(_sys.stdin.read())
_owner = Solution() if "Solution" in globals() else _sys.modules["__main__"]
_stdout, _sys.stdout = _sys.stdout, _sys.stderr
_result = getattr(_owner, {name!r})(*_arguments)
_stdout.write(_json.dumps(_result))
_stdout.flush()
"""
"""Appended to a program whose function is called; what the function prints goes to stderr, its result to stdout."""


class Cases(Struct, frozen=True):
    inputs: list[Any]
    outputs: list[Any]
    fn_name: str | None = None


class Case(Struct, frozen=True):
    stdin: str
    expected: str


class CodeTests(Struct, frozen=True):
    cases: list[Case]
    function: str = ""
    """Name of the function to call; empty runs the whole program."""

    def program(self, code: str) -> str:
        return code + CALL.format(name=self.function) if self.function else code

    def passes(self, case: Case, output: str) -> bool:
        if not self.function:
            return _lines(output) == _lines(case.expected)
        try:
            result, expected = json.loads(output), json.loads(case.expected)
        except (ValueError, RecursionError):
            return False
        return bool(expected in (result, [result]))  # some rows wrap the one result in a list


def read_tests(text: str) -> CodeTests:
    """Decode the tests of a row; raises `VerifierError` if they have neither of the forms above."""
    try:
        cases = msgspec.json.decode(text, type=Cases)
    except (msgspec.DecodeError, RecursionError) as error:
        raise VerifierError(f"the row's tests {text[:60]!r} are not JSON with inputs and outputs: {error}") from error
    if not cases.inputs or len(cases.inputs) != len(cases.outputs):
        raise VerifierError(f"the row's tests have {len(cases.inputs)} inputs and {len(cases.outputs)} outputs")
    name = cases.fn_name or ""
    if name and not name.isidentifier():
        raise VerifierError(f"the row's tests call {name[:60]!r}, which is not a function name")
    encode = _arguments if name else _text
    pairs = zip(cases.inputs, cases.outputs, strict=True)
    return CodeTests(
        [Case(encode(given), _json(expected) if name else _text(expected)) for given, expected in pairs], name
    )


def _text(value: Any) -> str:
    """Text is kept; a list becomes lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return str(value)


def _arguments(value: Any) -> str:
    """Return a JSON list of arguments; text has one argument on each line."""
    if isinstance(value, str):
        return "[" + ",".join(line for line in value.splitlines() if line.strip()) + "]"
    return json.dumps(value if isinstance(value, list) else [value])


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _lines(text: str) -> list[list[str]]:
    """Split into the words of each line, so that spaces and empty lines make no difference."""
    return [line.split() for line in text.splitlines() if line.strip()]
