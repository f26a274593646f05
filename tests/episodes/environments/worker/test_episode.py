"""One episode in a worker: which method of the environment is called when."""

import asyncio
from typing import Any

import pytest

from asyncrl.environment import Said, Step, Task
from asyncrl.episodes.worker import server as episode
from asyncrl.episodes.worker.server import WorkerEpisode
from asyncrl.episodes.worker.values import BadValue

TASK = {"messages": [], "seed": 3}


class Written:
    """An environment that writes down its calls."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def reset(self, task: Task) -> None:
        self.log.append(f"reset {task.seed}")

    async def step(self, said: Said) -> Step:
        self.log.append(f"step {said.text} {[call.name for call in said.tool_calls]}")
        return Step(done=True)

    def snapshot(self) -> Any:
        return b"\x00state"

    def restore(self, task: Task, state: bytes) -> None:
        self.log.append(f"restore {task.seed} {state!r}")

    async def close(self) -> None:
        self.log.append("close")
        if "hang" in self.log:
            await asyncio.sleep(3600)


class Code:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.made = 0

    async def begin(self, task: Task) -> Written:
        self.made += 1
        return Written(self.log)


def called(code: Code, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    async def call() -> list[dict[str, Any]]:
        one = WorkerEpisode(code)  # type: ignore[arg-type]
        return [await one.call(request, lambda: None) for request in requests]

    return asyncio.run(call())


def test_methods_are_called_with_the_classes_of_user_code() -> None:
    calls = [{"name": "look", "arguments": {}, "id": "", "problem": ""}]
    said = {"text": "hi", "content": "", "tool_calls": calls, "finish_reason": "stop"}

    answers = called(
        code := Code(),
        {"call": "reset", "task": TASK},
        {"call": "step", "said": said},
        {"call": "score"},
        {"call": "close"},
    )

    assert code.log == ["reset 3", "step hi ['look']", "close"]
    assert answers[1]["done"]
    assert answers[2] == {"reward": None, "metrics": {}}


def test_a_second_reset_begins_with_another_instance() -> None:
    called(code := Code(), {"call": "reset", "task": TASK}, {"call": "reset", "task": TASK})

    assert code.made == 2
    assert code.log == ["reset 3", "close", "reset 3"]


def test_a_snapshot_is_restored_instead_of_reset() -> None:
    _, snapshot = called(Code(), {"call": "reset", "task": TASK}, {"call": "snapshot"})
    called(code := Code(), {"call": "restore", "task": TASK, **snapshot})

    assert code.log == ["restore 3 b'\\x00state'"]


def test_a_snapshot_must_be_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Written, "snapshot", lambda self: "text")

    with pytest.raises(BadValue, match="snapshot returned 'text', expected bytes"):
        called(Code(), {"call": "reset", "task": TASK}, {"call": "snapshot"})


def test_a_close_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(episode, "CLOSE_S", 0.05)
    code = Code()
    code.log.append("hang")

    called(code, {"call": "reset", "task": TASK}, {"call": "close"})

    assert "close took longer than 0.05 s" in capsys.readouterr().err


def test_closing_what_never_began_does_nothing() -> None:
    assert called(Code(), {"call": "close"}) == [{}]
