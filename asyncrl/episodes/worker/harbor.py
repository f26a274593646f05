"""
The environment of rows that `asyncrl data prepare harbor` wrote: a shell in the task's container, then its verifier.

    [environment]
    function = "asyncrl.episodes.worker.harbor:Harbor"
    call_s = 900                           # more than the longest verifier

    [environment.container]
    image = "row"

The tests come into the container after the last turn. The reward is what ``tests/test.sh`` writes to
/logs/verifier/reward.txt or reward.json; of Terminal-Bench, whether run-tests.sh ends with exit code 0. A verifier that
tells no reward has failed, which is no reward of zero.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.environment import Container, Said, Step, Task
from asyncrl.episodes.worker.tools.shell import ShellTool

TESTS, LOGS = "/tests", "/logs/verifier"
SHOWN = 300


class Harbor:
    """
    One task in its container.

    Args:
        command_s: Seconds of one command of the policy.
    """

    resume = "container"
    tools = [ShellTool.shell]

    def __init__(self, command_s: float = 60.0) -> None:
        self._command_s = command_s

    async def reset(self, task: Task) -> None:
        if task.container is None:
            raise ValueError("tasks of Harbor need [environment.container] with image = 'row'")
        self._container: Container = task.container
        self._row = task.extra
        self._shell = ShellTool(task.container, self._command_s)

    async def step(self, said: Said) -> Step:
        """Run the commands of a turn; one without any ends the episode."""
        if not said.tool_calls:
            return Step(done=True)
        messages = []
        for call in said.tool_calls:
            content = f"error: {call.problem or 'expected a call of shell with one text: command'}"
            if call.name == "shell" and not call.problem and isinstance(call.arguments.get("command"), str):
                content = await self._shell.shell(call.arguments["command"])
            messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content})
        return Step(messages)

    async def score(self) -> Any:
        """Copy the tests into the container, run them, and read the reward."""
        task, verifier = Path(self._row["task"]), Path(self._row["verifier"])
        await self._container.run(["rm", "-rf", TESTS, LOGS])  # nothing that the policy has put there counts
        await self._container.run(["mkdir", "-p", TESTS, LOGS])
        for path in sorted(path for path in (task / "tests").rglob("*") if path.is_file()):
            await self._container.put(f"{TESTS}/{path.relative_to(task / 'tests')}", path.read_bytes())
        script = f"{TESTS}/{verifier.name}"
        await self._container.put(script, (task / verifier).read_bytes())
        command = ["env", f"TEST_DIR={TESTS}", "bash", script]
        code, stdout, stderr = await self._container.run(command, timeout_s=float(self._row["verifier_s"]))
        if verifier.name != "test.sh":
            return float(code == 0)
        for name in ("reward.json", "reward.txt"):
            try:
                told = (await self._container.get(f"{LOGS}/{name}")).decode()
            except FileNotFoundError:
                continue
            return json.loads(told) if name.endswith("json") else float(told)
        said = (stdout + stderr).decode("utf-8", "replace").strip()[-SHOWN:]
        raise ValueError(f"{verifier} ended with exit code {code} and wrote no reward to {LOGS}: {said}")

    async def snapshot(self) -> bytes:
        return b""

    async def restore(self, task: Task, state: bytes) -> None:
        await self.reset(task)
