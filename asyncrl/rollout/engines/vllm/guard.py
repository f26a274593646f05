"""
No engine outlives its node.

vLLM's engine core and its workers do not end when the process that started them is killed: they keep their memory, and
their devices. So each worker waits for the node to end, and then ends itself and the engine core above it.
"""

import os
import select
import signal
import threading

NODE_PID = "ASYNCRL_NODE_PID"
"""Environment of an engine's processes: who started it."""


def follow_node() -> None:
    """End this process and its parent, if that is not the node itself, as soon as the node has ended."""
    if node := os.environ.get(NODE_PID):
        threading.Thread(target=_follow, args=(int(node),), name="asyncrl-guard", daemon=True).start()


def _follow(node: int) -> None:
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(node)
    except ProcessLookupError:
        pass  # It ended before we could look.
    else:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)  # Readable once the process has ended, whoever reuses its number.
        poll.poll()
    if parent != node and os.getppid() == parent != 1:  # Somebody else is our parent once ours has ended.
        os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
