"""At most so many episodes are active; those that began come first, and no seat is lost."""

import asyncio
from collections import Counter
from random import Random

import pytest

from asyncrl.rollout.episodes.gate import EpisodeGate, Seats


def test_an_episode_keeps_its_seat_while_its_environment_thinks() -> None:
    seats: Seats[str] = Seats(1)
    assert seats.ask("a")
    assert seats.end_turn("a") == []

    assert not seats.ask("b")
    assert seats.ask("a")
    assert seats.leave("a") == ["b"]


def test_an_episode_that_began_comes_before_one_that_has_not() -> None:
    seats: Seats[str] = Seats(2)
    assert seats.ask("a")
    assert seats.ask("b")
    assert not seats.ask("new")
    assert seats.end_turn("b") == []
    assert seats.allow(1) == [], "b, the youngest between two turns, loses its seat"
    assert seats.seated == {"a"}

    assert not seats.ask("b")
    assert seats.leave("a") == ["b"]
    assert seats.allow(2) == ["new"]


def test_a_lower_limit_stops_no_turn() -> None:
    seats: Seats[str] = Seats(3)
    assert all(map(seats.ask, "abc"))

    assert seats.allow(1) == []
    assert seats.seated == {"a", "b", "c"}
    assert seats.end_turn("a") == []
    assert seats.seated == {"b", "c"}, "it was the only one between two turns"
    assert seats.end_turn("c") == []
    assert seats.seated == {"b"}


def test_in_random_lives_no_seat_is_lost_and_nobody_waits_beside_a_free_one() -> None:
    dice = Random(0)
    for _ in range(300):
        seats: Seats[int] = Seats(dice.randint(1, 4))
        running: set[int] = set()
        idle, waiting = set(range(6)), set()
        for _ in range(60):
            began: list[int] = []
            match dice.random():
                case chance if chance < 0.4 and idle:
                    episode = dice.choice(sorted(idle))
                    idle.remove(episode)
                    waiting.add(episode)
                    began = [episode] if seats.ask(episode) else []
                case chance if chance < 0.7 and running:
                    episode = dice.choice(sorted(running))
                    running.remove(episode)
                    idle.add(episode)
                    began = seats.end_turn(episode)
                case chance if chance < 0.85 and idle | waiting:
                    episode = dice.choice(sorted(idle | waiting))
                    waiting.discard(episode)
                    idle.add(episode)
                    began = seats.leave(episode)
                case _:
                    began = seats.allow(dice.randint(1, 4))
            assert waiting.issuperset(began)
            waiting.difference_update(began)
            running.update(began)
            assert running <= seats.seated
            assert len(seats.seated) <= max(seats.limit, len(running))
            assert seats.num_waiting == len(waiting)
            assert not waiting or len(seats.seated) >= seats.limit


def test_turns_of_coroutines_wait_for_a_seat() -> None:
    async def play() -> None:
        gate: EpisodeGate[str] = EpisodeGate(1)
        story: list[str] = []

        async def episode(name: str, turns: int) -> None:
            for turn in range(turns):
                async with gate.turn(name):
                    story.append(f"{name}{turn}")
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
            gate.leave(name)

        await asyncio.gather(episode("a", 3), episode("b", 2))
        assert story == ["a0", "a1", "a2", "b0", "b1"]
        assert (gate.active, gate.num_waiting) == (frozenset(), 0)

    asyncio.run(play())


def test_a_higher_limit_lets_in_those_who_wait() -> None:
    async def play() -> None:
        gate: EpisodeGate[int] = EpisodeGate(1)
        most: Counter[str] = Counter()

        async def episode(number: int) -> None:
            async with gate.turn(number):
                most["now"] += 1
                most["peak"] = max(most["peak"], most["now"])
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                most["now"] -= 1
            gate.leave(number)

        tasks = [asyncio.create_task(episode(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert (gate.limit, most["now"]) == (1, 1)
        gate.allow(3)
        await asyncio.gather(*tasks)
        assert most["peak"] == 3

    asyncio.run(play())


@pytest.mark.parametrize("is_called", [False, True])
def test_an_episode_that_is_cancelled_while_it_waits_keeps_nothing(is_called: bool) -> None:
    async def play() -> None:
        gate: EpisodeGate[str] = EpisodeGate(1)
        entered = asyncio.Event()

        async def episode(name: str) -> None:
            async with gate.turn(name):
                entered.set()

        async with gate.turn("a"):
            waiting = asyncio.create_task(episode("b"))
            await asyncio.sleep(0)
            if is_called:
                gate.leave("a")
            waiting.cancel()
            await asyncio.wait([waiting])
        gate.leave("a")
        assert waiting.cancelled()
        assert not entered.is_set()
        assert (gate.active, gate.num_waiting) == (frozenset(), 0)
        await episode("c")

    asyncio.run(play())
