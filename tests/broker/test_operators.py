"""Stacks and departures, asked of the broker; the other questions are in `test_actor`."""

from pathlib import Path

from asyncrl.messages.session import Bye
from asyncrl.messages.supervisor import Stacks, StacksWanted
from tests.broker.house import House, impatient, run

__all__ = ["impatient"]


def test_a_node_is_asked_for_its_stacks_and_its_answer_reaches_who_asked(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator, rollout = await house.welcomed("supervisor", "op-1"), await house.welcomed("rollout", "a")
        await operator.send(StacksWanted("a"))
        assert await rollout.receive() == StacksWanted("a")
        await rollout.send(Stacks("a", "thread MainThread"))
        assert await operator.receive() == Stacks("a", "thread MainThread")

    run(tmp_path, script)


def test_a_node_that_leaves_instead_is_told(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator, rollout = await house.welcomed("supervisor", "op-1"), await house.welcomed("rollout", "a")
        await operator.send(StacksWanted("a"))
        await rollout.send(Bye("done"))
        assert await operator.receive() == Stacks("a", "", "a has just left: done")

    run(tmp_path, script)


def test_the_broker_answers_for_its_own_process_and_a_wrong_name_at_once(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator = await house.welcomed("supervisor", "op-1")
        await operator.send(StacksWanted("broker-0"))
        own = await operator.receive()
        assert isinstance(own, Stacks)
        assert "thread MainThread" in own.text
        await operator.send(StacksWanted("nobody"))
        told = await operator.receive()
        assert isinstance(told, Stacks)
        assert told.problem == "there is no node nobody; those that can be asked are: broker"

    run(tmp_path, script)
