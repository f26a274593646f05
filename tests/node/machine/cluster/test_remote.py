import asyncio
import shlex
import sys
import time
from pathlib import Path

import pytest

from asyncrl.node.machine.cluster.cluster_file import Machine
from asyncrl.node.machine.cluster.probe_messages import Answer, Facts, Look, NoAnswer
from asyncrl.node.machine.cluster.remote import ask

LOOK = Look(broker_host="127.0.0.1", broker_port=1)


def machine(run: str, program: str = "") -> Machine:
    return Machine(name="a", roles=["reward"], run=run, program=program)


def asked(run: str, program: str = "", deadline_s: float = 60.0) -> Answer | NoAnswer:
    return asyncio.run(ask(machine(run, program), LOOK, deadline_s))


def shell(script: str) -> str:
    """Prefix that runs a script in place of the command."""
    return shlex.join(["sh", "-c", script])


def test_a_machine_answers_through_its_prefix_after_a_greeting() -> None:
    greeting = shlex.join(["sh", "-c", 'echo "Welcome to node 1"; exec "$@"', "sh"])
    assert isinstance(asked(greeting), Facts)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (shell("echo Warning >&2; echo no such host >&2; exit 255"), "ended with exit code 255: no such host"),
        (shell("exit 0"), "ended with exit code 0"),
        (shell("echo '{}'"), "gave an answer that asyncrl here does not understand: Object missing required"),
        (shell("head -c 2000000 /dev/zero"), "gave an answer that asyncrl here does not understand"),
        ("/nonexistent/ssh", "cannot run `/nonexistent/ssh"),
    ],
)
def test_a_command_without_an_answer_is_described(run: str, reason: str) -> None:
    found = asked(run)
    assert isinstance(found, NoAnswer)
    assert reason in found.reason


def test_a_command_that_hangs_ends_at_its_deadline_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    found = asked(shell(f"echo locked >&2; sleep 1000 & echo $! > {pid_file}; wait"), deadline_s=1.0)
    assert isinstance(found, NoAnswer)
    assert found.reason.endswith("gave no answer within 1 s: locked")
    child = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    deadline_s = time.monotonic() + 20.0
    while not is_dead(child):  # The kernel delivers SIGKILL when it comes to it.
        assert time.monotonic() < deadline_s, child.read_text()


def is_dead(stat: Path) -> bool:
    """True for a process that is gone, or a zombie."""
    try:
        return stat.read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_question_is_not_on_the_command_line() -> None:
    program = shlex.join([sys.executable, "-c", "import sys; sys.exit(' '.join(sys.argv[1:]))"])
    found = asked("", program)
    assert isinstance(found, NoAnswer)
    assert found.reason.endswith("ended with exit code 1: doctor --probe")
