"""Containers by the command line of a runtime: the stand-in for podman, or a real one (ASYNCRL_TEST_RUNTIME)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import uvloop

from asyncrl.config.sections.environment import ContainerSettings
from asyncrl.errors import ConfigError, ContainerFailed
from asyncrl.workers import containers
from asyncrl.workers.containers import (
    OWNER,
    RUN,
    SAVED,
    CommandLine,
    EpisodeContainer,
    Owned,
    chosen,
    is_dead,
    is_left,
    owner_of,
    reap,
    runtime_of,
)
from tests.workers.container_runtime import IMAGE, REAL, runtime

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"), pytest.mark.timeout(110)]
T = TypeVar("T")
SETTINGS = msgspec.structs.asdict(ContainerSettings(image=IMAGE, workdir="/", memory_bytes=100 << 20))
RUN_ID = f"test-{os.getpid()}"
LABELS = {OWNER: owner_of(os.getpid()), RUN: RUN_ID}
stand_in_only = pytest.mark.skipif(bool(REAL), reason="looks into the stand-in")


@pytest.fixture
def podman(tmp_path: Path) -> CommandLine:
    return CommandLine(runtime(tmp_path))


def with_container(podman: CommandLine, use: Callable[[EpisodeContainer], Awaitable[T]]) -> T:
    async def start_and_use() -> T:
        await podman.prepare(IMAGE)
        name = f"{RUN_ID}-{time.monotonic_ns()}"
        await podman.start(name, IMAGE, SETTINGS, LABELS)
        try:
            return await use(EpisodeContainer(podman.program, name, "k=v"))
        finally:
            assert await reap(podman, of_this_test) == []

    return asyncio.run(start_and_use())


def of_this_test(one: Owned) -> bool:
    return one.labels.get(RUN) == RUN_ID


async def ours(podman: CommandLine) -> list[str]:
    return sorted(one.kind for one in await podman.owned() if of_this_test(one))


def test_programs_run_with_input_and_end_with_their_code(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        assert await container.run(["sh", "-c", "cat; echo bad >&2; exit 3"], input=b"said") == (3, b"said", b"bad\n")
        assert await container.run(["sh", "-c", "kill -9 $$"]) == (137, b"", b"")
        assert (await container.run(["no-such-program"])).code == 127

    with_container(podman, use)


def test_files_are_kept_from_one_call_to_the_next_and_carried_in_and_out(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        data = bytes(range(256)) * 1000
        await container.put("/app/deep/data", data)
        assert (await container.run(["sh", "-c", "cp app/deep/data app/copy; ln -s copy app/link"])).code == 0
        assert await container.get("/app/copy") == data
        assert await container.get("/app/link") == data
        with pytest.raises(FileNotFoundError, match="there is no /app/other"):
            await container.get("/app/other")
        with pytest.raises(FileNotFoundError, match="is no file"):
            await container.get("/app/deep")

    with_container(podman, use)


def test_a_program_that_takes_too_long_is_killed_with_what_it_has_started(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        with pytest.raises(TimeoutError, match=r"sh took longer than 1 s and was killed"):
            await container.run(["sh", "-c", "sh -c 'sleep 4321 & wait'"], timeout_s=1.0)
        left = await container.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"])
        assert b"sleep 4321" not in left.stdout

    with_container(podman, use)


def test_long_output_is_cut_and_says_so(podman: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandLine._attempt, "__kwdefaults__", {"input": b"", "max_bytes": 1000})

    async def use(container: EpisodeContainer) -> None:
        found = await container.run(["sh", "-c", "yes | head -c 3000"])
        assert found.stdout.endswith(b"\n[2000 more bytes]")
        assert len(found.stdout) == 1000 + len(b"\n[2000 more bytes]")

    with_container(podman, use)


def test_a_container_that_is_gone_fails_nobody_elses_fault(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        await podman.remove("container", container.name)
        await podman.remove("container", container.name)
        for call in (container.run(["true"]), container.put("/a", b""), container.get("/a")):
            with pytest.raises(ContainerFailed):
                await call

    with_container(podman, use)


def test_a_client_that_is_killed_in_mid_call_fails_the_container(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        call = asyncio.create_task(container.run(["sh", "-c", "echo > begun; sleep 60"]))
        while (await container.run(["test", "-e", "begun"])).code:
            pass
        os.kill(client_of(container.name, "sleep 60"), signal.SIGKILL)
        with pytest.raises(ContainerFailed, match="signal 9 ended it"):
            await call

    with_container(podman, use)


def client_of(name: str, words: str) -> int:
    """Process of the runtime's client below this one that runs these words in a container."""
    for pid in map(int, subprocess.check_output(["pgrep", "-P", str(os.getpid())]).split()):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if name in command and words in command:
            return pid
    raise AssertionError(f"no client runs {words}")


