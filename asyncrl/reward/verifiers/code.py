"""Programs: the last block of code is run on the inputs of the row, and must print what it should."""

import time
from functools import cached_property
from typing import Annotated

from msgspec import Meta, Struct

from asyncrl.errors import ConfigError, VerifierError
from asyncrl.reward.sandbox.code_tests import CodeTests, read_tests
from asyncrl.reward.sandbox.sandbox import Limits, Sandbox
from asyncrl.reward.verifier import VerifierInput

FENCE = "```"
PYTHON = ("python", "python3", "py")
MIB = 1 << 20


class Code(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """
    1.0 if the program passes every test, else 0.0.

    What the sandbox guarantees, and what it does not, is in asyncrl/reward/sandbox/sandbox.py.
    """

    tests: str = ""
    """Key of ``extra`` that holds the tests (asyncrl/reward/sandbox/code_tests.py); empty takes the answer."""
    share: bool = False
    """Score the share of tests passed instead; all of them are run then."""
    deadline_s: Annotated[float, Meta(gt=0)] = 8.0
    """For all tests together. Not having come to the end by then, without a failure, is no verdict."""
    cpu_s: Annotated[int, Meta(ge=1)] = 2
    """CPU time of one test."""
    memory_mb: Annotated[int, Meta(ge=64)] = 1024
    """Address space of each process."""
    processes: Annotated[int, Meta(ge=1)] = 64
    """Of the program's user at once."""
    python: str = ""
    """Interpreter of the programs, by its path; empty takes the one that runs asyncrl."""
    require_walls: bool = True
    """Refuse to start where the kernel gives no namespaces: a program would have the network, and could outlive us."""

    def __post_init__(self) -> None:
        """Refuse a machine on which programs cannot be run, or not safely."""
        self._sandbox  # noqa: B018

    def __call__(self, sample: VerifierInput, /) -> dict[str, float]:
        """
        Score, and the share of ``tests`` run that were ``passed``.

        Raises:
            VerifierError: The row has no tests, the sandbox could not start, or the time was not enough.
        """
        tests = read_tests(self._tests(sample))
        code = last_block(sample.completion)
        passed = self._passed(tests, code) if code else 0
        share = passed / len(tests.cases)
        return {"score": share if self.share else float(share == 1), "passed": share, "correct": float(share == 1)}

    def _tests(self, sample: VerifierInput) -> str:
        if not self.tests:
            return sample.answer
        found = sample.extra.get(self.tests)
        if not isinstance(found, str):
            raise VerifierError(f"the row's extra_info has no tests under {self.tests!r}; mend or drop it")
        return found

    def _passed(self, tests: CodeTests, code: str) -> int:
        """How many tests were passed; without ``share``, up to the first that was not."""
        end_s = time.monotonic() + self.deadline_s
        program, passed = tests.program(code), 0
        for number, case in enumerate(tests.cases, 1):
            left_s = end_s - time.monotonic()
            if left_s < self.cpu_s:
                raise VerifierError(
                    f"{number - 1} of {len(tests.cases)} tests took all of deadline_s = {self.deadline_s:g} s; raise it"
                )
            ran = self._sandbox.run(program, case.stdin, self._limits(left_s))
            if ran.succeeded and tests.passes(case, ran.output):
                passed += 1
            elif not self.share:
                break
        return passed

    def _limits(self, left_s: float) -> Limits:
        return Limits(
            cpu_s=self.cpu_s,
            wall_s=min(left_s, 2.0 * self.cpu_s),
            memory_bytes=self.memory_mb * MIB,
            processes=self.processes,
        )

    @cached_property
    def _sandbox(self) -> Sandbox:
        found = Sandbox.find(self.python) if self.python else Sandbox.find()
        if found is None:
            raise ConfigError(f"code: no program can be run here with {self.python or 'our own interpreter'!r}")
        if self.require_walls and not found.walls:
            raise ConfigError(
                "code: the kernel gives no namespaces here (unshare fails; most containers forbid it), so programs "
                "would have the network and could outlive us; allow it, or set the option require_walls = false"
            )
        return found


def last_block(completion: str) -> str:
    """What is in the last fenced block, of Python if one says so; its end may be missing. Empty if there is none."""
    lines = completion.splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith(FENCE)]
    blocks = list(zip(fences[::2], [*fences[1::2], len(lines)], strict=False))
    labelled = [block for block in blocks if lines[block[0]].strip(" `").lower() in PYTHON]
    if not blocks:
        return ""
    begin, end = (labelled or blocks)[-1]
    return "\n".join(lines[begin + 1 : end])
