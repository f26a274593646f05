"""Agent programs: functions and commands that run to their end."""

import asyncio
import json
import os
import sys
from typing import Any

import pytest

from asyncrl.environment import Client, Task
from asyncrl.environment.worker.programs import Command, ProgramFailed, Solve
from asyncrl.errors import ConfigError

TASK = Task([{"role": "user", "content": "Add."}], answer="5", name="run/train/1/0")
CLIENT = Client("http://127.0.0.1:1/v1", "secret")


def solved(program: str) -> Any:
    command = Command([sys.executable, "-c", program])
    return asyncio.run(command.solve(TASK, CLIENT))


def test_a_plain_function_runs_beside_the_loop() -> None:
    def solve(task: Task, client: Client, *, times: int) -> float:
        return times * float(task.answer)

    assert asyncio.run(Solve(solve, {"times": 2}, "environment.function").solve(TASK, CLIENT)) == 10.0


def test_a_command_reads_its_task_and_finds_the_policy() -> None:
    program = (
        "import json, os, sys\ntask = json.load(sys.stdin)\nprint('thinking')\n"
        "print(json.dumps({'score': float(task['answer']), 'key': len(os.environ['OPENAI_API_KEY']),"
        " 'url': len(os.environ['OPENAI_BASE_URL'])}))\nprint()"
    )

    assert solved(program) == {"score": 5.0, "key": 6, "url": len(CLIENT.base_url)}


@pytest.mark.parametrize(
    ("line", "score"), [("0.5", 0.5), ("done", None), ("", None), ('{"reward": 1}', None), ("true", True)]
)
def test_the_last_line_of_a_command_may_be_its_score(line: str, score: Any) -> None:
    assert solved(f"print({line!r})") == score


def test_a_command_that_fails_is_no_score() -> None:
    with pytest.raises(ProgramFailed, match="exited with code 3"):
        solved("print(1.0); raise SystemExit(3)")


@pytest.mark.timeout(30)
def test_what_a_command_leaves_behind_ends_with_it() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    program = f"import os, time\nif os.fork() == 0:\n    os.close(1)\n    time.sleep(3600)\nprint({json.dumps('x')})"

    async def run() -> Any:
        return await Command([sys.executable, "-c", program]).solve(TASK, CLIENT)

    assert asyncio.run(run()) is None
    os.close(writer)
    with os.fdopen(reader, "rb") as still_open:
        assert still_open.read() == b""


def test_a_command_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.command: there is no program 'no-such-agent'"):
        Command(["no-such-agent"])
