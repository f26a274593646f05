"""The gate that holds new work back before the weights change."""

import asyncio

from asyncrl.rollout.start_gate import StartGate


def test_a_closed_gate_waits_for_what_is_inside_and_holds_back_what_comes() -> None:
    async def scene() -> None:
        gate, passed, leave = StartGate(), [], asyncio.Event()

        async def work(name: str) -> None:
            async with gate.passing():
                passed.append(name)
                await leave.wait()

        first = asyncio.create_task(work("first"))
        await asyncio.sleep(0)
        emptied = asyncio.create_task(gate.empty())
        await asyncio.sleep(0)
        second = asyncio.create_task(work("second"))
        await asyncio.sleep(0)
        assert (passed, emptied.done()) == (["first"], False)
        leave.set()
        await emptied
        await first
        assert passed == ["first"], "the gate is closed until it is opened"
        gate.open()
        await second
        assert passed == ["first", "second"]

    asyncio.run(scene())


def test_work_that_fails_or_is_cancelled_has_left() -> None:
    async def scene() -> None:
        gate = StartGate()

        async def hang() -> None:
            async with gate.passing():
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        await gate.empty()

    asyncio.run(scene())
