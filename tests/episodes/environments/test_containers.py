"""Containers of a rollout's episodes: leased, saved, restored, and gone whatever is killed."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asyncrl.config.sections.environment import ContainerSettings, Environment
from asyncrl.engine import CalledTool, PolicyTurn
from asyncrl.episodes import containers
from asyncrl.episodes.containers import ContainerPool, reap_run
from asyncrl.episodes.environment import EnvironmentDiverged, EnvironmentEpisode
from asyncrl.episodes.pool import EnvironmentPool, Programs
from asyncrl.errors import ConfigError, EnvironmentFailed
from asyncrl.workers import folders
from asyncrl.workers.containers import RUN, CommandLine, Owned
from tests.episodes.environments.environments import said, task, written
from tests.episodes.environments.test_pool import command_of
from tests.patience import PATIENCE_S
from tests.workers.container_runtime import IMAGE, REAL, runtime

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
    pytest.mark.timeout(110),
    pytest.mark.slow("each call of the runtime is a process"),
]
T = TypeVar("T")
RUN_ID = f"test-{os.getpid()}"
COUNTS = '''
import asyncio
from asyncrl.environment import Step

class Counts:
    """Appends a line to a file in its container each turn."""
    resume = "snapshot"

    async def reset(self, task):
        self.container, self.turns = task.container, 0
        await self.container.put("/lines", b"")

    async def step(self, said):
        code, out, _ = await self.container.run(["sh", "-c", f"echo {said.text} >> lines; cat lines"], timeout_s=30)
        self.turns += 1
        if said.text == "hang":
            await self.container.run(["sleep", "60"])
        return Step(messages=[{"role": "user", "content": f"{self.turns} {' '.join(out.decode().split())}"}])

    async def snapshot(self):
        return str(self.turns).encode()

    async def restore(self, task, state):
        self.container, self.turns = task.container, int(state)
'''


@pytest.fixture
def settings(tmp_path: Path) -> ContainerSettings:
    return ContainerSettings(image=IMAGE, runtime=runtime(tmp_path), workdir="/", memory_bytes=100 << 20)


def with_pool(environment: Environment, use: Callable[[EnvironmentPool], Awaitable[T]], run: str = RUN_ID) -> T:
    async def start_and_use() -> T:
        async with EnvironmentPool(environment, run, "node-1") as pool:
            return await use(pool)

    return asyncio.run(start_and_use())


def counting(folder: Path, settings: ContainerSettings, **changes: Any) -> Environment:
    from msgspec.structs import replace

    container = replace(settings, **changes)
    return Environment(function=f"{written(folder, COUNTS)}:Counts", workers=1, call_s=30.0, container=container)


def owned(settings: ContainerSettings, run: str = RUN_ID) -> list[Owned]:
    found = asyncio.run(CommandLine(settings.runtime).owned())
    return [one for one in found if one.labels.get(RUN) == run]


async def images(settings: ContainerSettings) -> list[Owned]:
    return [one for one in await CommandLine(settings.runtime).owned() if one.kind == "image"]


async def turn(episode: EnvironmentEpisode, text: str) -> str:
    return str((await episode.step(said(text))).messages[0]["content"])


def test_each_episode_has_a_container_of_its_own_that_ends_with_it(tmp_path: Path, settings: ContainerSettings) -> None:
    async def use(pool: EnvironmentPool) -> list[str]:
        one, other = pool.open("run/train/1/0"), pool.open("run/train/1/1")
        await asyncio.gather(one.reset(task()), other.reset(task()))
        found = [await turn(one, "a"), await turn(other, "b"), await turn(one, "c")]
        assert pool.containers is not None
        assert (pool.containers.leased, pool.containers.started) == (2, 2)
        assert pool.containers.oldest_s > 0
        await asyncio.gather(one.close(), other.close())
        return found

    assert with_pool(counting(tmp_path, settings), use) == ["1 a", "1 b", "2 a c"]
    assert owned(settings) == []


def test_warm_containers_are_ready_before_they_are_wanted(tmp_path: Path, settings: ContainerSettings) -> None:
    async def use(pool: EnvironmentPool) -> None:
        async def warm(number: int) -> None:
            while pool.containers is None or pool.containers.warm < number:
                await asyncio.sleep(0.02)

        await warm(2)
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        assert await turn(episode, "a") == "1 a"
        await warm(2)
        assert pool.containers is not None
        assert pool.containers.started == 3
        await episode.close()

    with_pool(counting(tmp_path, settings, warm=2), use)
    assert owned(settings) == []


def test_an_episode_goes_on_from_the_snapshot_of_its_last_turn(
    tmp_path: Path, settings: ContainerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LINGER_S", 1.0)

    async def use(pool: EnvironmentPool) -> list[str]:
        first = pool.open("run/train/1/0")
        await first.reset(task())
        await turn(first, "a")
        state = await first.snapshot()
        await turn(first, "lost")
        await first.close()
        second = pool.open("run/train/1/0")
        await second.restore(task(), state)
        found = [await turn(second, "b")]
        state = await second.snapshot()
        await second.close()
        third = pool.open("run/train/1/0")
        await third.restore(task(), state)
        found.append(await turn(third, "c"))
        await third.close()
        while await images(settings):  # no attempt follows
            await asyncio.sleep(0.1)
        return found

    assert with_pool(counting(tmp_path, settings, snapshot="turn"), use) == ["2 a b", "3 a b c"]


def test_only_the_last_snapshots_of_an_episode_are_kept(tmp_path: Path, settings: ContainerSettings) -> None:
    async def use(pool: EnvironmentPool) -> int:
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        for _ in range(containers.KEPT + 2):
            await episode.snapshot()
        while (num := len(await images(settings))) > containers.KEPT:
            await asyncio.sleep(0.05)
        await episode.close()
        return num

    assert with_pool(counting(tmp_path, settings, snapshot="turn"), use) == containers.KEPT
    asyncio.run(reap_everything(settings))


async def reap_everything(settings: ContainerSettings) -> None:
    from asyncrl.workers.containers import reap

    assert await reap(CommandLine(settings.runtime), lambda one: one.labels.get(RUN) == RUN_ID) == []


def test_a_snapshot_that_is_not_here_is_said_so_and_the_episode_begins_anew(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    async def use(pool: EnvironmentPool) -> None:
        first = pool.open("run/train/1/0")
        await first.reset(task())
        state = await first.snapshot()
        await first.close()
        await reap_everything(settings)
        with pytest.raises(EnvironmentDiverged, match=r"the snapshot localhost/asyncrl-.* is not on this machine"):
            await pool.open("run/train/1/0").restore(task(), state)

    with_pool(counting(tmp_path, settings, snapshot="turn"), use)


def test_a_container_that_is_lost_loses_its_episode_and_blames_nobody(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    async def use(pool: EnvironmentPool) -> EnvironmentFailed:
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        (one,) = [one for one in await CommandLine(settings.runtime).owned() if one.labels[RUN] == RUN_ID]
        await CommandLine(settings.runtime).remove("container", one.id)
        with pytest.raises(EnvironmentFailed) as failed:
            await episode.step(said("a"))
        await episode.close()
        return failed.value

    error = with_pool(counting(tmp_path, settings), use)
    assert (error.is_lost, error.retryable) == (True, True)
    assert str(error).startswith("the container was lost: ")


def test_a_killed_worker_takes_no_container_with_it_and_leaves_none(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    async def use(pool: EnvironmentPool) -> None:
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        hanging = asyncio.create_task(turn(episode, "hang"))
        lines = CommandLine(settings.runtime)
        while b"hang" not in await lines.get(one_name(settings, await lines.owned()), "/lines"):
            pass
        below = folders.below(os.getpid())
        (keeper,) = [process.pid for process in below if "asyncrl.workers.keeper" in command_of(process.pid)]
        (worker,) = [process.pid for process in below if process.parent == keeper]
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(EnvironmentFailed):
            await hanging
        assert len([one for one in await lines.owned() if one.labels[RUN] == RUN_ID]) == 1
        await episode.close()

    with_pool(counting(tmp_path, settings), use)
    assert owned(settings) == []


def one_name(settings: ContainerSettings, found: list[Owned]) -> str:
    (one,) = [one for one in found if one.labels[RUN] == RUN_ID and one.kind == "container"]
    return one.id


def test_the_shell_tool_runs_in_the_container_and_tells_the_exit_code(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    def calls(command: str) -> PolicyTurn:
        call = CalledTool(name="shell", arguments={"command": command}, id="1")
        return PolicyTurn(text="", content="", tool_calls=[call])

    async def use(pool: EnvironmentPool) -> list[str]:
        assert [tool["function"]["name"] for tool in pool.description.tools] == ["shell"]
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        commands = "echo one > file", "cat file; exit 3", "sleep 60", "yes | head -c 30000"
        found = [str((await episode.step(calls(command))).messages[0]["content"]) for command in commands]
        await episode.close()
        return found

    environment = Environment(tools=["shell"], workers=1, call_s=20.0, container=settings)
    quiet, failed, late, long = with_pool(environment, use)
    assert (quiet, failed) == ("", "one\n\n[exit code 3]")
    assert late == "[the command took longer than 16 s and was killed]"
    assert len(long) < 17000
    assert "[13616 more characters]" in long


@pytest.mark.parametrize(("snapshot", "resume"), [("none", "none"), ("turn", "snapshot")])
def test_an_episode_with_a_shell_is_continued_only_if_its_container_is_saved(
    settings: ContainerSettings, snapshot: Any, resume: str
) -> None:
    from msgspec.structs import replace

    async def use(pool: EnvironmentPool) -> str:
        return pool.description.resume

    environment = Environment(tools=["shell"], workers=1, container=replace(settings, snapshot=snapshot))
    assert with_pool(environment, use) == resume


def test_an_environment_that_cannot_be_restored_is_not_saved(tmp_path: Path, settings: ContainerSettings) -> None:
    environment = counting(tmp_path, settings, snapshot="turn")
    written(tmp_path, COUNTS.replace('"snapshot"', '"replay"'))

    with pytest.raises(ConfigError, match=r"has resume = 'replay' for its own state; give it resume = 'snapshot'"):
        asyncio.run(EnvironmentPool(environment, RUN_ID, "node").start())


def test_a_program_is_told_its_container(tmp_path: Path, settings: ContainerSettings) -> None:
    program = (
        f'"$ASYNCRL_CONTAINER_RUNTIME" exec "$ASYNCRL_CONTAINER" sh -c "echo in > it; cat it" > {tmp_path}/found; '
        f'echo "$ASYNCRL_CONTAINER_LABEL" >> {tmp_path}/found'
    )

    async def main() -> None:
        environment = Environment(command=["sh", "-c", program], container=settings)
        async with Programs(environment, RUN_ID, "node") as programs:
            episode = programs.open("run/0")
            await episode.solve(task(), "http://127.0.0.1:9/v1", "key")
            await episode.close()

    asyncio.run(main())
    first, label = (tmp_path / "found").read_text().splitlines()
    assert first == "in"
    assert label.startswith("asyncrl.owner=")
    assert owned(settings) == []


@pytest.mark.skipif(bool(REAL), reason="builds from the stand-in's image")
def test_a_row_names_its_image_or_the_folder_it_is_built_from(tmp_path: Path, settings: ContainerSettings) -> None:
    (context := tmp_path / "context").mkdir()
    (context / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo built > lines-of-image\n")

    async def use(pool: EnvironmentPool) -> None:
        rows = [task(container_image="localhost/own:1", container_build=str(context)) for _ in range(2)]
        episodes = [pool.open(f"run/train/1/{index}") for index in range(2)]
        await asyncio.gather(*(one.reset(row) for one, row in zip(episodes, rows, strict=True)))
        await asyncio.gather(*(one.close() for one in episodes))
        with pytest.raises(EnvironmentFailed, match=r"the row has no extra\.container_image"):
            await pool.open("run/train/1/3").reset(task())

    with_pool(counting(tmp_path, settings, image="row"), use)
    images = list((tmp_path / "state" / "images").glob("*/files/lines-of-image"))
    assert [image.read_text() for image in images] == ["built\n"]


def test_an_image_that_cannot_be_had_is_refused_at_the_start(tmp_path: Path, settings: ContainerSettings) -> None:
    with pytest.raises(ConfigError, match=r"environment\.container\.image is 'no-such-image': .* pull failed"):
        with_pool(counting(tmp_path, settings, image="no-such-image"), lambda pool: asyncio.sleep(0))


HOLDS = """
import asyncio, sys
import msgspec
from asyncrl.config.sections.environment import Environment
from asyncrl.episodes import containers
from asyncrl.episodes.pool import EnvironmentPool
from tests.episodes.environments.environments import said, task

