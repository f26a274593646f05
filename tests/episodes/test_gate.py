"""The limit of active episodes comes near the best fixed one, whatever the episodes are, and follows them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from random import Random
from statistics import fmean, pstdev

import pytest
from msgspec import Struct

from asyncrl.engine import EngineLoad
from asyncrl.episodes.gate import GROW_S, SETTLE_S, Concurrency, EpisodeGate, Seats
from tests.episodes.kv_engine import Episode, KvEngine, Speed, Workload

EPISODES, EVERY_S = 256, 2.0
WORKLOADS = {
    "chat": Workload(),
    "slow tool": Workload(think_s=20),
    "long": Workload(turns=20, observed=600, think_s=6),
    "short": Workload(turns=2, written=400, observed=100, think_s=1),
    "single": Workload(turns=1, written=800),
}
SPEEDS = {
    "large cache": Speed(kv_tokens=400_000),
    "small cache": Speed(kv_tokens=120_000),
    "slow prefill": Speed(kv_tokens=120_000, prefill_per_s=3000),
}
FIXED = (12, 16, 24, 32, 48, 64, 80, 96, 128)


class Run(Struct):
    tokens_per_s: float
    limits: list[int]
    """After the warm-up."""


def run(
    workload: Callable[[float], Workload], speed: Speed, *, fixed: int | None = None, warm_s: float, until_s: float
) -> Run:
    """Tokens of finished episodes after the warm-up, with the controller or a fixed limit."""
    control = Concurrency(speed.slots, EPISODES)
    seats: Seats[Episode] = Seats(fixed or control.limit)
    engine = KvEngine(speed, seats, EPISODES, workload)
    limits: list[int] = []
    finished = began_s = 0.0
    while engine.now_s < until_s:
        engine.advance(EVERY_S)
        if fixed is None:
            is_binding = seats.num_waiting > 0
            engine.allow(control.observe(engine.load(), engine.now_s, needed=engine.needed(), is_binding=is_binding))
        if engine.now_s < warm_s:
            finished, began_s = engine.finished, engine.now_s
        else:
            limits.append(seats.limit)
    return Run((engine.finished - finished) / (engine.now_s - began_s), limits)


@cache
def best_fixed(workload: str, speed: str, *, warm_s: float, until_s: float, limits: tuple[int, ...]) -> float:
    """Throughput with the best of ``limits``."""

    def of_limit(limit: int) -> float:
        return run(always(workload), SPEEDS[speed], fixed=limit, warm_s=warm_s, until_s=until_s).tokens_per_s

    return max(map(of_limit, limits))


def always(workload: str) -> Callable[[float], Workload]:
    return lambda _: WORKLOADS[workload]


def check_near_the_best(workload: str, speed: str, *, warm_s: float, until_s: float, limits: tuple[int, ...]) -> None:
    controlled = run(always(workload), SPEEDS[speed], warm_s=warm_s, until_s=until_s)

    best = best_fixed(workload, speed, warm_s=warm_s, until_s=until_s, limits=limits)
    assert controlled.tokens_per_s >= 0.9 * best
    assert pstdev(controlled.limits) <= 0.35 * fmean(controlled.limits), "it does not swing"


@pytest.mark.slow("a run in virtual time for each of many workloads")
@pytest.mark.parametrize(
    ("workload", "speed", "limits"),
    [
        ("chat", "large cache", (64, 80, 96)),
        ("chat", "slow prefill", (16, 24, 32)),
        ("long", "small cache", (12, 16, 24)),
    ],
)
def test_nine_tenths_of_the_throughput_of_the_best_fixed_limit(
    workload: str, speed: str, limits: tuple[int, ...]
) -> None:
    check_near_the_best(workload, speed, warm_s=1500, until_s=3000, limits=limits)


@pytest.mark.long("more workloads")
@pytest.mark.parametrize(("workload", "speed"), list(product(WORKLOADS, SPEEDS)))
def test_the_same_on_the_whole_grid(workload: str, speed: str) -> None:
    check_near_the_best(workload, speed, warm_s=1500, until_s=4000, limits=FIXED)


@pytest.mark.slow("a run in virtual time")
def test_too_many_active_episodes_cost_more_than_half_of_the_throughput() -> None:
    """The loss that the controller is there to avoid, which no counter of the engine shows."""
    seats: Seats[Episode] = Seats(128)
    engine = KvEngine(SPEEDS["large cache"], seats, EPISODES, always("chat"))
    engine.advance(1500.0)
    best = best_fixed("chat", "large cache", warm_s=600, until_s=1500, limits=(64, 80, 96))

    assert engine.finished / 1500 < best / 2
    assert engine.load().num_preempted == 0
    assert engine.load().kv_usage < 0.8


@pytest.mark.slow("a run in virtual time")
def test_it_follows_a_change_of_lengths_both_ways() -> None:
    """Chats, then long episodes, then chats again."""
    speed = SPEEDS["large cache"]

    def changing(now_s: float) -> Workload:
        return WORKLOADS["long" if 1000 <= now_s < 2500 else "chat"]

    limits = run(changing, speed, warm_s=0, until_s=4000).limits
    before, during, after = (fmean(limits[int(s / EVERY_S) : int((s + 400) / EVERY_S)]) for s in (600, 2000, 3500))
    assert during < 0.75 * before
    assert after > 0.85 * before


# ── single measurements ────────────────────────────────────────────────────────────────────

EMPTY = EngineLoad(0.0, 0, 0, 0)


def observed(load: EngineLoad, *, needed: float = 0.0, seconds: float = 60.0, is_binding: bool = True) -> list[int]:
    """Limits after equal measurements, of a controller with 60 slots and 240 episodes."""
    control = Concurrency(60, 240)
    times = [second * EVERY_S for second in range(int(seconds / EVERY_S) + 1)]
    return [control.observe(load, now_s, needed=needed, is_binding=is_binding) for now_s in times]


def test_growth_is_steady_and_ends_at_the_most_episodes() -> None:
    limits = observed(EMPTY, seconds=GROW_S)
    assert (limits[0], limits[len(limits) // 2], limits[-1]) == (60, 90, 120)
    assert observed(EMPTY, seconds=9 * GROW_S)[-1] == 240


@pytest.mark.parametrize("needed", [0.3, 0.45, 0.95])
def test_growth_slows_down_as_the_cache_fills(needed: float) -> None:
    grown = observed(EngineLoad(0.3, 0, 30, 0), needed=needed)[-1] - 60
    assert grown == pytest.approx({0.3: 20, 0.45: 15, 0.95: 0}[needed], abs=1)


def test_nothing_grows_while_requests_wait_or_no_episode_does() -> None:
    assert set(observed(EngineLoad(0.3, 0, 30, 6))) == {60}
    assert set(observed(EMPTY, is_binding=False)) == {60}


@pytest.mark.parametrize(
    ("load", "needed"), [(EngineLoad(0.9, 0, 60, 0), 1.2), (EngineLoad(0.5, 0, 40, 40), 0.8)], ids=["cache", "queue"]
)
def test_a_cache_too_small_and_a_long_queue_cut_by_a_share_once_until_it_settled(
    load: EngineLoad, needed: float
) -> None:
    limits = observed(load, needed=needed, seconds=SETTLE_S)
    first = limits[0]
    assert 0.7 * 60 <= first < 60
    assert set(limits[:-1]) == {first}
    assert limits[-1] < first


def test_prefixes_lost_by_an_engine_that_waits_for_environments_are_no_reason_for_a_cut() -> None:
    assert observed(EngineLoad(0.2, 0, 10, 0), needed=1.5)[-1] > 60


def test_many_preemptions_cut_and_a_few_do_not() -> None:
    def after(each: int) -> int:
        control = Concurrency(60, 240)
        for count in range(30):
            control.observe(EngineLoad(0.9, count * each, 60, 0), count * EVERY_S, needed=0.95)
        return control.limit

    assert after(0) == after(1) == 60
    assert after(10) < 50


def test_an_engine_that_became_idle_is_not_cut_for_the_queue_that_it_had() -> None:
    """All active episodes may wait for one that has no seat, such as for a thread of its environment."""
    control = Concurrency(60, 240)
    control.observe(EngineLoad(1.0, 0, 60, 60), 0.0)
    limits = [control.observe(EMPTY, EVERY_S * count) for count in range(300)]
    assert limits[0] < 60
    assert min(limits) > 20, "only while the queue is still in the average"
    assert limits[-1] == 240


def test_the_limit_stays_between_one_and_the_most_episodes() -> None:
    assert Concurrency(64, 16).limit == 16
    assert observed(EngineLoad(1.0, 0, 1, 99), needed=99.0, seconds=1000)[-1] == 1


# ── test gate ─────────────────────────────────────────────────────────────────────────────────
# At most so many episodes are active; those that began come first, and no seat is lost.


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
