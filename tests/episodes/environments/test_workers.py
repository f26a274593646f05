"""Workers of environments: which call one hangs with, which episode kills them, and what replaces them."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.workers import (
    EnvironmentSlot,
    Suspects,
    WorkerCall,
    culprits,
    interpreter,
    named,
    overdue,
    require_allowed,
)
from asyncrl.errors import ConfigError
from asyncrl.plug_in import ALLOW_VARIABLE
from asyncrl.workers import folders
from tests.episodes.environments.environments import written


def call(method: str, *, sent: float, begun: float | None = None, limited: bool = True) -> WorkerCall:
    answer = asyncio.Future[object](loop=asyncio.new_event_loop())
    answer.get_loop().close()
    return WorkerCall("episode", method, answer, sent, sent if limited else None, begun)  # type: ignore[arg-type]


def test_a_call_is_late_when_it_has_run_for_the_limit() -> None:
    runs = call("step", sent=0.0, begun=5.0)

    assert overdue([runs], heard_at=5.0, call_s=10.0, now=15.0) == []
    assert overdue([runs], heard_at=5.0, call_s=10.0, now=15.1) == [runs]


def test_a_call_that_waits_is_not_late_as_long_as_its_worker_answers_others() -> None:
    waits = call("step", sent=0.0)

    assert overdue([waits], heard_at=100.0, call_s=10.0, now=109.0) == []
    assert overdue([waits], heard_at=100.0, call_s=10.0, now=111.0) == [waits]


def test_a_program_is_not_limited_until_it_is_cancelled() -> None:
    runs = call("solve", sent=0.0, begun=0.0, limited=False)

    assert overdue([runs], heard_at=0.0, call_s=10.0, now=1e9) == []
    runs.limited_from = 1e9
    assert overdue([runs], heard_at=0.0, call_s=10.0, now=1e9 + 11.0) == [runs]


def test_late_calls_that_have_begun_are_to_blame_and_else_all_that_run() -> None:
    late, waits, runs = call("step", sent=0.0, begun=0.0), call("step", sent=0.0), call("solve", sent=0.0, begun=0.0)

    assert culprits([late, waits, runs], [late, waits]) == [late]
    assert culprits([waits, runs], [waits]) == [runs]


def test_an_episode_alone_with_a_death_is_to_blame() -> None:
    assert Suspects().blame(["a"]) == {"a"}


def test_of_several_episodes_the_one_that_is_there_three_times_is_to_blame() -> None:
    suspects = Suspects()

    assert suspects.blame(["a", "b"]) == set()
    assert suspects.blame(["a", "c"]) == set()
    suspects.acquit("c")
    assert suspects.blame(["a", "c"]) == {"a"}


# ── test worker process ───────────────────────────────────────────────────────────────────────
# A worker as a process: the interpreter that runs it, and what an operator allows.


def test_the_interpreter_is_ours_unless_the_configuration_names_one() -> None:
    assert interpreter("") == [sys.executable]


def test_another_interpreter_is_not_led_to_our_packages() -> None:
    command = interpreter(sys.executable)

    assert command[1:-1] == ["-u", "PYTHONPATH", "-u", "PYTHONHOME"]
    assert Path(command[0]).name == "env"
    assert command[-1] == sys.executable


def test_an_interpreter_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment\.python is 'nowhere', but there is no such program"):
        interpreter("nowhere")


def test_an_environment_is_named_as_the_configuration_names_it() -> None:
    assert named(Environment(function="a.py:B")) == "environment.function 'a.py:B'"
    assert named(Environment(tools=["calculator"])) == "environment.tools ['calculator']"


@pytest.mark.parametrize(
    ("environment", "setting"),
    [
        (Environment(tools=["mcp:sh -c true"]), "environment.tools is 'sh'"),
        (Environment(tools=["calculator"], python="/usr/bin/env"), "environment.python is '/usr/bin/env'"),
    ],
)
def test_programs_are_run_only_from_where_the_operator_allows_code(
    environment: Environment, setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_allowed(environment)
    monkeypatch.setenv(ALLOW_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=f"{setting}, but this node may only run code from"):
        require_allowed(environment)
    monkeypatch.setenv(ALLOW_VARIABLE, f"{tmp_path}{os.pathsep}/")
    require_allowed(environment)


# ── test worker slot ──────────────────────────────────────────────────────────────────────────
# The place of one worker: started on demand, replaced when it is lost.

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
pytestmark = pytest.mark.timeout(60)


def slot_of(path: Path, name: str = "Boxes") -> EnvironmentSlot:
    return EnvironmentSlot(Environment(function=f"{path}:{name}"), {}, Suspects())


@needs_proc
def test_an_idle_worker_that_died_is_replaced_by_the_next_call(tmp_path: Path) -> None:
    async def kill_and_ask() -> int:
        slot = slot_of(written(tmp_path))
        first = await slot.worker()
        os.kill(folders.below(os.getpid())[-1].pid, signal.SIGKILL)
        while first.loss is None:
            await asyncio.sleep(0.01)
        assert await slot.worker() is not first
        await slot.clear()
        return slot.replaced

    assert asyncio.run(kill_and_ask()) == 1


@needs_proc
def test_a_replacement_that_cannot_be_loaded_or_is_another_environment_is_refused(tmp_path: Path) -> None:
    async def change_and_replace(text: str) -> None:
        slot = slot_of(path := written(tmp_path))
        worker = await slot.worker()
        path.write_text(text)
        os.kill(folders.below(os.getpid())[-1].pid, signal.SIGKILL)
        while worker.loss is None:
            await asyncio.sleep(0.01)
        try:
            await slot.worker()
        finally:
            await slot.clear()

    with pytest.raises(ConfigError, match="has no function 'Boxes'"):
        asyncio.run(change_and_replace("x = 1"))
    with pytest.raises(ConfigError, match="describes the environment differently"):
        asyncio.run(change_and_replace(written(tmp_path).read_text().replace('resume = "snapshot"', "")))


DIES_AT_FIRST = """
import os, signal
from pathlib import Path

tries = Path(__file__).with_name("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) < {survives}:
    os.kill(os.getpid(), signal.SIGKILL)

class Boxes:
    def reset(self, task): ...
    def step(self, said): ...
"""


@needs_proc
@pytest.mark.parametrize(("survives", "is_loaded"), [(3, True), (4, False)])
def test_a_worker_that_is_killed_while_it_loads_is_tried_again_a_few_times(
    tmp_path: Path, survives: int, is_loaded: bool
) -> None:
    path = tmp_path / "dying.py"
    path.write_text(DIES_AT_FIRST.replace("{survives}", str(survives)))

    async def load() -> None:
        slot = slot_of(path)
        try:
            await slot.worker()
        finally:
            await slot.clear()

    if is_loaded:
        asyncio.run(load())
    else:
        with pytest.raises(ConfigError, match="ended its process when it was loaded"):
            asyncio.run(load())
    assert len((tmp_path / "tries").read_text()) == 3
