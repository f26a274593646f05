"""Code that a configuration names, and the kind of environment that it is."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.environment import Task
from asyncrl.episodes.worker.load import load
from asyncrl.errors import ConfigError

CODE = """
from asyncrl.environment import Step

def look(name: str) -> str:
    "Look into a box."
    return name

class Boxes:
    resume = "replay"
    tools = [look, {"type": "function", "function": {"name": "add"}}]
    def __init__(self, size=1): self.size = size
    def reset(self, task): ...
    def step(self, said): ...

class Keeps(Boxes):
    resume = "snapshot"

class Blind:
    def step(self, said): ...

class Odd(Boxes):
    resume = "sometimes"

class Lists(Boxes):
    tools = ["look"]

def make(task, size=1): return Boxes(len(task.messages) + size)
async def make_slowly(): return Boxes()
make_slowly.resume = "replay"
async def solve(task, client, *, depth=1): ...
def wants(other): ...
"""


def settings(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    (folder / "code.py").write_text(CODE)
    return {"function": f"{folder}/code.py:{name}", "options": options, "tools": [], "call_s": 5.0, "seats": 1}


def begun(folder: Path, name: str, **options: Any) -> Any:
    return asyncio.run(load(settings(folder, name, **options)).begin(Task([{"role": "user", "content": ""}])))


def test_a_class_is_described_with_its_tools(tmp_path: Path) -> None:
    code = load(settings(tmp_path, "Boxes"))

    assert (code.kind, code.resume) == ("steps", "replay")
    assert [tool["function"]["name"] for tool in asyncio.run(code.start())] == ["look", "add"]


def test_each_episode_has_an_instance_with_the_options(tmp_path: Path) -> None:
    assert begun(tmp_path, "Boxes").size == 1
    assert begun(tmp_path, "Boxes", size=5).size == 5


def test_a_function_may_make_environments_with_the_task_or_without(tmp_path: Path) -> None:
    assert begun(tmp_path, "make", size=5).size == 6
    assert begun(tmp_path, "make_slowly").size == 1
    assert load(settings(tmp_path, "make_slowly")).resume == "replay"
    assert load(settings(tmp_path, "make")).resume == "none"


def test_a_function_of_task_and_client_is_a_program(tmp_path: Path) -> None:
    code = load(settings(tmp_path, "solve", depth=2))

    assert (code.kind, code.resume) == ("solve", "rerun")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Boxes", {"color": "red"}, "cannot be called with environment.options: .*'color'"),
        ("solve", {"color": "red"}, "cannot be called with environment.options: .*'color'"),
        ("wants", {}, r"missing a required argument: 'other'; expected a class, make\(task\)"),
        ("Keeps", {}, "has no method snapshot and none restore"),
        ("Blind", {}, "has no method reset"),
        ("Odd", {}, "has resume = 'sometimes', expected one of replay, snapshot, container, none"),
        ("Lists", {}, "lists the tool 'look', expected a function"),
    ],
)
def test_code_that_does_not_fit_is_refused(tmp_path: Path, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asyncio.run(load(settings(tmp_path, name, **options)).start())
