"""
A serving process and the rollout attached to it: users' requests go in, the rollout's health comes out.

    waiting_for_broker ─▶ joining ─▶ rolling_out ◀─▶ paused_for_users          ended
            ▲                └───────────┴── the broker is lost                  ▲
            └─────────────────────────────────┘           from each: cancelled, failed, or the run is over
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from msgspec import Struct

from asyncrl.rollout.generations import Generations
from asyncrl.rollout.user_requests import UserRequests

State = Literal["waiting_for_broker", "joining", "rolling_out", "paused_for_users", "ended"]


class RolloutHealth(Struct, frozen=True, kw_only=True):
    """State of a rollout at one moment."""

    state: State
    """``waiting_for_broker`` also before `attach` is called; ``joining`` until the first weights have come."""
    since_s: float
    """`time.monotonic` at which the state began."""
    policy_version: int = -1
    """Version the engine decodes with; -1 before the first weights."""
    in_hand: int = 0
    """Trajectories that are being sampled, wait for users' requests to end, or wait to be stored."""
    num_tokens: int = 0
    """Tokens of finished completions since `attach` was called."""
    last_error: str = ""
    """Latest error, from which the rollout may have recovered; empty if there was none."""


class Host:
    """
    The serving process of one `attach`. All methods may be called from any thread.

    Args:
        grace_s: Seconds without a user's request after which the rollout continues.
        hand_back_s: Seconds of users' requests without such a break after which the rollout leaves the run, and other
            rollouts continue its trajectories. It joins again in the next break.
    """

    def __init__(
        self, *, grace_s: float = 0.05, hand_back_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.hand_back_s = hand_back_s
        self.users = UserRequests(grace_s, clock)
        self._clock = clock
        self._state: tuple[State, float] = ("waiting_for_broker", clock())
        self._last_error = ""
        self._generations: Generations | None = None
        self._earlier_tokens = 0

    def user_request(self) -> AbstractContextManager[None]:
        """Mark a user's request as in hand for the time of a ``with`` block: the rollout makes way. Never raises."""
        return self.users.request()

    @property
    def health(self) -> RolloutHealth:
        """The rollout's health now; costs microseconds."""
        generations, (state, since_s) = self._generations, self._state
        if state == "rolling_out" and not self.users.is_idle:
            state, since_s = "paused_for_users", max(since_s, self.users.since_s)
        elif state == "rolling_out":
            since_s = max(since_s, self.users.since_s)
        return RolloutHealth(
            state=state,
            since_s=since_s,
            policy_version=generations.policy_version if generations else -1,
            in_hand=generations.num_in_hand if generations else 0,
            num_tokens=self._earlier_tokens + (generations.num_tokens if generations else 0),
            last_error=self._last_error,
        )

    # ── called by attach ────────────────────────────────────────────────────────────────────

    def enter(self, state: State) -> None:
        if state != self._state[0]:
            self._state = state, self._clock()

    def failed(self, error: BaseException) -> None:
        self._last_error = f"{type(error).__name__}: {error}"

    def rolls_out(self, generations: Generations | None) -> None:
        """Show what is in hand of ``generations``; None after their end."""
        if self._generations:
            self._earlier_tokens += self._generations.num_tokens
        self._generations = generations
