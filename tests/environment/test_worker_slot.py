"""The place of one worker: started on demand, replaced when it is lost."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.environment.calls import Suspects
from asyncrl.environment.worker_slot import WorkerSlot
from asyncrl.errors import ConfigError
from asyncrl.processes import process_tree
from tests.environment.environments import written

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"), pytest.mark.timeout(60)]


def slot_of(path: Path, name: str = "Boxes") -> WorkerSlot:
    return WorkerSlot(Environment(function=f"{path}:{name}"), {}, Suspects())


def test_concurrent_callers_share_one_start(tmp_path: Path) -> None:
    async def start_twice() -> bool:
        slot = slot_of(written(tmp_path))
        first, second = await asyncio.gather(slot.worker(), slot.worker())
        await slot.clear()
        return first is second

    assert asyncio.run(start_twice())


def test_an_idle_worker_that_died_is_replaced_by_the_next_call(tmp_path: Path) -> None:
    async def kill_and_ask() -> int:
        slot = slot_of(written(tmp_path))
        first = await slot.worker()
        os.kill(process_tree.below(os.getpid())[-1].pid, signal.SIGKILL)
        while first.loss is None:
            await asyncio.sleep(0.01)
        assert await slot.worker() is not first
        await slot.clear()
        return slot.replaced

    assert asyncio.run(kill_and_ask()) == 1


def test_a_replacement_that_cannot_be_loaded_or_is_another_environment_is_refused(tmp_path: Path) -> None:
    async def change_and_replace(text: str) -> None:
        slot = slot_of(path := written(tmp_path))
        worker = await slot.worker()
        path.write_text(text)
        os.kill(process_tree.below(os.getpid())[-1].pid, signal.SIGKILL)
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
