"""Settings of the window: groups, staleness and filters."""

import math
from typing import Annotated, Literal

from asyncrl.config.sections.section import LIVE, Count, Natural, NonNegative, Positive, Section
from asyncrl.errors import ConfigError

AUTO_START = 1.0
"""``schedule.staleness`` of a run that starts with ``auto``."""


class Schedule(Section, frozen=True, kw_only=True):
    """Limits on how far rollouts run ahead of the trainer. asyncrl/broker/groups/admission.py has the proof."""

    groups_per_step: Count = 16
    """P, prompt groups that one optimizer step consumes [ppo_mini_batch_size x require_batches]."""
    group_size: Count = 8
    """n, trajectories per prompt; most advantages compare them with each other [rollout.n]."""
    steps_per_publish: Count = 1
    """T, optimizer steps between two published policy versions [trigger_parameter_sync_step]."""
    staleness: Annotated[NonNegative | Literal["auto"], LIVE] = 1.0
    """
    S: at most floor((1 + S) P T) groups are open; 0 is synchronous, 1 one publish ahead [staleness_threshold]. Set
    live, it bounds the groups admitted from then on. ``auto``: a run starts with 1, and the broker sets the least of
    0, .5, 1, 2 and 4 that is about as fast as the fastest, by a plan fitted to the run's own times.
    """
    order: Literal["fifo", "windowed", "completion"] = "fifo"
    """
    Complete groups that a step takes first: the oldest (``fifo``), the oldest but past slow ones (``windowed``), or the
    first to finish (``completion``). With ``staleness`` the latter is over-sampling: more prompts are sampled than a
    step consumes, and it takes those that finish first.
    """
    order_window: Count | None = None
    """
    R, with ``order = "windowed"``: a step takes complete groups of the R oldest slots of the line of admitted groups,
    so at most R - 1 younger groups pass a slow one. 1 is ``fifo``; the bound on staleness grows by R - 1 groups. Unset:
    as many as ``max_staleness`` allows with ``on_straggler = "wait"``, otherwise 1 + S times those that may be open at
    once, and at least twice: what is trained while the slowest of lengths spread 50x is sampled.
    """
    max_staleness: Natural | None = None
    """L: a group is trained on at most L versions after the one it was admitted at. Unset: no limit."""
    on_straggler: Literal["wait", "reissue", "train", "mask"] = "wait"
    """
    Handling of groups about to exceed ``max_staleness``. ``wait``: a step waits and takes them in time. ``reissue``:
    sample them again. ``train``: train on them all the same and count them (``over_max_staleness``). ``mask``: train on
    their newer tokens alone; the policy reads the older ones, and they are in no loss and in no mean.
    """
    filter: Literal["none", "zero_variance"] = "none"
    """``zero_variance``: drop a group of equal rewards and admit another one [filter_groups.enable]."""
    filter_metric: str = ""
    """Metric of the verdict that the filter compares, such as ``correct``; empty: the reward [filter_groups.metric]."""
    filter_patience: Natural = 0
    """Filtered groups in a row that end the run; 0: 16 windows, at least 256 [filter_groups.max_num_gen_batches]."""
    partial_rollout: bool | Literal["turn"] = True
    """
    Load new weights between two decode steps of running completions. False finishes those first, whole episodes with an
    ``[environment]``; ``"turn"`` finishes the running turn of each episode, whose next turn has the new weights.
    """
    max_attempts: Count = 3
    """
    Failures of one trajectory after which it becomes a dead letter. Its group goes on without it if its reward or its
    environment failed and the estimator can use what is left; otherwise the group is dropped. Both are counted.
    """
    lease_s: Positive = 120.0
    """Seconds after which a lease that its node does not renew by heartbeats is given to another node."""

    @property
    def kept_max_staleness(self) -> int | None:
        """``max_staleness`` if no older group is trained on; None if there is no such bound."""
        return self.max_staleness if self.on_straggler in ("wait", "reissue") else None

    @property
    def staleness_bound(self) -> float:
        """S as a number; with ``auto`` the one that a run starts with."""
        return AUTO_START if self.staleness == "auto" else self.staleness

    @property
    def window(self) -> int:
        """Maximum number of groups admitted and not yet retired: ``floor((1 + S) P T)``."""
        return int((1 + self.staleness_bound) * self.groups_per_step * self.steps_per_publish + 1e-9)

    @property
    def reach(self) -> int | None:
        """Slots of the line that a step takes groups from, ``order_window`` if it is set; None without a limit."""
        match self.order:
            case "fifo":
                return 1
            case "completion":
                return None
        if self.order_window is not None:
            return self.order_window
        if self.max_staleness is None or self.on_straggler != "wait":
            return int(max(2.0, 1.0 + self.staleness_bound) * self.window + 1e-9)
        return max(1, self.reach_within(self.max_staleness))

    def reach_within(self, max_staleness: int) -> int:
        """Largest ``order_window`` whose bound is ``max_staleness``; below 1 if even ``fifo`` may exceed it."""
        return (max_staleness + 1) * self.groups_per_step * self.steps_per_publish - self.window + 1

    @property
    def most_versions_by_order(self) -> int | None:
        """Bound on staleness that ``order`` keeps by itself; None without. asyncrl/broker/ledger/state.py."""
        if self.reach is None:
            return None
        return (self.window + self.reach - 2) // (self.groups_per_step * self.steps_per_publish)

    def check_staleness(self) -> None:
        """Raise `ConfigError` if ``max_staleness`` is not kept, or ``on_straggler`` is without effect."""
        limit, mode = self.max_staleness, self.on_straggler
        if limit is None:
            if mode != "wait":
                raise ConfigError(f"schedule.on_straggler={mode!r} is only read with schedule.max_staleness; set it")
            return
        # Every group open at one version is consumed before version + limit + 1: asyncrl/broker/groups/batches.py.
        is_kept = self.window <= (limit + 1) * self.groups_per_step * self.steps_per_publish
        if mode == "wait" and not is_kept:
            raise ConfigError(
                f"schedule.max_staleness is {limit}, but staleness={self.staleness_bound:g} admits {self.window} "
                f"groups at one version, more than {limit + 1} versions consume: waiting cannot keep the bound; use "
                f"max_staleness={math.ceil(self.staleness_bound)}, or on_straggler='reissue'"
            )
        by_order = self.most_versions_by_order
        if mode == "wait" and self.order == "windowed" and by_order is not None and by_order > limit:
            raise ConfigError(
                f"schedule.order_window is {self.order_window}: so many groups may pass a slow one that it is trained "
                f"on {by_order} versions late, more than max_staleness={limit}; use at most "
                f"{self.reach_within(limit)}, or leave it out"
            )
        if mode != "wait" and by_order is not None and by_order <= limit:
            raise ConfigError(
                f"schedule.on_straggler={mode!r} has no effect: with order={self.order!r} and staleness="
                f"{self.staleness_bound:g} no group exceeds max_staleness={limit}; remove it, or use order='completion'"
            )

    def check_filter(self) -> None:
        """Raise `ConfigError` if the filter's settings are not read, or it has nothing to compare."""
        if self.filter == "none":
            for key in ("filter_metric", "filter_patience"):
                if getattr(self, key):
                    raise ConfigError(f"schedule.{key} is only read with filter='zero_variance'; remove it")
        elif self.group_size == 1:
            raise ConfigError(
                "schedule.filter='zero_variance' compares the trajectories of a group, but schedule.group_size is 1; "
                "use at least 2"
            )
