"""
Environments of other libraries, as the worker calls them.

    skyrl-gym    init(prompt) -> (prompt, info)    step(text) -> {"observations", "reward", "done", ...}    close()
    textarena    reset(num_players, seed)    get_observation() -> (player, text)    step(text) -> (done, info)
                 close() -> (rewards, info)

They are told by their methods. A game of several players is not one: the policy would play against itself.
"""

from __future__ import annotations

from typing import Any

from asyncrl.environment import Said, Step, Task
from asyncrl.environment.worker.values import BadValue, shown
from asyncrl.messages.number import number

POLICY = 0
"""Player of textarena that the policy is."""


def adapted(environment: Any) -> Any:
    """Return an environment with ``reset`` and ``step`` of asyncrl's form; raises `BadValue` if it has none of them."""
    methods = {name for name in ("reset", "init", "step", "get_observation") if callable(getattr(environment, name, 0))}
    if {"init", "step"} <= methods and "reset" not in methods:
        return SkyRLGym(environment)
    if {"reset", "step", "get_observation"} <= methods:
        return TextArena(environment)
    if {"reset", "step"} <= methods:
        return environment
    raise BadValue(f"{shown(environment)} is no environment: expected the methods reset and step")


class SkyRLGym:
    """A ``skyrl_gym.Env``."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment

    def reset(self, task: Task) -> list[dict[str, Any]]:
        """Return the messages that ``init`` has added to the prompt."""
        prompt, _ = self._environment.init(list(task.messages))
        if prompt[: len(task.messages)] != task.messages:
            raise BadValue("init changed the prompt, expected that it only adds messages: put that into the rows")
        return list(prompt[len(task.messages) :])

    def step(self, said: Said) -> Step:
        answer = self._environment.step(said.text)
        return Step(messages=list(answer["observations"]), reward=answer["reward"], done=bool(answer["done"]))

    def score(self) -> dict[str, float]:
        """Return the numbers of ``get_metrics``; the reward stays the sum of the steps."""
        metrics: dict[str, Any] = getattr(self._environment, "get_metrics", dict)()
        found = {name: number(value) for name, value in metrics.items()}
        return {name: value for name, value in found.items() if value is not None}

    def close(self) -> None:
        self._environment.close()


class TextArena:
    """A ``textarena.Env`` for one player."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._rewards: Any = None

    def reset(self, task: Task) -> list[dict[str, Any]]:
        self._environment.reset(num_players=1, seed=task.seed)
        return self._observation()

    def step(self, said: Said) -> Step:
        done, _ = self._environment.step(said.text)
        return Step(done=True) if done else Step(messages=self._observation())

    def score(self) -> Any:
        """Return the player's reward, 0 in a game that was not ended."""
        return (self._finish() or {}).get(POLICY, 0.0)

    def close(self) -> None:
        self._finish()

    def _finish(self) -> Any:
        if self._environment is not None:
            ended = self._environment.close()
            self._environment = None
            self._rewards = ended[0] if isinstance(ended, tuple) else ended
        return self._rewards

    def _observation(self) -> list[dict[str, Any]]:
        _, seen = self._environment.get_observation()
        text = seen if isinstance(seen, str) else "\n".join(str(part[1]) for part in seen)
        return [{"role": "user", "content": text}]
