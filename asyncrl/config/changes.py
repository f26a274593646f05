"""Settings that may change between two starts of one run."""

import msgspec

from asyncrl.config.config import Config, leaves
from asyncrl.errors import ConfigError

MAY_CHANGE = (
    "run.dir", "run.name", "run.share_with_group", "run.skip_steps", "broker.", "supervisor.", "trackers.",
    "checkpoint.", "rollout.", "weights.", "reward.workers", "reward.timeout_s", "trainer.nodes", "trainer.min_nodes",
    "trainer.wait_s", "trainer.ranks", "trainer.shard_size", "trainer.sequence_parallel", "trainer.expert_parallel",
    "trainer.collective_timeout_s", "evaluation.answers",
)  # fmt: skip
"""Settings, and beginnings of settings, that do not change what the records of a run mean."""
STEPS = "run.steps"


def changed(recorded: Config, now: Config) -> dict[str, object]:
    """
    Values that differ from those the run was recorded with, by setting.

    Raises:
        ConfigError: One of them may not change: the records would mean something else.
    """
    before, after = (dict(leaves(msgspec.to_builtins(config))) for config in (recorded, now))
    differing = [
        key for key in (*before, *(key for key in after if key not in before)) if before.get(key) != after.get(key)
    ]
    for key in differing:
        if key == STEPS:
            if now.run.steps < recorded.run.steps:
                raise ConfigError(
                    f"run.steps is {now.run.steps}, but this run was created with {recorded.run.steps}: a run can be "
                    f"extended, not shortened"
                )
        elif not key.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{key} is {after.get(key)!r}, but this run was created with {before.get(key)!r}: give the same value, "
                f"or start a new run in another --run-dir"
            )
    return {key: after.get(key) for key in differing}
