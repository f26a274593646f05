"""The pool: environments in processes that can be killed, from the side of a rollout."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import Answer, EnvironmentEpisode, Score
from asyncrl.episodes.pictures import file_of
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.workers import folders
from tests.episodes.environments.environments import said, task, written

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"), pytest.mark.timeout(60)]
T = TypeVar("T")


def with_pool(environment: Environment, use: Callable[[EnvironmentPool], Awaitable[T]]) -> T:
    async def start_and_use() -> T:
        async with EnvironmentPool(environment, "run", "node-1") as pool:
            return await use(pool)

    return asyncio.run(start_and_use())


def boxes(folder: Path, name: str = "Boxes", **settings: Any) -> Environment:
    return Environment(function=f"{written(folder)}:{name}", **{"workers": 1, "call_s": 10.0, **settings})


def test_an_episode_is_reset_stepped_scored_and_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def play(pool: EnvironmentPool) -> list[Any]:
        episode = pool.open("run/train/1/0")
        found = [
            await episode.reset(task(seed=5, greets=True, closed_in=str(log))),
            await episode.step(said()),
            await episode.step(said("stop")),
            await episode.score(),
        ]
        await episode.close()
        await episode.close()
        return found

    started, first, last, score = with_pool(boxes(tmp_path, options={"start": 10}), play)

    assert started == Answer(messages=[{"role": "user", "content": "hello"}])
    assert first == Answer(messages=[{"role": "user", "content": "16"}], reward=0.5)
    assert last.done
    assert score == Score(reward=17.0, metrics={"steps": 17.0})
    assert log.read_text() == "run/train/1/0\n"


def test_many_episodes_share_a_worker_and_do_not_meet(tmp_path: Path) -> None:
    async def play(pool: EnvironmentPool) -> list[str]:
        async def one(number: int) -> str:
            episode = pool.open(f"run/train/{number}/0")
            await episode.reset(task(seed=100 * number))
            for _ in range(5):
                answer = await episode.step(said())
            await episode.close()
            return str(answer.messages[0]["content"])

        return await asyncio.gather(*map(one, range(20)))

    for name in ("Boxes", "Plain"):
        assert with_pool(boxes(tmp_path, name), play) == [str(100 * number + 5) for number in range(20)]


ECHO = """
class Echo:
    def reset(self, task):
        parts = [{"type": "image", "data": file} for file in task.images]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "again"}]}]

    def step(self, said):
        return {"messages": [{"role": "user", "content": [{"type": "image", "data": bytes(int(said.text))}]}]}
