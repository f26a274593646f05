"""
What a program is tried with: inputs, and what it should print.

    {"inputs": ["2 3\\n"], "outputs": ["5\\n"]}                         stdin and stdout
    {"inputs": ["[2, 3]"], "outputs": ["5"], "fn_name": "add"}         arguments of a function, and what it returns

The expected outputs stay on this side: a program that is never shown them cannot print them, whatever it does. That is
why there are no tests made of assertions, which run where the program can reach them.
"""

import json
from typing import Any

import msgspec
from msgspec import Struct

from asyncrl.errors import VerifierError

CALL = """

import json as _json, sys as _sys
_arguments = _json.loads(_sys.stdin.read())
_where = Solution() if "Solution" in globals() else _sys.modules["__main__"]
_said, _sys.stdout = _sys.stdout, _sys.stderr
_result = getattr(_where, {name!r})(*_arguments)
_said.write(_json.dumps(_result))
_said.flush()
"""
"""Behind a program whose function is called: what the function prints itself is not its result."""


class Cases(Struct, frozen=True):
    """As rows have them: as JSON."""

    inputs: list[Any]
    outputs: list[Any]
    fn_name: str | None = None


class Case(Struct, frozen=True):
    """One input, and what should come of it."""

    stdin: str
    expected: str


class CodeTests(Struct, frozen=True):
    """The tests of one row."""

    cases: list[Case]
    function: str = ""
    """What is called; empty runs the whole program."""

    def program(self, code: str) -> str:
        """What is run for each case."""
        return code + CALL.format(name=self.function) if self.function else code

    def passes(self, case: Case, output: str) -> bool:
        """Whether a program that printed this has passed."""
        if not self.function:
            return _lines(output) == _lines(case.expected)
        try:
            result, expected = json.loads(output), json.loads(case.expected)
        except (ValueError, RecursionError):
            return False
        return bool(expected in (result, [result]))  # some rows wrap the one result in a list


def read_tests(text: str) -> CodeTests:
    """
    The tests of a row.

    Raises:
        VerifierError: They are in none of the forms above.
    """
    try:
        cases = msgspec.json.decode(text, type=Cases)
    except (msgspec.DecodeError, RecursionError) as error:
        raise VerifierError(f"the row's tests {text[:60]!r} are not JSON with inputs and outputs: {error}") from error
    if not cases.inputs or len(cases.inputs) != len(cases.outputs):
        raise VerifierError(f"the row's tests have {len(cases.inputs)} inputs and {len(cases.outputs)} outputs")
    name = cases.fn_name or ""
    if name and not name.isidentifier():
        raise VerifierError(f"the row's tests call {name[:60]!r}, which is no name of a function")
    form = _arguments if name else _text
    pairs = zip(cases.inputs, cases.outputs, strict=True)
    return CodeTests([Case(form(given), _json(wanted) if name else _text(wanted)) for given, wanted in pairs], name)


def _text(value: Any) -> str:
    """Text as it is; a list is lines."""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return str(value)


def _arguments(value: Any) -> str:
    """A JSON list of arguments; as text, it is one argument on each line."""
    if isinstance(value, str):
        return "[" + ",".join(line for line in value.splitlines() if line.strip()) + "]"
    return json.dumps(value if isinstance(value, list) else [value])


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _lines(text: str) -> list[list[str]]:
    """Words of each line that has any: spaces and empty lines are no mistakes."""
    return [line.split() for line in text.splitlines() if line.strip()]
