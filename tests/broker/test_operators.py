"""Stacks and departures, asked of the broker; the other questions are in `test_actor`."""

from pathlib import Path

from asyncrl.messages.session import Bye, Drain
from asyncrl.messages.supervisor import Drained, Stacks, StacksWanted
from tests.broker.house import House, impatient, run

__all__ = ["impatient"]

NOBODY = "there is no node a; those that can be drained are: none"
CANNOT_DRAIN = {
    "b": "there is no node b; those that can be drained are: a, r",
    "t": "t is a trainer: only rollouts and reward nodes can be drained",
}
CANNOT_ANSWER = {
    "b": "there is no node b; those that can be asked are: broker, a, r, t",
    "op": "op is a supervisor: only rollouts, reward nodes, the trainer and the broker answer",
}


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


def test_all_who_asked_are_answered_once_when_the_node_has_left(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        rollout = await house.welcomed("rollout", "a")
        operators = [await house.welcomed("supervisor", name) for name in ("op-1", "op-2")]
        for operator in operators:
            await operator.send(Drain("a"))
            assert await rollout.receive() == Drain("a")
            for _ in range(2):
                await operator.send(StacksWanted("a"))
                assert await rollout.receive() == StacksWanted("a")
        await rollout.send(Bye("drained"))
        for operator in operators:
            assert await operator.receive() == Drained("a")
            assert await operator.receive() == Stacks("a", "", "a has just left: drained")
            await operator.send(Drain("a"))
            assert await operator.receive() == Drained("a", NOBODY, is_refused=True), "nothing came between"

    run(tmp_path, script)


def test_a_node_that_cannot_be_asked_is_refused_with_those_that_can(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        operator = await house.welcomed("supervisor", "op")
        await operator.send(Drain("b"))
        assert await operator.receive() == Drained("b", NOBODY.replace("a;", "b;"), is_refused=True)
        await house.welcomed("rollout", "a")
        await house.welcomed("reward", "r")
        await house.welcomed("trainer", "t")
        for name, problem in CANNOT_DRAIN.items():
            await operator.send(Drain(name))
            assert await operator.receive() == Drained(name, problem, is_refused=True)
        for name, problem in CANNOT_ANSWER.items():
            await operator.send(StacksWanted(name))
            assert await operator.receive() == Stacks(name, "", problem)

    run(tmp_path, script)
