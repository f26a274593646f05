"""How a run ends, with children that are only played. Whole runs are in tests/integration."""

import asyncio
from typing import Any

import pytest

from asyncrl.actor.memory import MemoryHub
from asyncrl.cli.launch import supervisor
from asyncrl.cli.launch.supervisor import Supervisor
from asyncrl.messages import Exited


class Played:
    """A child that leaves when it is told to, or when somebody ends it."""

    def __init__(self, name: str, *, leaves: bool = True, pid: int | None = 1) -> None:
        self.name = name
        self.pid = pid
        self.is_ended = False
        self._gone = asyncio.Event()
        if leaves:
            self._gone.set()

    async def wait(self) -> int:
        await self._gone.wait()
        self.pid = None
        return 0

    async def end(self, drain_s: float) -> None:
        self.is_ended = self.pid is not None
        self._gone.set()


def a_supervisor(*children: Played) -> Supervisor:
    """Of a run that is over, which its broker knows."""
    nothing: Any = None
    made = Supervisor(nothing, nothing, nothing, None, [])
    made._children = list(children)  # type: ignore[arg-type]
    made._ended = asyncio.get_running_loop().create_future()
    made._end("")
    made._link = MemoryHub().connect("supervisor-0.1")
    return made


def test_a_run_whose_children_have_all_left_already_ends() -> None:
    async def main() -> None:
        children = [Played("broker-0", pid=None), Played("trainer-0", pid=None)]
        await a_supervisor(*children)._end_children()
        assert not any(child.is_ended for child in children)

    asyncio.run(main())


@pytest.mark.parametrize("broker", [1, None], ids=["with its broker", "whose broker is gone"])
def test_a_node_that_is_still_loading_when_the_broker_has_left_is_made_to(monkeypatch, broker) -> None:
    monkeypatch.setattr(supervisor, "PART_S", 0.01)

    async def main() -> None:
        left, loading = Played("reward-0"), Played("rollout-0", leaves=False)
        async with asyncio.timeout(supervisor.LEAVE_S / 2):
            await a_supervisor(Played("broker-0", pid=broker), left, loading)._end_children()
        assert (left.is_ended, loading.is_ended) == (False, True)

    asyncio.run(main())


def test_what_happens_before_the_broker_is_met_is_told_when_it_is() -> None:
    async def main() -> None:
        made = a_supervisor()
        link, made._link = made._link, None
        news = Exited("the run", "was interrupted", restarting=False)
        await made._tell(news)
        assert made._news == [news]

        made._link = link
        await made._tell(news)
        assert made._news == [news], "said at once"
        await link.aclose()
        await made._tell(news)

    asyncio.run(main())
