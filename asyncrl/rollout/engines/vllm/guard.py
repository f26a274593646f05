"""
End vLLM's processes when their node ends.

vLLM's engine core and workers survive the process that started them, and keep their memory and devices. Each worker
therefore waits for the node to end, and then kills itself and the engine core above it.
"""

import os
import select
import signal
import threading

NODE_PID = "ASYNCRL_NODE_PID"
"""Environment variable of an engine's processes: pid of the node."""


def follow_node() -> None:
    """Start a thread that kills this process, and its parent unless that is the node, once the node has ended."""
    if node := os.environ.get(NODE_PID):
        threading.Thread(target=_follow, args=(int(node),), name="asyncrl-guard", daemon=True).start()


def _follow(node: int) -> None:
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(node)
    except ProcessLookupError:
        pass  # The node has ended already.
    else:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)  # Readable once the node ends, even if its pid is reused.
        poll.poll()
    if parent != node and os.getppid() == parent != 1:  # The parent pid changes when the parent ends.
        os.kill(parent, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
