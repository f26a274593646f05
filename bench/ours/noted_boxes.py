"""
The environments of `bench/episode_kills.py`: hidden sums in each way of continuing, which note every turn they answer.

A note is a line of JSON in the file named by ``EPISODE_NOTES``: name of the episode, number of the turn, and its text.
"""

import json
import os
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from asyncrl.environment import Said, Step, Task
from examples import hidden_sums, hidden_sums_agent

NOTES = Path(os.environ["EPISODE_NOTES"])


def note(name: str, number: int, text: str) -> None:
    with NOTES.open("a") as file:
        file.write(json.dumps([name, number, text]) + "\n")


class Replayed(hidden_sums.Boxes):
    """Continued by its recorded turns."""

    def reset(self, task: Task) -> None:
        self._task = task.name
        super().reset(task)

    def step(self, said: Said) -> Step:
        note(self._task, self._num_turns, said.text)
        return super().step(said)


class Saved(Replayed):
    """Continued from its state."""

    resume = "snapshot"

    def snapshot(self) -> bytes:
        state = {key: value for key, value in vars(self).items() if key != "_chance"}
        return json.dumps(state).encode()

    def restore(self, task: Task, state: bytes) -> None:
        self.reset(task)
        self.__dict__.update(json.loads(state))


class Forgotten(Replayed):
    """Begun anew."""

    resume = "none"


class NotingServer(hidden_sums_agent.Server):
    """Connection of an agent program, which notes each turn that it gets."""

    name = ""

    def request(self, method: str, path: str, body: dict[str, Any]) -> Any:
        answer = super().request(method, path, body)
        if method == "POST":
            said = [message for message in body["messages"] if message["role"] == "assistant"]
            note(self.name, len(said), answer["choices"][0]["message"]["content"])
        return answer


async def solve(
    task: Any,
    client: Any,
    *,
    compact_every: int = 0,
    dialect: str = "chat",
    max_turns: int = hidden_sums_agent.MAX_TURNS,
) -> float:
    """An agent program, run again."""
    with closing(NotingServer(client.base_url, client.key)) as server:
        server.name = task.name
        ask = partial(hidden_sums_agent.DIALECTS[dialect], server)
        return await hidden_sums_agent.play(task, ask, compact_every, max_turns)


hidden_sums_agent.solve = solve

if __name__ == "__main__":
    hidden_sums_agent.main()
