"""
Environment variables that vLLM's processes start with. vLLM has no other way to set these.

Each is a default: whoever has set it already is left alone. They are in force only while an engine starts, for its
processes to inherit, so that nothing else in this process sees them.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from asyncrl.rollout.engines.vllm.guard import NODE_PID

DEFAULTS: Mapping[str, str] = {
    "VLLM_LOGGING_LEVEL": "ERROR",  # every start warns a dozen times about what nobody chose
    "PYTHONWARNINGS": "ignore::FutureWarning",  # torch's to vLLM, not to us
    "VLLM_NO_USAGE_STATS": "1",  # a run tells nobody about itself
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # the node has threads and sockets, which a fork would break
}


def on_cpu(threads: int) -> dict[str, str]:
    """What else an engine on a CPU needs."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every engine of this machine binds itself to the same cores
        # Memory that new weights pass through is kept for the next ones: giving it back and taking it again costs a
        # quarter of the pause.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "TORCHDYNAMO_DISABLE": "1",  # compiles one small function at the first token, for seconds, and gains nothing
    }


@contextmanager
def environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Those of ``defaults`` that are not set, and who we are, until the block ends."""
    added = {name: value for name, value in defaults.items() if name not in os.environ} | {NODE_PID: str(os.getpid())}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
