import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.cli.operate import stacks as module
from asyncrl.cli.operate.stacks import ask, from_log, pid_of
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError, LinkError
from asyncrl.messages.supervisor import Stacks, StacksWanted
from asyncrl.observe.run_directory import RunDirectory
from tests.cli.operate.conversation import with_broker


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory.create(tmp_path, "tiny")
    directory.logs.mkdir(exist_ok=True)
    return directory


async def asked(*answers: Stacks) -> str:
    async def command(run: RunAddress) -> str:
        return await ask(run, "rollout-0")

    return (await with_broker(command, {StacksWanted: answers}))[0]


def test_the_answer_of_the_node_is_the_text() -> None:
    assert asyncio.run(asked(Stacks("rollout-0", "thread MainThread"))) == "thread MainThread"


def test_a_wrong_name_is_an_error_with_the_brokers_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no node"):
        asyncio.run(asked(Stacks("rollout-0", "", "there is no node rollout-0")))


def test_a_node_that_does_not_answer_is_said_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.cli.operate.session.ANSWER_S", 0.1)
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    with pytest.raises(LinkError, match=r"rollout-0 did not answer within 0\.1 s: its event loop hangs"):
        asyncio.run(asked())


HANGS = """
import time
from asyncrl.node.process.service_manager import show_stacks_on_abort
show_stacks_on_abort()
def a_loop_that_hangs():
    print("hangs", flush=True)
    time.sleep(60)
a_loop_that_hangs()
"""


@pytest.fixture
def hanging(directory: RunDirectory) -> Iterator["subprocess.Popen[str]"]:
    """A process that looks like a node and never answers; its errors go to the log of rollout-0."""
    command = [sys.executable, "-c", HANGS, "asyncrl.cli.node"]
    with (directory.logs / "rollout-0.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout
    assert process.stdout.readline() == "hangs\n"
    directory.append_event("node.joined", node="rollout-0", role="rollout", incarnation=f"18eafaf-{process.pid}")
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_that_hangs_writes_its_threads_to_its_log(
    directory: RunDirectory, hanging: "subprocess.Popen[str]"
) -> None:
    assert pid_of(directory, "rollout-0") == hanging.pid
    assert "in a_loop_that_hangs" in from_log(directory, "rollout-0", "it hangs")
    assert hanging.poll() is None, "and goes on"


def test_another_process_that_has_the_number_by_now_is_left_alone(directory: RunDirectory) -> None:
    directory.append_event("node.joined", node="rollout-0", role="rollout", incarnation=f"18eafaf-{os.getpid()}")
    (directory.logs / "rollout-0.log").touch()
    assert pid_of(directory, "rollout-0") is None
    with pytest.raises(LinkError, match="it hangs; its process is not one of this machine"):
        from_log(directory, "rollout-0", "it hangs")


def test_a_process_that_cannot_write_either_is_reported_in_time(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "pid_of", lambda *_: 7)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    (directory.logs / "broker-0.log").touch()
    times = iter([0.0, 1.0, 9.0])
    with pytest.raises(LinkError, match=r"process 7 wrote nothing to .*broker-0\.log within 3 s either"):
        from_log(directory, "broker", "it hangs", sleep=lambda _: None, clock=lambda: next(times))
    assert sent == [(7, signal.SIGUSR2)]


def test_the_number_of_a_broker_is_in_its_lock(directory: RunDirectory) -> None:
    directory.lock.write_text("no number")
    assert pid_of(directory, "broker") is None
    assert pid_of(directory, "never-joined") is None
