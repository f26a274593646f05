"""The python tool: one program a call, in the sandbox."""

import asyncio

import pytest

from asyncrl.episodes.worker.tools import ToolFailure
from asyncrl.episodes.worker.tools.python import PythonTool
from asyncrl.errors import ConfigError
from asyncrl.workers.sandbox import ProgramResult, Sandbox, SandboxLimits

FOUND = Sandbox.find()
needs_sandbox = pytest.mark.skipif(FOUND is None, reason="no program can be run on this machine")


def ran(code: str) -> str:
    assert FOUND is not None
    return asyncio.run(PythonTool(FOUND, call_s=30.0).python(code))


@needs_sandbox
def test_the_policy_reads_what_its_program_prints() -> None:
    assert ran("print(sum(range(10)))") == "45\n"


@needs_sandbox
def test_the_policy_reads_why_its_program_failed() -> None:
    told = ran("print('begun')\n1 / 0")

    assert told.startswith("begun\nTraceback")
    assert "ZeroDivisionError: division by zero" in told
    assert told.endswith("[the program failed, or exceeded 4 s of CPU, 8 s, 1024 MiB]")


@needs_sandbox
def test_long_output_is_cut() -> None:
    assert ran("print('x' * 20000)").endswith("[3617 more characters]")


def test_without_walls_it_must_be_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "find", classmethod(lambda cls: Sandbox(has_namespaces=False)))

    with pytest.raises(ConfigError, match="name 'python_unconfined'"):
        PythonTool.find(is_confined=True, call_s=10.0)
    assert PythonTool.find(is_confined=False, call_s=10.0)


def test_a_sandbox_that_does_not_start_is_no_answer_to_the_policy() -> None:
    broken = PythonTool(Sandbox(has_namespaces=False, python="/nonexistent/python"), call_s=10.0)

    with pytest.raises(ToolFailure, match="cannot start"):
        asyncio.run(broken.python("print(1)"))


def test_a_machine_without_a_free_core_is_no_answer_to_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def run(self, code: str, stdin: str, limits: SandboxLimits, *, with_errors: bool) -> ProgramResult:
            released.wait(20.0)
            return ProgramResult(output="", succeeded=True)

    async def crowd() -> None:
        tool = PythonTool(Slow(), call_s=0.2)  # type: ignore[arg-type]
        running = asyncio.ensure_future(tool.python("1"))
        await asyncio.sleep(0)
        try:
            with pytest.raises(ToolFailure, match=r"no core was free for a program within 0\.1 s"):
                await tool.python("2")
        finally:
            released.set()
            await running

    import threading

    released = threading.Event()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    asyncio.run(crowd())
