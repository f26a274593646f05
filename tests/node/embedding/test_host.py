"""A host's side of an attached rollout: users' requests go in, health comes out."""

import asyncio
import threading

from asyncrl.errors import LinkSilent
from asyncrl.node.embedding.host import Host, RolloutHealth
from asyncrl.rollout.generations import Generations
from asyncrl.testing import FakeEngine


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_before_attach_it_waits_for_the_broker() -> None:
    assert Host(clock=Clock()).health == RolloutHealth(state="waiting_for_broker", since_s=0.0)


def test_a_state_keeps_its_time_until_another_one_begins() -> None:
    clock = Clock()
    host = Host(clock=clock)
    times: list[tuple[str, float]] = []
    for now_s, state in [(1.0, "joining"), (2.0, "joining"), (3.0, "rolling_out"), (4.0, "ended")]:
        clock.now_s = now_s
        host.enter(state)  # type: ignore[arg-type]
        times.append((host.health.state, host.health.since_s))
    assert times == [("joining", 1.0), ("joining", 1.0), ("rolling_out", 3.0), ("ended", 4.0)]


def test_users_pause_a_rollout_that_rolls_out_and_no_other() -> None:
    async def scene() -> None:
        clock = Clock()
        host = Host(grace_s=0.0, clock=clock)
        host.users.watch(lambda: None)
        with host.user_request():
            assert host.health.state == "waiting_for_broker"
        await host.users.until_idle()
        host.enter("rolling_out")
        clock.now_s = 5.0
        with host.user_request():
            assert (host.health.state, host.health.since_s) == ("paused_for_users", 5.0)
            clock.now_s = 6.0
        await host.users.until_idle()
        assert (host.health.state, host.health.since_s) == ("rolling_out", 6.0)

    asyncio.run(scene())


def test_tokens_of_all_sessions_are_counted_and_the_last_error_is_kept() -> None:
    async def scene() -> None:
        host = Host()
        for num_tokens in (3, 4):
            generations = Generations(FakeEngine(), "server-1")
            generations._calls.num_tokens = generations.policy_version = num_tokens
            host.rolls_out(generations)
        assert (host.health.num_tokens, host.health.policy_version, host.health.in_hand) == (7, 4, 0)
        host.rolls_out(None)
        host.failed(LinkSilent("tcp://b:1 has not answered for 30 s"))
        assert (host.health.num_tokens, host.health.policy_version) == (7, -1)
        assert host.health.last_error == "LinkSilent: tcp://b:1 has not answered for 30 s"

    asyncio.run(scene())


def test_any_thread_reads_the_health() -> None:
    host, seen = Host(), list[RolloutHealth]()
    thread = threading.Thread(target=lambda: seen.append(host.health))
    thread.start()
    thread.join(10)
    assert seen == [host.health]
