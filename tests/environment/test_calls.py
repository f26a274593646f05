"""Which call a worker hangs with, and which episode kills workers."""

import asyncio

from asyncrl.environment.calls import Call, Suspects, culprits, overdue


def call(method: str, *, sent: float, begun: float | None = None, limited: bool = True) -> Call:
    answer = asyncio.Future[object](loop=asyncio.new_event_loop())
    answer.get_loop().close()
    return Call("episode", method, answer, sent, sent if limited else None, begun)  # type: ignore[arg-type]


def test_a_call_is_late_when_it_has_run_for_the_limit() -> None:
    runs = call("step", sent=0.0, begun=5.0)

    assert overdue([runs], heard_at=5.0, call_s=10.0, now=15.0) == []
    assert overdue([runs], heard_at=5.0, call_s=10.0, now=15.1) == [runs]


def test_a_call_that_waits_is_not_late_as_long_as_its_worker_answers_others() -> None:
    waits = call("step", sent=0.0)

    assert overdue([waits], heard_at=100.0, call_s=10.0, now=109.0) == []
    assert overdue([waits], heard_at=100.0, call_s=10.0, now=111.0) == [waits]


def test_a_program_is_not_limited_until_it_is_cancelled() -> None:
    runs = call("solve", sent=0.0, begun=0.0, limited=False)

    assert overdue([runs], heard_at=0.0, call_s=10.0, now=1e9) == []
    runs.limited_from = 1e9
    assert overdue([runs], heard_at=0.0, call_s=10.0, now=1e9 + 11.0) == [runs]


def test_late_calls_that_have_begun_are_to_blame_and_else_all_that_run() -> None:
    late, waits, runs = call("step", sent=0.0, begun=0.0), call("step", sent=0.0), call("solve", sent=0.0, begun=0.0)

    assert culprits([late, waits, runs], [late, waits]) == [late]
    assert culprits([waits, runs], [waits]) == [runs]


def test_an_episode_alone_with_a_death_is_to_blame() -> None:
    assert Suspects().blame(["a"]) == {"a"}


def test_of_several_episodes_the_one_that_is_there_three_times_is_to_blame() -> None:
    suspects = Suspects()

    assert suspects.blame(["a", "b"]) == set()
    assert suspects.blame(["a", "c"]) == set()
    suspects.acquit("c")
    assert suspects.blame(["a", "c"]) == {"a"}