"""


def test_pictures_reach_an_environment_and_leave_it(tmp_path: Path) -> None:
    files = (bytes(range(256)), b"\x89PNG")

    async def play(pool: EnvironmentPool) -> tuple[Answer, Answer, str]:
        episode = pool.open("run/train/1/0")
        first = await episode.reset(replace(task(), images=files))
        large = await episode.step(said(str(20 << 20)))
        with pytest.raises(EnvironmentFailed) as refused:
            await episode.step(said(str(60 << 20)))
        assert not refused.value.retryable
        await episode.close()
        return first, large, str(refused.value)

    echo = Environment(function=f"{written(tmp_path, ECHO)}:Echo", workers=1)
    first, large, refused = with_pool(echo, play)
    *parts, text = first.messages[0]["content"]
    assert [file_of(part) for part in parts] == list(files)
    assert text == {"type": "text", "text": "again"}
    assert len(file_of(large.messages[0]["content"][0])) == 20 << 20
    assert "step returned pictures of 83,886,080 characters in base64, expected at most" in refused


def test_a_snapshot_is_restored_on_another_worker(tmp_path: Path) -> None:
    async def move(pool: EnvironmentPool) -> Answer:
        first = pool.open("run/train/1/0")
        await first.reset(task(seed=5))
        await first.step(said())
        state = await first.snapshot()
        second = pool.open("run/train/1/0")  # on the other worker, which has fewer
        await second.restore(task(seed=5), state)
        return await second.step(said())

    assert with_pool(boxes(tmp_path, workers=2), move).messages[0]["content"] == "7"


def test_an_exception_fails_its_episode_and_no_other(tmp_path: Path) -> None:
    async def play(pool: EnvironmentPool) -> tuple[EnvironmentFailed, Answer]:
        one, other = pool.open("a"), pool.open("b")
        await asyncio.gather(one.reset(task()), other.reset(task()))
        with pytest.raises(EnvironmentFailed) as caught:
            await one.step(said("raise"))
        with pytest.raises(EnvironmentFailed, match="step raised SystemExit: 3"):
            await one.step(said("leave"))
        assert pool.replaced == 0
        return caught.value, await other.step(said())

    error, answer = with_pool(boxes(tmp_path), play)

    assert str(error).startswith("step raised ValueError: no such box (")
    assert "boxes.py:" in str(error)
    assert (error.retryable, error.is_lost) == (True, False)
    assert answer.messages[0]["content"] == "1"


@pytest.mark.parametrize(("name", "text"), [("Boxes", "sleep"), ("Boxes", "block"), ("Plain", "block")])
def test_a_call_that_hangs_is_to_blame_and_the_others_are_lost_with_its_worker(
    tmp_path: Path, name: str, text: str
) -> None:
    async def play(pool: EnvironmentPool) -> tuple[EnvironmentFailed, EnvironmentFailed, Answer]:
        guilty, idle = pool.open("guilty"), pool.open("idle")
        await asyncio.gather(guilty.reset(task()), idle.reset(task()))
        with pytest.raises(EnvironmentFailed) as blamed:
            await guilty.step(said(text))
        with pytest.raises(EnvironmentFailed) as lost:
            await idle.step(said())
        await asyncio.gather(guilty.close(), idle.close())
        again = pool.open("idle")
        await again.reset(task(seed=3))
        assert pool.replaced == 1
        return blamed.value, lost.value, await again.step(said())

    blamed, lost, answer = with_pool(boxes(tmp_path, name, call_s=0.5), play)

    assert "step took longer than environment.call_s = 0.5, and its worker was killed" in str(blamed)
    assert (blamed.retryable, blamed.is_lost) == (True, False)
    assert (lost.retryable, lost.is_lost) == (True, True)
    assert answer.messages[0]["content"] == "4"


def test_a_call_that_waits_behind_a_hanging_one_is_lost_and_not_blamed(tmp_path: Path) -> None:
    async def play(pool: EnvironmentPool) -> list[Any]:
        episodes = [pool.open(name) for name in "abc"]
        await asyncio.gather(*(episode.reset(task()) for episode in episodes))
        texts = ["go on", "block", "go on"]
        steps = [episode.step(said(text)) for episode, text in zip(episodes, texts, strict=True)]
        return await asyncio.gather(*steps, return_exceptions=True)

    first, second, third = with_pool(boxes(tmp_path, "Plain", call_s=0.5), play)

    assert isinstance(first, Answer)
    assert [error.is_lost for error in (second, third)] == [False, True]


def test_a_worker_that_dies_is_told_with_its_cause(tmp_path: Path) -> None:
    async def play(pool: EnvironmentPool) -> list[EnvironmentFailed]:
        found = []
        for _ in range(3):
            episode = pool.open("a")
            await episode.reset(task())
            with pytest.raises(EnvironmentFailed) as caught:
                await episode.step(said("exit"))
            await episode.close()
            found.append(caught.value)
        return found

    found = with_pool(boxes(tmp_path, "Plain"), play)

    assert all("the environment worker died: it exited with code 7" in str(error) for error in found)
    assert [(error.retryable, error.is_lost) for error in found] == [(True, False)] * 3  # calls finished in between


def test_an_environment_whose_every_worker_is_lost_is_not_tried_for_ever(tmp_path: Path) -> None:
    path = written(
        tmp_path, "import os\nclass Dies:\n    def reset(self, task): os._exit(1)\n    def step(self, said): ..."
    )

    async def play(pool: EnvironmentPool) -> list[bool]:
        found = []
        for _ in range(4):
            with pytest.raises(EnvironmentFailed) as caught:
                await pool.open("a").reset(task())
            found.append(caught.value.retryable)
        return found

    assert with_pool(Environment(function=f"{path}:Dies", workers=1), play) == [True, True, False, False]


def test_a_cancelled_call_is_cancelled_in_the_worker_and_the_environment_closed(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def play(pool: EnvironmentPool) -> int:
        episode, other = pool.open("a"), pool.open("b")
        await episode.reset(task(closed_in=str(log)))
        await other.reset(task())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await episode.step(said("sleep"))
        await episode.close()
        await other.step(said())
        return pool.replaced

    assert with_pool(boxes(tmp_path, call_s=10.0), play) == 0
    assert log.read_text() == "run/train/1/0\n"


def test_agent_programs_run_to_their_end_or_until_they_are_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def play(pool: EnvironmentPool) -> Score:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await pool.open("a").solve(task(hangs=True, closed_in=str(log)), "http://x", "k")
        score = await pool.open("b").solve(task(seed=4), "http://x", "key")
        assert pool.replaced == 0
        return score

    assert with_pool(boxes(tmp_path, "solve", call_s=0.4), play) == Score(reward=11.0, metrics={"seed": 4.0})
    assert log.read_text() == "cancelled"


def test_closing_the_pool_closes_environments_and_ends_what_they_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(fifo := tmp_path / "alive")

    async def play(pool: EnvironmentPool) -> int:
        episode, other = pool.open("a"), pool.open("b")
        await episode.reset(task(closed_in=str(log)))
        await other.reset(task(closed_in=str(fifo)))
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        await other.step(said("spawn"))
        return reader

    reader = with_pool(boxes(tmp_path), play)

    assert log.read_text() == "run/train/1/0\n"
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as still_open:
        still_open.read()  # ends when no process has it open any more


def is_folder(name: str) -> bool:
    return Path(name).is_dir()


def test_processes_are_labelled_and_have_a_folder_that_goes_with_them(tmp_path: Path) -> None:
    async def ask(pool: EnvironmentPool) -> list[str]:
        episode = pool.open("a")
        await episode.reset(task())
        run, node, folder = json.loads((await episode.step(said())).messages[0]["content"])
        assert folder.startswith(str(folders.default_base()))
        assert is_folder(folder)
        return [run, node, folder]

    run, node, folder = with_pool(boxes(tmp_path, "asks_environment"), ask)

    assert (run, node) == ("run", "node-1")
    assert not Path(folder).exists()


async def until_it_fails(episode: EnvironmentEpisode) -> None:
    with suppress(EnvironmentFailed):
        while True:
            await episode.step(said())


def is_running(pid: int) -> bool:
    """False also for a dead process that nobody has collected."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


