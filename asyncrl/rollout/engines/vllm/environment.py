"""
Environment variables for vLLM's processes. vLLM has no other way to set these.

Each is a default: a variable that is set already keeps its value. They are set only while an engine starts, for its
processes to inherit, so nothing else in this process sees them.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from asyncrl.rollout.engines.vllm.guard import NODE_PID

DEFAULTS: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # every start warns a dozen times about defaults
    "PYTHONWARNINGS": "ignore::FutureWarning",  # torch's warnings about vLLM's own code
    "VLLM_NO_USAGE_STATS": "1",  # no telemetry
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would break the node's threads and sockets
}


def on_cpu(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise all engines of this machine bind to the same cores
        # Keep the buffers of a weight update for the next one: returning and reallocating them costs a quarter of the
        # pause.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "TORCHDYNAMO_DISABLE": "1",  # compiling one small function takes seconds and gains nothing
    }


@contextmanager
def environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set the ``defaults`` that are not set yet, and this process's id as `NODE_PID`, for the block."""
    added = {name: value for name, value in defaults.items() if name not in os.environ} | {NODE_PID: str(os.getpid())}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
