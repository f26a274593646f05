import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import Description, Score, TaskInput
from asyncrl.episodes.pool import Programs, without_mark
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.workers import folders

TASK = TaskInput(
    messages=[{"role": "user", "content": "é\n"}], answer="6", extra={"boxes": [1, 2]}, seed=3, name="run/0"
)
URL = "http://127.0.0.1:9/e/cap/v1"


def run(program: str, **settings: Any) -> Score:
    """Run a Python program to its end."""

    async def main() -> Score:
        programs = Programs(Environment(command=[sys.executable, "-c", program], **settings), "my-run")
        try:
            async with asyncio.timeout(60):
                return await programs.open("run/0").solve(TASK, URL, "cap")
        finally:
            await programs.aclose()

    return asyncio.run(main())


def test_a_program_gets_its_task_and_its_variables(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    program = f"""
import json, os, sys
task = json.load(open(os.environ["ASYNCRL_TASK"]))
open(os.path.join(os.environ["TMPDIR"], "mine"), "w").close()
names = ["OPENAI_BASE_URL", "OPENAI_API_KEY", "ASYNCRL_REWARD_URL", "ASYNCRL_RUN", "TMPDIR", "NO_PROXY"]
json.dump([task, *map(os.environ.get, names), sys.stdin.read()], open({str(found)!r}, "w"))
"""
    assert run(program) == Score()
    task, url, key, reward_url, run_id, folder, no_proxy, stdin = json.loads(found.read_text())
    assert task == {
        "messages": TASK.messages, "answer": "6", "data_source": "", "extra": {"boxes": [1, 2]}, "seed": 3,
        "name": "run/0", "images": [], "tools": [],
    }  # fmt: skip
    assert (url, key, reward_url, run_id, stdin) == (URL, "cap", "http://127.0.0.1:9/e/cap/reward", "my-run", "")
    assert no_proxy.split(",")[-1] == "127.0.0.1"
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit(3)", "environment.command ended with exit code 3: it printed nothing"),
        ("import sys; print('x'); sys.exit('no such board')", "ended with exit code 1: no such board"),
        ("print('a' * 100_000); 1 / 0", "ended with exit code 1: ZeroDivisionError: division by zero"),
        ("import os; os.kill(os.getpid(), 9)", "ended with exit code 137"),
    ],
)
def test_another_exit_code_is_a_failure_with_the_last_line(program: str, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as failed:
        run(program)
    assert failed.value.retryable


def test_a_program_that_uses_too_much_memory_is_a_failure() -> None:
    with pytest.raises(EnvironmentFailed, match=r"more than environment\.memory_bytes"):
        run("x = b'x' * (1 << 28)\nimport time; time.sleep(60)", memory_bytes=100 << 20)


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    run(f"import subprocess; p = subprocess.Popen(['sleep', '600']); open({str(pid)!r}, 'w').write(str(p.pid))")
    assert not is_running(int(pid.read_text()))


def test_a_program_whose_time_is_over_is_killed(tmp_path: Path) -> None:
    async def play(programs: Programs) -> None:
        solving = asyncio.create_task(programs.open("run/0").solve(TASK, URL, "cap"))
        while not started.exists() or not started.read_text():
            await asyncio.sleep(0.01)
        solving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await solving
        assert not is_running(int(started.read_text()))

    started = tmp_path / "started"
    program = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    play_with(play, [sys.executable, "-c", program])


def test_closing_kills_running_programs(tmp_path: Path) -> None:
    async def play(programs: Programs) -> None:
        solving = asyncio.create_task(programs.open("run/0").solve(TASK, URL, "cap"))
        while not started.exists():
            await asyncio.sleep(0.01)
        await programs.aclose()
        with pytest.raises(EnvironmentFailed):
            await solving
        with pytest.raises(EnvironmentFailed, match="were closed"):
            programs.open("run/1")

    started = tmp_path / "started"
    play_with(play, ["sh", "-c", f"touch {started}; sleep 600"])


def test_a_program_is_no_environment_of_steps() -> None:
    async def play(programs: Programs) -> None:
        assert programs.description == Description(kind="command", resume="rerun")
        episode = programs.open("run/0")
        with pytest.raises(EnvironmentFailed, match="an agent program has no reset"):
            await episode.reset(TASK)
        assert await episode.score() == Score()
        await episode.close()

    play_with(play, ["true"])


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.command: there is no program 'no-such-agent'"):
        Programs(Environment(command=["no-such-agent"]), "run")


def test_a_program_that_the_operator_did_not_allow_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASYNCRL_ALLOW_CODE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"environment\.command is 'true', but this node may only run code from"):
        Programs(Environment(command=["true"]), "run")


def play_with(play: Callable[[Programs], Awaitable[None]], command: list[str]) -> None:
    async def main() -> None:
        programs = Programs(Environment(command=command), "my-run")
        try:
            async with asyncio.timeout(60):
                await play(programs)
        finally:
            await programs.aclose()

    asyncio.run(main())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pid in [process.pid for process in folders.below(1)]


def test_what_a_program_prints_is_relayed_without_the_mark_of_its_end() -> None:
    mark = b"\n0123abcd"
    assert without_mark(b"hello", mark) == (b"hello", b"")
    assert without_mark(b"hello\n", mark) == (b"hello", b"\n")
    assert without_mark(b"\nmore", mark) == (b"\nmore", b"")
    assert without_mark(b"hello\n012", mark) == (b"hello", b"\n012")
    assert without_mark(b"hello\n0123abcd 0\n", mark) == (b"hello", b"\n0123abcd 0\n")