def command_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@pytest.mark.parametrize("victim", ["worker", "keeper"])
def test_nothing_is_left_when_a_worker_or_its_keeper_is_killed(tmp_path: Path, victim: str) -> None:
    async def play(pool: EnvironmentPool) -> tuple[str, list[int]]:
        episode = pool.open("a")
        await episode.reset(task())
        _, _, folder = json.loads((await episode.step(said())).messages[0]["content"])
        # Other tests may have left processes of torch below this one.
        below = folders.below(os.getpid())
        (keeper,) = [process.pid for process in below if "asyncrl.workers.keeper" in command_of(process.pid)]
        (worker,) = [process.pid for process in below if process.parent == keeper]
        os.kill(worker if victim == "worker" else keeper, signal.SIGKILL)
        await until_it_fails(episode)
        await episode.close()
        return folder, [keeper, worker]

    folder, pids = with_pool(boxes(tmp_path, "asks_environment"), play)

    assert not Path(folder).exists()
    assert not any(map(is_running, pids))


HOLDS = """
import asyncio, json, sys
from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.pool import EnvironmentPool
from tests.episodes.environments.environments import said, task

async def hold():
    async with EnvironmentPool(Environment(function=sys.argv[1], workers=1), "run", "node") as pool:
        episode = pool.open("a")
        await episode.reset(task())
        print((await episode.step(said())).messages[0]["content"], flush=True)
        await asyncio.sleep(3600)

asyncio.run(hold())
"""


def test_nothing_is_left_when_the_rollout_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, f"{written(tmp_path)}:asks_environment"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rollout:
        assert rollout.stdout is not None
        _, _, folder = json.loads(rollout.stdout.readline())
        pids = [process.pid for process in folders.below(rollout.pid)]
        assert Path(folder).is_dir()

        rollout.kill()

        assert rollout.stdout.read() == b""
    while any(map(is_running, pids)) or Path(folder).exists():
        pass  # its keeper ends the worker, and then removes the folder


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"function": "BOXES:Box"}, "has no function 'Box': did you mean 'Boxes'"),
        ({"function": "BOXES:Boxes", "options": {"begin": 1}}, "cannot be called with environment.options"),
        ({"function": "BOXES:makes_nothing", "options": {"x": 1}}, "make\\(task\\) or make\\(\\)"),
        ({"function": "missing.py:Boxes"}, "there is no file"),
        ({"function": "BOXES:Boxes", "python": "/nonexistent/python"}, "environment.python is '/nonexistent/python'"),
        ({"tools": ["calculater"]}, "unknown tool 'calculater': did you mean 'calculator'"),
    ],
)
def test_code_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    if "function" in settings:
        settings = settings | {"function": settings["function"].replace("BOXES", str(written(tmp_path)))}

    with pytest.raises(ConfigError, match=message):
        asyncio.run(EnvironmentPool(Environment(**settings), "run", "node").start())


def test_code_that_ends_its_process_or_raises_when_it_is_imported_is_named(tmp_path: Path) -> None:
    for text, message in [
        ("import os\nos._exit(5)", "exited with code 5"),
        ("x = 1\n1 / 0", r"division by zero \(.*:2\)"),
    ]:
        environment = Environment(function=f"{written(tmp_path, text)}:Boxes", workers=1)
        with pytest.raises(ConfigError, match=message):
            asyncio.run(EnvironmentPool(environment, "run", "node").start())


def test_workers_that_describe_the_environment_differently_are_refused(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import os\nclass A:\n    def reset(self, task): ...\n    def step(self, said): ...\n"
        "A.tools = [{'type': 'function', 'function': {'name': str(os.getpid())}}]",
    )

    with pytest.raises(ConfigError, match="is described differently by two workers"):
        asyncio.run(EnvironmentPool(Environment(function=f"{path}:A", workers=2), "run", "node").start())
