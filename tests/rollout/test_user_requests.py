import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from asyncrl.engine import ConversingEngine
from asyncrl.errors import ConfigError
from asyncrl.rollout.engines.transformers.engine import TransformersEngine
from asyncrl.rollout.engines.vllm.engine import VllmEngine
from asyncrl.rollout.user_requests import UserRequests, require_boundary
from asyncrl.testing import FakeEngine


def test_an_engine_with_a_boundary_can_hold_a_conversation() -> None:
    engine = FakeEngine()
    assert require_boundary(engine) is engine
    assert engine.boundary().after([{"role": "user", "content": "one two"}], []) == [3, 3]


def test_an_engine_without_one_is_refused() -> None:
    class Mute:
        """Has none of the methods."""

    with pytest.raises(ConfigError, match="Mute has no boundary"):
        require_boundary(Mute())  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [TransformersEngine, VllmEngine])
def test_both_engines_can_hold_a_conversation(engine: type) -> None:
    assert issubclass(engine, ConversingEngine)


# ── test user requests ────────────────────────────────────────────────────────────────────────
# Users' requests, counted in any thread, decide when rollouts may decode.


def play(scene: Callable[[UserRequests, list[str]], Awaitable[None]], grace_s: float = 0.0) -> list[str]:
    """Run a scene with watched requests; returns what was called."""
    calls: list[str] = []

    async def main() -> None:
        users = UserRequests(grace_s)
        users.watch(lambda: calls.append("make way"))
        async with asyncio.timeout(10):
            await scene(users, calls)
        users.unwatch()

    asyncio.run(main())
    return calls


def test_the_first_request_makes_way_at_once_and_further_ones_change_nothing() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        assert users.is_idle
        with users.request():
            assert (calls, users.is_idle) == (["make way"], False)
            with users.request():
                pass
            assert not users.is_idle

    assert play(scene) == ["make way"]


def test_it_is_idle_once_the_last_request_has_ended() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        with users.request():
            waiting = asyncio.create_task(users.until_idle())
            await users.until_busy()
            assert not waiting.done()
        await waiting
        assert users.is_idle

    play(scene)


def test_a_request_within_the_grace_period_keeps_it_busy() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        with users.request():
            pass
        with users.request():
            pass
        assert not users.is_idle

    assert play(scene, grace_s=60.0) == ["make way"]


def test_a_request_that_fails_has_ended() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        try:
            with users.request():
                raise ValueError("the model is away")
        except ValueError:
            await users.until_idle()

    play(scene)


def test_requests_of_other_threads_are_counted_in_the_loop() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        may_end = threading.Event()

        def serve() -> None:
            with users.request():
                may_end.wait(10)

        thread = threading.Thread(target=serve)
        thread.start()
        await users.until_busy()
        assert calls == ["make way"]
        may_end.set()
        await users.until_idle()
        thread.join(10)

    play(scene)


def test_a_request_in_hand_before_the_rollout_and_one_after_it_disturb_nobody() -> None:
    users, calls = UserRequests(), []

    async def main() -> None:
        users.watch(lambda: calls.append("make way"))
        assert not users.is_idle

    with users.request():
        asyncio.run(main())
    with users.request():
        pass
    assert calls == ["make way"]


def test_it_has_been_busy_for_long_only_without_a_break() -> None:
    async def scene(users: UserRequests, calls: list[str]) -> None:
        long = asyncio.create_task(users.until_busy_for(60.0))
        for _ in range(2):
            with users.request():
                await users.until_busy()
                await asyncio.sleep(0)
            await users.until_idle()
        assert not long.done()
        long.cancel()
        with users.request():
            await users.until_busy_for(0.0)

    play(scene)
