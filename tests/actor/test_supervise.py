"""Children end with their parent and their own children with them; restarts have a budget."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.actor.supervise import AfterExit, Child, Exit, RestartBudget, describe_exit, keep_alive
from asyncrl.errors import BrokenInvariant

DEADLINE_S = 30.0


# ── budget ──────────────────────────────────────────────────────────────────────────────────


def test_pauses_double_until_the_budget_is_spent() -> None:
    budget = RestartBudget(max_restarts=4, window_s=100.0)
    assert [budget.spend(now_s) for now_s in (0, 1, 2, 3, 4)] == pytest.approx([0.2, 0.4, 0.8, 1.6, None])


def test_a_restart_older_than_the_window_is_forgotten() -> None:
    budget = RestartBudget(max_restarts=2, window_s=100.0)
    assert budget.spend(0.0) == pytest.approx(0.2)
    assert budget.spend(50.0) == pytest.approx(0.4)
    assert budget.spend(100.0) is None
    assert budget.spend(100.1) == pytest.approx(0.4)  # the one of 50.0 still counts
    assert budget.spend(1000.0) == pytest.approx(0.2)


def test_a_pause_is_never_longer_than_ten_seconds() -> None:
    budget = RestartBudget(max_restarts=5000, window_s=1e9)
    assert [budget.spend(float(now_s)) for now_s in range(5000)][-1] == 10.0


def test_no_restarts_means_none() -> None:
    assert RestartBudget(max_restarts=0, window_s=1.0).spend(0.0) is None


# ── children ────────────────────────────────────────────────────────────────────────────────


def shell(tmp_path: Path, script: str) -> Child:
    return Child("rollout-0", ["sh", "-c", script], tmp_path / "rollout-0.log", {"GREETING": "hello"})


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A pipe that reads as ended once nobody holds its other end open: how a test sees that a process is gone."""
    path = tmp_path / "held"
    os.mkfifo(path)
    return path


def test_its_output_is_kept_and_its_last_line_is_its_last_words(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, 'echo "$GREETING"; echo "asyncrl: no such file" >&2; exit 78')
        assert child.last_line() == ""
        for _ in range(2):
            await child.start()
            assert await child.wait() == 78
            assert child.pid is None
        assert child.log is not None
        assert child.log.read_text() == "hello\nasyncrl: no such file\n" * 2
        assert child.last_line() == "no such file"

    asyncio.run(scene())


def test_its_own_sentence_is_why_it_ended_whatever_is_complained_of_after_it(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, "echo asyncrl: no such file; echo warning: 2 objects leaked; exit 78")
        await child.start()
        await child.wait()
        assert child.last_line() == "no such file"

    asyncio.run(scene())


def test_what_was_said_in_an_earlier_life_is_not_why_this_one_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"cd {tmp_path}; [ -e lived ] && exec echo second; touch lived; echo asyncrl: first")
        for expected in ("first", "second"):
            await child.start()
            await child.wait()
            assert child.last_line() == expected

    asyncio.run(scene())


def test_a_killed_child_is_described_by_the_name_of_the_signal(tmp_path: Path) -> None:
    async def scene() -> int:
        child = shell(tmp_path, "exec sleep 1000")
        await child.start()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        return await child.wait()

    assert describe_exit(asyncio.run(scene())) == "was killed by SIGKILL"


def test_an_exit_is_described_by_its_code() -> None:
    assert describe_exit(0) == "exited with 0"
    assert describe_exit(78) == "exited with 78"
    assert describe_exit(-200) == "was killed by signal 200"


def test_a_child_that_was_never_started_cannot_be_waited_for_but_may_be_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, "exit 0")
        await child.end(drain_s=1.0)
        with pytest.raises(BrokenInvariant, match="rollout-0 was never started"):
            await child.wait()

    asyncio.run(scene())


