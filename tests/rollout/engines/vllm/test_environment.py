"""Variables and the end of vLLM's processes, without vLLM."""

import os
import select
import signal
import subprocess
import sys

import pytest

from asyncrl.rollout.engines.vllm.environment import environment


def test_variables_are_defaults_in_force_for_the_block_alone(monkeypatch):
    monkeypatch.setenv("SET_BY_THE_USER", "theirs")
    monkeypatch.delenv("UNSET", raising=False)

    with environment({"SET_BY_THE_USER": "ours", "UNSET": "ours"}):
        assert (os.environ["SET_BY_THE_USER"], os.environ["UNSET"]) == ("theirs", "ours")
        assert os.environ["ASYNCRL_NODE_PID"] == str(os.getpid())

    assert os.environ["SET_BY_THE_USER"] == "theirs"
    assert "UNSET" not in os.environ
    assert "ASYNCRL_NODE_PID" not in os.environ


# ── test guard ────────────────────────────────────────────────────────────────────────────────
# vLLM's processes end with their node.

FOLLOW = "from asyncrl.rollout.engines.vllm.guard import follow_node; follow_node()"
WORKER = f"{FOLLOW}; import time; print('up', flush=True); time.sleep(60)"
CORE = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKER!r}])"
NODE = """
import os, subprocess, sys
os.environ["ASYNCRL_NODE_PID"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""


def ends(pid: int) -> bool:
    """True if the process ends within 20 s. Not fooled by a reused pid."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(20_000))


@pytest.mark.parametrize("child", [WORKER, CORE], ids=["a worker", "an engine core and its worker"])
def test_an_engine_ends_when_its_node_is_killed(child):
    command = [sys.executable, "-c", NODE, child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout
        said = {node.stdout.readline().strip(), node.stdout.readline().strip()}
        (pid,) = (int(line) for line in said - {"up"})
        node.send_signal(signal.SIGKILL)
        assert ends(pid)
        assert node.stdout.read() == "", "no process holds its output open"


def test_without_a_node_there_is_no_thread():
    script = f"{FOLLOW}; import threading; print(threading.active_count())"
    environment = {name: value for name, value in os.environ.items() if name != "ASYNCRL_NODE_PID"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
