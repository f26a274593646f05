"""The event loop gets turns until it has no other work."""

import asyncio

from asyncrl.rollout.engines.transformers.turns import MOST, QUIET, Turns


class Clock:
    """A turn takes ``idle_s``, and more if other tasks worked in it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-5
        return self.now_s


def give(num_busy_turns: int) -> tuple[int, int]:
    """Turns that were given beside a chain of this many turns of work, and how many of these were done by then."""

    async def main() -> tuple[int, int]:
        clock, done = Clock(), 0
        turns = Turns(clock)
        await turns.give()

        async def work() -> None:
            nonlocal done
            for _ in range(num_busy_turns):
                clock.now_s += 1e-3
                done += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(work())
        given = await turns.give()
        before = done
        await task
        return given, before

    return asyncio.run(main())


def test_a_loop_without_other_work_gets_the_fewest_turns() -> None:
    assert give(0) == (QUIET, 0)


def test_a_chain_of_turns_is_finished_before_the_next_step() -> None:
    assert give(9) == (9 + QUIET, 9)


def test_work_without_end_does_not_stop_decoding() -> None:
    assert give(1000) == (MOST, MOST)
