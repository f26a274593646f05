"""
Verdicts within their limits: of a reward (`asyncrl.checks.reward_limits`), and of the bytes that a step has room for.
"""

from asyncrl.checks import reward_limits
from asyncrl.client.chunks import max_verdict_bytes, verdict_bytes
from asyncrl.config.config import Config
from asyncrl.messages.reward import ScoredItem
from asyncrl.messages.rollout import Failed

LARGEST_BYTES = reward_limits.MAX_METRICS * (reward_limits.MAX_NAME_CHARS + 10) * 4
"""Bytes that the limits of a reward allow; only a step of many thousand trajectories allows less."""


class VerdictLimits:
    def __init__(self, config: Config) -> None:
        self._num_trajectories = config.trajectories_per_step
        self.max_bytes = max_verdict_bytes(config.trajectories_per_step)
        """Bytes of the metrics and the answer of one verdict."""

    def failure(self, item: ScoredItem) -> Failed | None:
        """Failure of a verdict that is beyond the limits; None if it is within."""
        if problem := reward_limits.problem_of(item.reward, item.metrics, item.answer):
            return Failed(item.unit, item.lease_id, "reward", problem, retryable=True)
        if self.max_bytes < LARGEST_BYTES and (size := verdict_bytes(item)) > self.max_bytes:
            reason = (
                f"the verdict has {size} bytes of metrics and answer, but at most {self.max_bytes} are allowed where "
                f"a step has {self._num_trajectories} trajectories; return fewer or shorter ones"
            )
            return Failed(item.unit, item.lease_id, "reward", reason, retryable=False)
        return None
