"""Code verifier: runs the last code block on the inputs of the row, and compares the outputs."""

import json
import sys
import time
from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from asyncrl.errors import ConfigError, SandboxError, VerifierError
from asyncrl.reward.verifier import VerifierInput
from asyncrl.workers.sandbox import Sandbox, SandboxLimits

# ── code tests ────────────────────────────────────────────────────────────────────────────────
# Tests of a program: inputs and expected outputs, as JSON.
#
#     {"inputs": ["2 3\n"], "outputs": ["5\n"]}                         stdin and stdout
#     {"inputs": ["[2, 3]"], "outputs": ["5"], "fn_name": "add"}         arguments and result of a function
#
# The expected outputs stay in this process, so that a program cannot read and print them. For the same reason there
# are no tests made of assertions: they would run where the program can reach them.

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


# ── code ──────────────────────────────────────────────────────────────────────────────────────

FENCE = "```"
PYTHON = ("python", "python3", "py")
MIB = 1 << 20


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """1.0 if the program passes every test, else 0.0; asyncrl/workers/sandbox.py says how far it is isolated."""

    tests: str = ""
    """Key of ``extra`` that holds the tests (asyncrl/reward/verifiers/code.py); empty: they are the answer."""
    share: bool = False
    """The score is the share of tests passed instead; all of them are run then."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """Time for all tests together. If it is over before a test failed, there is no verdict."""
    cpu_s: Annotated[int, Meta(ge=1)] = 2
    """CPU time of one test."""
    memory_mb: Annotated[int, Meta(ge=64)] = 1024
    """Address space of each process."""
    processes: Annotated[int, Meta(ge=1)] = 64
    """Concurrent processes of the program's user."""
    python: str = ""
    """Path of the programs' interpreter; empty takes the one that runs asyncrl."""
    require_walls: bool = True
    """Refuse to start without kernel namespaces: programs would have network access, and could outlive the run."""

    def __post_init__(self) -> None:
        self._sandbox  # noqa: B018

    def __call__(self, inputs: VerifierInput, /) -> dict[str, float]:
        """Return the score and the share of tests ``passed``; raises `VerifierError` without tests, sandbox or time."""
        tests = read_tests(self._tests(inputs))
        code = last_block(inputs.completion)
        passed = self._passed(tests, code) if code else 0
        share = passed / len(tests.cases)
        return {"score": share if self.share else float(share == 1), "passed": share, "correct": float(share == 1)}

    def _tests(self, inputs: VerifierInput) -> str:
        if not self.tests:
            return inputs.answer
        found = inputs.extra.get(self.tests)
        if not isinstance(found, str):
            raise VerifierError(f"the row's extra_info has no tests under {self.tests!r}; repair or drop it")
        return found

    def _passed(self, tests: CodeTests, code: str) -> int:
        """Count the tests passed; without ``share``, stop at the first that fails."""
        end_s = time.monotonic() + self.deadline_s
        program, passed = tests.program(code), 0
        for number, case in enumerate(tests.cases, 1):
            left_s = end_s - time.monotonic()
            if left_s < self.cpu_s:
                raise VerifierError(
                    f"{number - 1} of {len(tests.cases)} tests took all of deadline_s = {self.deadline_s:g} s; raise it"
                )
            limits = SandboxLimits(
                cpu_s=self.cpu_s,
                wall_s=min(left_s, 2.0 * self.cpu_s),
                memory_bytes=self.memory_mb * MIB,
                processes=self.processes,
            )
            try:
                result = self._sandbox.run(program, case.stdin, limits)
            except SandboxError as error:
                raise VerifierError(str(error), retryable=True) from error
            if result.succeeded and tests.passes(case, result.output):
                passed += 1
            elif not self.share:
                break
        return passed

    @cached_property
    def _sandbox(self) -> Sandbox:
        found = Sandbox.find(self.python) if self.python else Sandbox.find()
        if found is None:
            raise ConfigError(f"code: no program can be run on this machine with {self.python or sys.executable!r}")
        if self.require_walls and not found.has_namespaces:
            raise ConfigError(
                "code: the kernel gives no namespaces (unshare fails; most containers forbid it), so programs would "
                "have network access and could outlive the run; allow it, or set the option require_walls = false"
            )
        return found


def last_block(completion: str) -> str:
    """Content of the last fenced block, preferring blocks labelled Python; a missing end is fine. Empty if none."""
    lines = completion.splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith(FENCE)]
    blocks = list(zip(fences[::2], [*fences[1::2], len(lines)], strict=False))
    labelled = [block for block in blocks if lines[block[0]].strip(" `").lower() in PYTHON]
    if not blocks:
        return ""
    begin, end = (labelled or blocks)[-1]
    return "\n".join(lines[begin + 1 : end])
