"""Tool ``shell``: commands in the container of the episode, which keeps what they do to its files."""

from __future__ import annotations

from asyncrl.environment import Container

MAX_CHARS = 1 << 14
"""Longest output of a command that the policy reads."""
SHARE = 0.8
"""Share of ``call_s`` after which a command is killed, so that its episode goes on."""


class ShellTool:
    """Runs one command a call; made for each episode, with its container."""

    def __init__(self, container: Container | None, call_s: float) -> None:
        self._container = container
        self._limit_s = SHARE * call_s

    async def shell(self, command: str) -> str:
        """
        Run a command with bash and return its output. Files are kept between calls; variables and the folder are not.

        Args:
            command: One or several lines for bash.
        """
        assert self._container is not None, "made with the container of the episode"
        try:
            code, stdout, stderr = await self._container.run(["bash", "-lc", command], timeout_s=self._limit_s)
        except TimeoutError:
            return f"[the command took longer than {self._limit_s:g} s and was killed]"
        output = (stdout + stderr).decode("utf-8", "replace")
        if len(output) > MAX_CHARS:
            kept = MAX_CHARS // 2
            left_out = len(output) - 2 * kept
            output = f"{output[:kept]}\n[{left_out} more characters]\n{output[-kept:]}"
        return output if code == 0 else f"{output}\n[exit code {code}]".lstrip()