def test_what_a_child_started_dies_with_it(tmp_path: Path, held: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"sleep 1000 > {held} & read go < {held}.go; exit 3")
        os.mkfifo(f"{held}.go")
        await child.start()
        async with asyncio.timeout(DEADLINE_S):
            with await asyncio.to_thread(held.open, "rb") as grandchild:
                await asyncio.to_thread(Path(f"{held}.go").write_bytes, b"go\n")
                assert await child.wait() == 3
                assert await asyncio.to_thread(grandchild.read) == b""

    asyncio.run(scene())


def test_ending_lets_a_child_finish_what_it_has_in_hand(tmp_path: Path, held: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"trap 'echo drained; exit 0' TERM; echo ready > {held}; while :; do sleep 0.01; done")
        await child.start()
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.to_thread(held.read_text) == "ready\n"
            await child.end(drain_s=DEADLINE_S)
            assert await child.wait() == 0
            await child.end(drain_s=DEADLINE_S)
        assert child.last_line() == "drained"

    asyncio.run(scene())


def test_a_child_that_will_not_leave_is_killed_with_all_it_started(tmp_path: Path, held: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"trap '' TERM; sleep 1000 > {held}")
        await child.start()
        async with asyncio.timeout(DEADLINE_S):
            with await asyncio.to_thread(held.open, "rb") as grandchild:
                await child.end(drain_s=0.0)
                assert await child.wait() == -signal.SIGKILL
                assert await asyncio.to_thread(grandchild.read) == b""

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells children of their parent's death on Linux only")
def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path, held: Path) -> None:
    parent = f"""
import asyncio
from pathlib import Path
from asyncrl.actor.supervise import Child

async def main():
    child = Child("orphan", ["sh", "-c", "exec sleep 1000 > {held}"], Path("{tmp_path}/orphan.log"), {{}})
    await child.start()
    await child.wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", parent]) as process, held.open("rb") as orphan:
        process.kill()
        assert orphan.read() == b""


def test_output_without_a_log_goes_to_standard_error_and_its_last_line_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def scene() -> None:
        child = Child("rollout-0", ["sh", "-c", 'echo "first"; echo "asyncrl: no such file" >&2; exit 78'], None, {})
        for _ in range(2):
            await child.start()
            assert await child.wait() == 78
            assert child.last_line() == "no such file"

    asyncio.run(scene())

    assert capfd.readouterr().err == "first\nasyncrl: no such file\n" * 2


# ── kept alive ──────────────────────────────────────────────────────────────────────────────


def kept(tmp_path: Path, script: str, verdict: AfterExit, *, max_restarts: int = 0) -> tuple[int, list[Exit]]:
    """The exit code of its last life, and what its keeper heard. It is over once it was heard thrice."""
    heard: list[Exit] = []

    async def after_exit(code: int) -> AfterExit:
        return "leave" if code == 0 else verdict

    async def exited(left: Exit) -> None:
        heard.append(left)

    async def scene() -> int:
        child = shell(tmp_path, script)
        await child.start()
        budget = RestartBudget(max_restarts, window_s=1000.0)
        return await keep_alive(child, budget, after_exit=after_exit, exited=exited, is_over=lambda: len(heard) == 3)

    return asyncio.run(scene()), heard


def test_a_child_that_leaves_as_it_should_is_let_go_without_a_word(tmp_path: Path) -> None:
    assert kept(tmp_path, "exit 0", "restart", max_restarts=5) == (0, [])


def test_a_child_is_started_again_until_its_budget_is_spent(tmp_path: Path) -> None:
    code, heard = kept(tmp_path, "echo oops; exit 70", "restart", max_restarts=1)
    assert code == 70
    assert heard == [Exit("rollout-0", 70, "exited with 70: oops", restarting=again) for again in (True, False)]


def test_a_child_that_would_only_end_the_same_way_again_is_not_started_again(tmp_path: Path) -> None:
    code, heard = kept(tmp_path, "exit 78", "end", max_restarts=5)
    assert (code, [left.restarting for left in heard]) == (78, [False])


def test_nothing_is_started_once_it_is_over(tmp_path: Path) -> None:
    code, heard = kept(tmp_path, "exit 70", "restart", max_restarts=9)
    assert (code, len(heard)) == (70, 3)