async def hold():
    containers.LINGER_S = 20.0
    environment = msgspec.json.decode(sys.argv[1], type=Environment)
    async with EnvironmentPool(environment, sys.argv[2], "node") as pool:
        episode = pool.open("run/train/1/0")
        await episode.reset(task())
        await episode.step(said("a"))
        print((await episode.snapshot()).hex(), flush=True)
        await episode.step(said("hang"))

asyncio.run(hold())
"""


def test_a_killed_rollout_leaves_nothing_and_its_episode_goes_on_meanwhile(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    import msgspec

    environment = counting(tmp_path, settings, snapshot="turn", warm=1)
    command = [sys.executable, "-c", HOLDS, msgspec.json.encode(environment).decode(), RUN_ID]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rollout:
        assert rollout.stdout is not None
        state = bytes.fromhex(rollout.stdout.readline().decode())
        rollout.kill()

    async def use(pool: EnvironmentPool) -> str:
        episode = pool.open("run/train/1/0")
        await episode.restore(task(), state)
        found = await turn(episode, "b")
        await episode.close()
        return found

    assert with_pool(environment, use) == "2 a b"
    asyncio.run(reap_run(settings, RUN_ID))
    deadline = time.monotonic() + 60
    while left := owned(settings):
        assert time.monotonic() < deadline, left
    assert left == []


def reaper_of(node: int) -> int:
    """The reaper of a node, which is nobody's child."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_text(errors="replace").split("\0")
            if "asyncrl.workers.reaper" in command and any(f"/{node}/" in word for word in command):
                return int(path.parent.name)
    raise AssertionError(f"node {node} has no reaper")


def test_whoever_comes_next_removes_what_a_node_and_its_reaper_have_left(
    tmp_path: Path, settings: ContainerSettings
) -> None:
    import msgspec

    environment = counting(tmp_path, settings, snapshot="turn")
    command = [sys.executable, "-c", HOLDS, msgspec.json.encode(environment).decode(), "earlier"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as rollout:
        assert rollout.stdout is not None
        rollout.stdout.readline()
        reaper = reaper_of(rollout.pid)
        ended = os.pidfd_open(reaper)
        os.kill(reaper, signal.SIGKILL)
        rollout.kill()
    assert select.select([ended], [], [], PATIENCE_S)[0], "it takes a moment on a busy machine"
    os.close(ended)
    assert {one.kind for one in owned(settings, "earlier")} == {"container", "image"}

    async def start() -> None:
        async with ContainerPool(settings, RUN_ID, "node"):
            pass

    asyncio.run(start())
    assert {one.kind for one in owned(settings, "earlier")} == {"image"}  # a reaper might keep it
    assert asyncio.run(reap_run(settings, "earlier")) == []
    assert owned(settings, "earlier") == []
