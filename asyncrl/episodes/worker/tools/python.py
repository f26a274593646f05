"""Tool ``python``: one program a call, in the sandbox of `asyncrl.workers.sandbox`."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from asyncrl.episodes.worker.tools import ToolFailure
from asyncrl.errors import ConfigError, SandboxError
from asyncrl.workers.sandbox import Sandbox, SandboxLimits

SETTING = "environment.tools"
MAX_CHARS = 1 << 14
"""Longest output of a program that the policy reads."""
CPU_S = 4
WALL_S = 8.0


class PythonTool:
    """Runs as many programs at once as there are cores; others wait for at most half of ``call_s``."""

    def __init__(self, sandbox: Sandbox, call_s: float) -> None:
        self._sandbox = sandbox
        self._limits = SandboxLimits(cpu_s=CPU_S, wall_s=min(WALL_S, call_s / 3))
        self._patience_s = call_s / 2
        self._cores = os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self._cores, thread_name_prefix="sandbox")
        self._free: asyncio.Semaphore | None = None
        """Made by the first call: before Python 3.10 it belongs to the loop that is there when it is made."""

    @classmethod
    def find(cls, *, is_confined: bool, call_s: float) -> PythonTool:
        """Use the strictest sandbox of this machine; raises `ConfigError` without one, or without walls if wanted."""
        found = Sandbox.find()
        if found is None:
            raise ConfigError(f"{SETTING}: 'python' cannot run a program on this machine")
        if is_confined and not found.has_namespaces:
            raise ConfigError(
                f"{SETTING}: 'python' has no walls here, because the kernel gives no namespaces (most containers "
                f"forbid unshare): programs would have network access; allow it, or name 'python_unconfined'"
            )
        return cls(found, call_s)

    async def python(self, code: str) -> str:
        """
        Run a Python program and return what it prints. Each call is a new program: nothing is kept between calls.

        Args:
            code: The whole program; print what you want to know.
        """
        free = self._free = self._free or asyncio.Semaphore(self._cores)
        try:
            await asyncio.wait_for(free.acquire(), self._patience_s)
        except TimeoutError as error:
            raise ToolFailure(f"no core was free for a program within {self._patience_s:g} s") from error
        running = asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: self._sandbox.run(code, "", self._limits, with_errors=True)
        )
        running.add_done_callback(lambda _: free.release())
        try:
            result = await asyncio.shield(running)
        except SandboxError as error:
            raise ToolFailure(str(error)) from error
        output = result.output
        if len(output) > MAX_CHARS:
            output = f"{output[:MAX_CHARS]}\n[{len(output) - MAX_CHARS} more characters]"
        if result.succeeded:
            return output
        limits = f"{self._limits.cpu_s} s of CPU, {self._limits.wall_s:g} s, {self._limits.memory_bytes >> 20} MiB"
        return f"{output}\n[the program failed, or exceeded {limits}]".lstrip()
