"""The environment that plays tasks of Harbor: a shell, then the task's verifier."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncrl.environment import Output, Said, Step, Task, ToolCall
from asyncrl.episodes.worker.harbor import Harbor
from asyncrl.episodes.worker.load import load


class Files:
    """A container that is a table of files; the verifier writes what the test says."""

    name = program = label = ""

    def __init__(self, writes: dict[str, bytes], code: int = 0) -> None:
        self.files: dict[str, bytes] = {"/logs/verifier/reward.txt": b"1", "/tests/mine": b"planted"}
        self._writes, self._code = writes, code
        self.limit_s = 0.0

    async def run(self, argv: Sequence[str], input: bytes = b"", timeout_s: float = 60.0) -> Output:  # noqa: A002
        if argv[0] == "rm":
            folders = tuple(f"{path}/" for path in argv[2:])
            self.files = {path: data for path, data in self.files.items() if not path.startswith(folders)}
        if argv[0] == "env":
            assert argv[-1] in self.files
            self.limit_s = timeout_s
            self.files |= self._writes
            return Output(self._code, b"some tests", b" failed")
        return Output(0, b"listed\n", b"")

    async def put(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def get(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


def scored(tmp_path: Path, container: Files, verifier: str = "tests/test.sh") -> Any:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / verifier).write_text("verify")
    (tmp_path / "tests" / "deep" / "data").write_text("data")

    async def play() -> Any:
        environment = Harbor()
        row = {"task": str(tmp_path), "verifier": verifier, "verifier_s": 30.0}
        await environment.reset(Task([], extra=row, container=container))
        call = ToolCall("shell", {"command": "ls"}, "1")
        assert (await environment.step(Said("", tool_calls=[call]))).messages[0]["content"] == "listed\n"
        wrong = await environment.step(Said("", tool_calls=[ToolCall("shell", {"command": 3}, "2")]))
        assert wrong.messages[0]["content"].startswith("error: expected a call of shell")
        assert await environment.step(Said("I am done.")) == Step(done=True)
        return await environment.score()

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("name", "text", "score"),
    [("reward.txt", b"0.5\n", 0.5), ("reward.json", b'{"reward": 0.25, "tests": 4}', {"reward": 0.25, "tests": 4})],
)
def test_the_reward_is_what_the_verifier_writes(tmp_path: Path, name: str, text: bytes, score: Any) -> None:
    container = Files({f"/logs/verifier/{name}": text})
    assert scored(tmp_path, container) == score
    assert container.files["/tests/deep/data"] == b"data"
    assert "/tests/mine" not in container.files
    assert container.limit_s == 30.0


def test_a_verifier_that_tells_no_reward_has_failed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exit code 2 and wrote no reward to /logs/verifier: some tests failed"):
        scored(tmp_path, Files({}, code=2))


@pytest.mark.parametrize("code", [0, 1])
def test_in_the_older_format_the_exit_code_is_the_reward(tmp_path: Path, code: int) -> None:
    assert scored(tmp_path, Files({}, code=code), "run-tests.sh") == float(code == 0)


@pytest.mark.parametrize(("saves", "resume"), [(True, "snapshot"), (False, "none")])
def test_it_is_continued_if_its_container_is_saved(saves: bool, resume: str) -> None:
    settings = {
        "tools": [],
        "function": "asyncrl.episodes.worker.harbor:Harbor",
        "options": {},
        "saves_containers": saves,
    }
    code = load(settings)
    assert code.resume == resume
    assert [tool["function"]["name"] for tool in asyncio.run(code.start())] == ["shell"]
