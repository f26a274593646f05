"""Settings of rewards."""

import math

from asyncrl.config.sections.section import Count, Positive, Section
from asyncrl.errors import ConfigError
from asyncrl.plug_in import is_path

POINTWISE = "pointwise"
"""Metric with the reward of ``reward.function``, in place of which ``reward.group`` gives another."""


class RewardPart(Section, frozen=True, kw_only=True):
    """One of several rewards that are added up."""

    name: str
    """Metric that holds this part's reward; ``algorithm.reward_weights`` and ``schedule.filter_metric`` may name it."""
    function: str
    """Built-in name or ``file.py:name``, like ``reward.function``."""
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function."""
    weight: float = 1.0
    """Factor of this part's reward in the sum; with 0 it is only a metric."""
    data_sources: list[str] = []
    """Data sources this part applies to, such as ``openai/gsm8k`` or ``aime*``; empty: all rows."""
    correct: bool = False
    """This part decides whether a completion is correct; if none that judges it has it set, the first that does."""


class Reward(Section, frozen=True, kw_only=True):
    """Rewards of completions."""

    function: str = "auto"
    """
    ``auto`` chooses by the row's data source, and refuses data sources that it does not know; ``gsm8k``, ``math``,
    ``math_dapo``, ``geo3k``, ``code``, ``exact``, ``numeric``, ``format``, ``length``, ``overlong``, ``reasoning_gym``,
    ``remote``, ``reward_model`` (asyncrl/reward/verifiers) are for all rows; ``episode`` takes the word of the
    ``[environment]``; ``file.py:name`` is a custom function of one `VerifierInput`, or with the arguments of verl's
    ``compute_score`` or of TRL's reward functions (``completions``), sync or async, that returns a float or a dict with
    ``score`` [reward.custom_reward_function].
    """
    options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function, checked against its signature at the start."""
    group: str = ""
    """
    ``file.py:name`` of a function of a list of `GroupMember`, all trajectories of one prompt with what ``function``
    says of each, that returns their rewards in this order, a float or a dict with ``score`` each; it may be async. Of
    training alone: held-out completions keep the reward of ``function``. Empty: none.
    """
    group_options: dict[str, str | int | float | bool] = {}
    """Keyword arguments of the function of groups."""
    parts: list[RewardPart] = []
    """Several rewards instead of ``function``; the reward is their weighted sum."""
    workers: Count = 1
    """Processes that run the function, each of which can be killed."""
    timeout_s: Positive = 10.0
    """
    Seconds for one verdict, and of a group for each of its trajectories; a longer one counts as a failure, and its
    worker is killed.
    """
    memory_bytes: Count = 8 << 30
    """Memory of one worker and all that it has started; above it they are killed, and the verdict fails."""
    processes: Count = 256
    """Processes of one worker, with those of the programs it runs; above it they are killed."""
    file_bytes: Count = 1 << 30
    """Size of each file that a worker writes."""

    @property
    def is_custom(self) -> bool:
        """True if code of the user's judges."""
        return any(map(is_path, [self.function, self.group, *(part.function for part in self.parts)]))

    def check(self) -> None:
        """Raise `ConfigError` for the first contradiction between settings of the section."""
        self._check_group()
        if not self.parts:
            return
        plain = Reward()
        if self.function != plain.function or self.options:
            raise ConfigError(
                "reward.function and reward.options are not read when reward.parts is set; make them a part"
            )
        names = [part.name for part in self.parts]
        for place, (name, part) in enumerate(zip(names, self.parts, strict=True)):
            if name in ("", "reward", "score", "correct", "answer") or name in names[:place]:
                raise ConfigError(
                    f"reward.parts[{place}].name is {name!r}: it names a metric and is {'taken' if name else 'empty'}; "
                    f"choose another name"
                )
            if not math.isfinite(part.weight):
                raise ConfigError(f"reward.parts[{place}].weight is {part.weight}: expected a finite number")

    def _check_group(self) -> None:
        if self.group and not is_path(self.group):
            raise ConfigError(f"reward.group is {self.group!r}, expected path/to/file.py:name or package.module:name")
        if self.group_options and not self.group:
            raise ConfigError("reward.group_options is only read with reward.group; name its function, or remove them")
        if self.group and any(part.name == POINTWISE for part in self.parts):
            raise ConfigError(
                f"reward.parts has the name {POINTWISE!r}, the metric that keeps their sum where reward.group gives "
                f"the reward; choose another name"
            )
