"""
Interface between an episode and the processes that run its environment.

    Environments.open(name) ─▶ EnvironmentEpisode:  reset ─▶ step ─▶ step ─▶ score ─▶ close
                                                    solve                        ─▶ close      an agent program

`asyncrl.episodes.pool.EnvironmentPool` implements it. Every method raises `EnvironmentFailed`: the code raised, hung
for longer than ``environment.call_s``, or its process is lost. ``retryable`` says whether another attempt may succeed.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from asyncrl.engine import ChatMessage, PolicyTurn
from asyncrl.errors import ConfigError
from asyncrl.messages.session import ContainerCounts

SHOWN = 5
"""Most tools that a message names."""

Resume = Literal["replay", "snapshot", "rerun", "none"]
"""
Way in which an episode is continued after its worker or its node is lost. ``replay``: reset with the same seed, and the
recorded turns again. ``snapshot``: the saved state is restored. ``rerun``: an agent program runs again, and gets
recorded answers as long as it asks the same. ``none``: the episode begins anew.
"""


Reward = float | list[float]
"""A number, or one for each seat."""


class Description(Struct, frozen=True, kw_only=True):
    """The environment, as its workers found it at their start."""

    kind: Literal["steps", "solve", "command"]
    """A class with steps (or tools), a function ``solve``, or a program."""
    resume: Resume = "none"
    tools: list[dict[str, Any]] = []
    """``{"type": "function", "function": {"name", "description", "parameters"}}`` for each tool."""


class TaskInput(Struct, frozen=True, kw_only=True):
    """See `asyncrl.environment.Task`."""

    messages: list[ChatMessage]
    answer: str = ""
    data_source: str = ""
    extra: dict[str, Any] = {}
    seed: int = 0
    name: str = ""
    images: Sequence[bytes] = ()
    tools: list[dict[str, Any]] = []


def check_row_tools(names: Iterable[str], description: Description) -> None:
    """Raise `ConfigError` if rows show tools that an environment with tools does not have."""
    known = {tool["function"]["name"] for tool in description.tools}
    if known and (unknown := sorted(set(names) - known)):
        raise ConfigError(
            f"the rows have tools that nothing in [environment] runs, {', '.join(unknown[:SHOWN])}: it has "
            f"{', '.join(sorted(known)[:SHOWN])}; add them there, or take them out of data.tools_column"
        )


class Answer(Struct, frozen=True, kw_only=True):
    """Answer to ``reset`` or ``step``; see `asyncrl.environment.Step`."""

    messages: list[ChatMessage] = []
    reward: Reward = 0.0
    done: bool = False
    restart: bool = False
    seat: int = 0


class Score(Struct, frozen=True, kw_only=True):
    """The environment's word on the whole episode."""

    reward: Reward | None = None
    """None leaves the sum of the rewards of the steps; a number is that of every seat."""
    metrics: dict[str, float] = {}


class EnvironmentDiverged(Exception):
    """The environment is not where the record of the episode ends, and cannot be brought there: it begins anew."""


class EnvironmentEpisode(Protocol):
    """The environment of one episode. One method runs at a time."""

    async def reset(self, task: TaskInput, /) -> Answer:
        """Begin; called once, or once more to replay."""

    async def step(self, said: PolicyTurn, /) -> Answer:
        """Answer one turn of the policy."""

    async def score(self) -> Score:
        """Judge the episode after its last turn, also one that was cut off."""

    async def snapshot(self) -> bytes:
        """State after the last step, for `restore` on any node; only with ``resume = "snapshot"``."""

    async def restore(self, task: TaskInput, state: bytes, /) -> None:
        """Continue from a snapshot, instead of `reset`; raises `EnvironmentDiverged` if it cannot be had here."""

    async def solve(self, task: TaskInput, base_url: str, key: str, /) -> Score:
        """Run an agent program to its end. Not limited by ``call_s``: the caller has ``episode_s``."""

    async def close(self) -> None:
        """End the episode and free what it holds; never raises, and returns within seconds. Idempotent."""


class Environments(Protocol):
    """All environments of a rollout."""

    @property
    def description(self) -> Description:
        """Description on which all workers agree."""

    @property
    def containers(self) -> ContainerCounts | None:
        """Containers of the episodes; None without ``[environment.container]``."""

    def open(self, name: str, /) -> EnvironmentEpisode:
        """An episode on the worker that has fewest."""

    async def aclose(self) -> None:
        """Kill all workers and what they have started. Idempotent."""