def test_a_snapshot_has_the_files_and_its_container_goes_on_from_them(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        image, second = f"localhost/{RUN_ID}:1", f"{container.name}-2"
        await container.run(["sh", "-c", "echo one > state"])
        await podman.snapshot(container.name, image, {SAVED: "1"})
        await container.run(["sh", "-c", "echo two > state"])
        assert await podman.has(image)
        await podman.start(second, image, SETTINGS, LABELS)
        assert await EpisodeContainer(podman.program, second, "").get("/state") == b"one\n"
        with pytest.raises(ContainerFailed, match=r"in use|being used"):
            await podman.remove("image", image)
        assert await ours(podman) == ["container", "container", "image"]

    with_container(podman, use)


def test_a_name_is_given_once_and_may_be_changed(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        with pytest.raises(ContainerFailed, match=r"run failed: .* in use"):
            await podman.start(container.name, IMAGE, SETTINGS, LABELS)
        await podman.rename(container.name, f"{container.name}-leased")
        renamed = EpisodeContainer(podman.program, f"{container.name}-leased", "")
        assert (await renamed.run(["true"])).code == 0

    with_container(podman, use)


def test_everything_that_carries_the_label_is_owned_and_reaped(podman: CommandLine) -> None:
    async def use(container: EpisodeContainer) -> None:
        for kind in ("volume", "network"):
            labels = [f"--label={key}={value}" for key, value in LABELS.items()]
            await podman._call(kind, "create", *labels, f"{RUN_ID}-{kind}", deadline_s=30.0)
        assert await ours(podman) == ["container", "network", "volume"]
        assert await reap(podman, of_this_test) == []
        assert await ours(podman) == []

    with_container(podman, use)


@stand_in_only
def test_anonymous_volumes_go_with_their_container(podman: CommandLine, tmp_path: Path) -> None:
    async def use(container: EpisodeContainer) -> None:
        about = next((tmp_path / "state" / "images").glob("*/about.json"))
        about.write_text(about.read_text().replace('"Volumes": []', '"Volumes": ["/data"]'))
        await podman.start("with-volume", IMAGE, SETTINGS, LABELS)
        assert len(list((tmp_path / "state" / "volumes").iterdir())) == 1
        await podman.remove("container", "with-volume")
        assert list((tmp_path / "state" / "volumes").iterdir()) == []

    with_container(podman, use)


@stand_in_only
def test_a_runtime_that_hangs_is_named(podman: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "CALL_S", 0.3)
    (tmp_path / "state" / "hangs").touch()

    with pytest.raises(ContainerFailed, match=r"podman ps did not answer within 0\.3 s: is its service stuck\?"):
        asyncio.run(podman.owned())


def test_without_a_runtime_there_is_a_sentence_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (docker := tmp_path / "docker").write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 1\n")
    docker.chmod(0o755)

    with pytest.raises(ConfigError) as refused:
        asyncio.run(chosen("auto"))

    assert "docker version failed: Cannot connect to the Docker daemon (exit code 1); podman: not installed" in str(
        refused.value
    )
    assert "install docker or podman or start its service, or remove [environment.container]" in str(refused.value)


def test_the_first_runtime_that_answers_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "state").mkdir()
    podman = runtime(tmp_path)

    assert asyncio.run(chosen("auto")) == podman
    assert asyncio.run(runtime_of(podman).check()).startswith("podman ")


def test_a_class_of_the_users_own_is_a_runtime(tmp_path: Path) -> None:
    (file := tmp_path / "mine.py").write_text(
        "class Mine:\n    program = ''\n    async def check(self):\n        return 'mine 1'\n"
    )

    assert asyncio.run(chosen(f"{file}:Mine")) == f"{file}:Mine"
    assert asyncio.run(runtime_of(f"{file}:Mine").check()) == "mine 1"


# ── owner ─────────────────────────────────────────────────────────────────────────────────────


def test_an_owner_is_dead_when_its_process_is_and_not_when_another_has_its_number() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = owner_of(process.pid)
        assert not is_dead(owner)
        process.kill()
    assert is_dead(owner)
    assert not is_dead(owner_of(os.getpid()))
    assert is_dead(owner_of(os.getpid()).rpartition("/")[0] + "/1")


def test_an_owner_is_judged_on_its_own_machine_alone_and_is_dead_after_its_restart() -> None:
    host, boot, namespace, pid, start = owner_of(os.getpid()).split("/")
    assert not is_dead(f"elsewhere/{boot}/{namespace}/{pid}/1")
    assert not is_dead(f"{host}/{boot}/0/{pid}/1")
    assert is_dead(f"{host}/before/{namespace}/{pid}/{start}")


def test_a_snapshot_of_a_dead_owner_is_left_once_no_reaper_keeps_it_any_more() -> None:
    dead = owner_of(os.getpid()).rpartition("/")[0] + "/1"
    image = Owned("image", "1", {OWNER: dead, SAVED: "1000.0"})

    assert is_left(Owned("container", "1", {OWNER: dead}), 1001.0)
    assert not is_left(image, 1001.0)
    assert is_left(image, 1000.0 + containers.STALE_S + 1)
    assert not is_left(Owned("container", "1", LABELS), 1001.0)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_ends_before_it_has_read_its_input_is_told_by_its_exit_code(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    runtime = CommandLine("/bin/false")
    with asyncio.Runner(loop_factory=make_loop) as runner:
        for _ in range(20):
            with pytest.raises(ContainerFailed, match=r"false image inspect base failed: exit code 1"):
                runner.run(runtime.has("base"))
            with pytest.raises(ContainerFailed, match=r"false cp failed: exit code 1"):
                runner.run(runtime.put("box", {"/data": bytes(1 << 20)}))
