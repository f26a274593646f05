"""
Upper bound of the clipped loss for old trajectories.

    ratio    1 ──── 1.28 ─────────────────────────── 5
             │ the updates of one batch             │
             │ S versions of learning since a trajectory was sampled

A bound of 1.28 is meant for the few updates of one batch. The ratio of a trajectory that is S versions old covers S
versions, so with that bound a token could become at most 1.28 times as likely in all of them, and learning is slow.
bench/RESULTS.md has the runs that this rests on.
"""

from msgspec.structs import replace

from asyncrl.config.catalogue import LOSSES, loss_entry
from asyncrl.config.config import Config
from asyncrl.config.correction import resolved
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.plug_in import is_path

OLD = 4
"""``schedule.staleness`` from which on trajectories are old; ``auto`` may reach it."""
WIDE = 4.0
"""Default of ``algorithm.clip_high`` for them."""


def is_widened(config: Config) -> bool:
    """True if ``clip_high`` is not set, and bounds the ratio to the policy that sampled old trajectories."""
    staleness = config.schedule.staleness
    is_old = staleness == "auto" or staleness >= OLD
    return is_old and config.algorithm.clip_high is None and clips_to_sampler(config.algorithm)


def clips_to_sampler(algorithm: Algorithm) -> bool:
    """True if the loss clips the ratio to the policy that sampled."""
    if is_path(algorithm.loss) or loss_entry(algorithm.loss).function != LOSSES["clipped"].function:
        return False
    return resolved(algorithm.correction).mode == "bypass"


def with_clip_high(config: Config) -> Algorithm:
    """``algorithm`` with the default of ``clip_high`` for old trajectories, where it applies."""
    return replace(config.algorithm, clip_high=WIDE) if is_widened(config) else config.algorithm
