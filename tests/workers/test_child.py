"""`Relay` copies the output of a child to standard error unchanged and keeps its end."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import BrokenInvariant
from asyncrl.workers.child import (
    AfterExit,
    Child,
    Exit,
    Relay,
    RestartBudget,
    describe_exit,
    keep_alive,
    module_command,
)


def test_output_is_copied_to_standard_error_and_its_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            output.write(b"one two")
        return relay.tail()

    assert asyncio.run(scene()) == b" two"
    assert capfd.readouterr().err == "one two"


def test_output_is_copied_without_a_call_of_tail(capfd: pytest.CaptureFixture[str]) -> None:
    async def scene() -> None:
        relay = Relay(kept_bytes=4)
        with relay.end() as output:
            os.write(output.fileno(), b"now")
            for _ in range(3):  # The loop polls the pipe in one iteration and calls its reader in a later one.
                await asyncio.sleep(0)
            assert capfd.readouterr().err == "now"
        assert relay.tail() == b"now"

    asyncio.run(scene())


def test_a_restarted_child_begins_with_an_empty_tail() -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        assert relay.tail() == b""
        for text in (b"first", b"second"):
            with relay.end() as output:
                output.write(text)
        return relay.tail()

    assert asyncio.run(scene()) == b"second"


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block_tail() -> None:
    async def scene() -> bytes:
        relay = Relay(kept_bytes=100)
        with relay.end() as output:
            os.write(output.fileno(), b"last words")
            return relay.tail()

    assert asyncio.run(scene()) == b"last words"


# ── test supervise ────────────────────────────────────────────────────────────────────────────
# A child and its descendants end with the parent; restarts have a budget.

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
    assert budget.spend(100.1) == pytest.approx(0.4)  # the restart at 50.0 still counts
    assert budget.spend(1000.0) == pytest.approx(0.2)


def test_a_pause_is_never_longer_than_ten_seconds() -> None:
    budget = RestartBudget(max_restarts=5000, window_s=1e9)
    assert [budget.spend(float(now_s)) for now_s in range(5000)][-1] == 10.0


def test_a_budget_of_zero_allows_no_restart() -> None:
    assert RestartBudget(max_restarts=0, window_s=1.0).spend(0.0) is None


# ── children ────────────────────────────────────────────────────────────────────────────────


def shell(tmp_path: Path, script: str) -> Child:
    return Child("rollout-0", ["sh", "-c", script], tmp_path / "rollout-0.log", {"GREETING": "hello"})


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A FIFO that a process writes to: its reader sees the end of file once that process is gone."""
    path = tmp_path / "held"
    os.mkfifo(path)
    return path


def test_the_output_of_a_child_is_logged_and_its_last_line_is_kept(tmp_path: Path) -> None:
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


def test_no_file_of_the_working_directory_hides_a_library(tmp_path: Path) -> None:
    for name in ("tokenize", "random", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    done = subprocess.run(
        module_command("asyncrl", "--version"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_last_line_of_asyncrl_takes_precedence_over_later_output(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, "echo asyncrl: no such file; echo warning: 2 objects leaked; exit 78")
        await child.start()
        await child.wait()
        assert child.last_line() == "no such file"

    asyncio.run(scene())


def test_the_last_line_is_from_the_latest_start(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"cd {tmp_path}; [ -e lived ] && exec echo second; touch lived; echo asyncrl: first")
        for expected in ("first", "second"):
            await child.start()
            await child.wait()
            assert child.last_line() == expected

    asyncio.run(scene())


def test_a_child_whose_log_takes_no_words_is_described_by_the_reason(tmp_path: Path) -> None:
    async def scene() -> None:
        child = Child("rollout-0", ["false"], tmp_path / "logs" / "rollout-0.log", {})
        (tmp_path / "logs").mkdir()
        await child.start()
        await child.wait()
        assert child.last_line() == ""
        assert child.log is not None
        child.log.unlink()
        child.log.parent.rmdir()
        assert child.last_line().startswith(f"cannot write {child.log}: No such file or directory; free space")

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
    assert describe_exit(143) == "left because of a signal"
    assert describe_exit(-200) == "was killed by signal 200"


def test_a_child_that_was_never_started_cannot_be_waited_for_but_may_be_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, "exit 0")
        await child.end(drain_s=1.0)
        with pytest.raises(BrokenInvariant, match="rollout-0 was never started"):
            await child.wait()

    asyncio.run(scene())


def test_grandchildren_die_with_the_child(tmp_path: Path, held: Path) -> None:
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


def test_end_gives_a_child_time_to_drain(tmp_path: Path, held: Path) -> None:
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


def test_a_child_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path, held: Path) -> None:
    async def scene() -> None:
        child = shell(tmp_path, f"trap '' TERM; sleep 1000 > {held}")
        await child.start()
        async with asyncio.timeout(DEADLINE_S):
            with await asyncio.to_thread(held.open, "rb") as grandchild:
                await child.end(drain_s=0.0)
                assert await child.wait() == -signal.SIGKILL
                assert await asyncio.to_thread(grandchild.read) == b""

    asyncio.run(scene())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a child when its parent dies")
def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path, held: Path) -> None:
    parent = f"""
import asyncio
from pathlib import Path
from asyncrl.workers.child import Child

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


# ── keep_alive ──────────────────────────────────────────────────────────────────────────────


def run_kept_alive(
    tmp_path: Path, script: str, decision: AfterExit, *, max_restarts: int = 0
) -> tuple[int, list[Exit]]:
    """Exit code of the last start, and the reported exits; the run is over after three."""
    exits: list[Exit] = []

    async def after_exit(code: int) -> AfterExit:
        return "leave" if code == 0 else decision

    async def exited(report: Exit) -> None:
        exits.append(report)

    async def scene() -> int:
        child = shell(tmp_path, script)
        await child.start()
        budget = RestartBudget(max_restarts, window_s=1000.0)
        return await keep_alive(child, budget, after_exit=after_exit, exited=exited, is_over=lambda: len(exits) == 3)

    return asyncio.run(scene()), exits


def test_a_child_that_leaves_on_purpose_is_not_reported(tmp_path: Path) -> None:
    assert run_kept_alive(tmp_path, "exit 0", "restart", max_restarts=5) == (0, [])


def test_a_child_is_started_again_until_its_budget_is_spent(tmp_path: Path) -> None:
    code, exits = run_kept_alive(tmp_path, "echo oops; exit 70", "restart", max_restarts=1)
    assert code == 70
    assert exits == [Exit("rollout-0", 70, "exited with 70: oops", restarting=again) for again in (True, False)]


def test_a_child_with_a_permanent_failure_is_not_started_again(tmp_path: Path) -> None:
    code, exits = run_kept_alive(tmp_path, "exit 78", "end", max_restarts=5)
    assert (code, [report.restarting for report in exits]) == (78, [False])


def test_no_child_is_started_after_the_run_is_over(tmp_path: Path) -> None:
    code, exits = run_kept_alive(tmp_path, "exit 70", "restart", max_restarts=9)
    assert (code, len(exits)) == (70, 3)
