"""
What a plan is made of: every number `asyncrl plan` needs, once.

    measured by you                                            decided by you
    lengths   how long completions are                         schedule  as in a run file
    rollout   decode and prefill speed of one replica          devices, rollout.devices: the split
    trainer   training speed                                   search    what else to try
    publish, reward, synchronous

``[[measured]]`` rows are real runs to stand beside the prediction; nothing is ever fitted to them.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.sections import (
    Config,
    Count,
    Data,
    Model,
    Natural,
    NonNegative,
    Positive,
    Run,
    SamplingConfig,
    Schedule,
    Section,
    Seed,
)
from asyncrl.config.sections import Trainer as RunTrainer

Share = Annotated[float, Meta(ge=0, le=1)]
DATA = Data(train="planned")
Measurement = tuple[Annotated[float, Meta(gt=0)], Annotated[float, Meta(gt=0)]]


class LengthNumbers(Section, frozen=True, kw_only=True):
    """
    Completion tokens: ``samples`` of a run, or a lognormal with one number for its middle and one for its spread.

    The middle is ``mean`` or ``median`` (both before the cut), or is fitted to ``synchronous_generate_s``. The spread
    is ``sigma``, or ``p99`` beside a ``median``.
    """

    samples: str = ""
    """The ``samples`` folder of a run, or one file of it; in a file, seen from where that lies."""
    mean: NonNegative = 0.0
    median: NonNegative = 0.0
    p99: NonNegative = 0.0
    sigma: NonNegative = 0.0
    """Standard deviation of the logarithm; 0 makes every completion as long as the median."""
    synchronous_generate_s: NonNegative = 0.0
    """Seconds in which all devices together generated P T groups: the median is chosen so that they would."""
    prompt_share: Share = 0.0
    """Part of the spread that completions of one prompt have in common."""
    max_tokens: Count = 4096
    """Where a lognormal is cut [data.max_response_length]; recorded lengths are what they are."""


class Rollout(Section, frozen=True, kw_only=True):
    """The devices that sample."""

    devices: Count
    """How many of the plan's."""
    devices_per_replica: Count = 1
    """Of one engine [tensor_model_parallel_size]."""
    slots: Count = 64
    """Completions one engine decodes together [max_num_seqs]."""
    decode: list[Measurement]
    """``[running, tokens_per_s]`` of one replica, measured; two points tell how a step grows with its batch."""
    prefill_tokens_per_s: Positive
    """Of one replica."""
    prompt_tokens: Natural = 0
    """Of one prompt; a group pays for it once."""
    kv: Literal["keep", "recompute"] = "recompute"
    """After new weights: prefill what is running again, or go on with the old cache."""


class TrainerSpeed(Section, frozen=True, kw_only=True):
    """A measurement of the trainer: ``tokens_per_s``, or the seconds that so many groups took."""

    devices: Count
    tokens_per_s: NonNegative = 0.0
    """Prompt and completion tokens of all devices together."""
    groups: Natural = 0
    seconds: NonNegative = 0.0


class Trainer(Section, frozen=True, kw_only=True):
    """The devices that train: all that do not sample."""

    speeds: list[TrainerSpeed]
    """One, and twice the devices are twice as fast; more, and what does not scale shows."""


class Publish(Section, frozen=True, kw_only=True):
    """New weights on their way."""

    seconds: NonNegative = 0.0
    """From the trainer to every replica; they decode on meanwhile."""
    pause_s: NonNegative = 0.0
    """Decoding stands still for the swap, beside any prefill."""
    blocks_trainer: bool = False
    """The trainer waits until the weights are live; false lets its next step overlap them, as asyncrl does."""


class Reward(Section, frozen=True, kw_only=True):
    """The verdicts."""

    seconds: NonNegative = 0.0
    """Of one verdict; any number at once."""


class Synchronous(Section, frozen=True, kw_only=True):
    """What the colocated baseline does beside generating and training, for P T groups."""

    other_s: NonNegative = 0.0
    """Resharding, recomputing log-probs, waiting for verdicts."""


class Search(Section, frozen=True, kw_only=True):
    """Other splits and staleness to try; each is a simulation."""

    staleness: list[NonNegative] = []
    """Empty tries the schedule's own."""
    multiple_of: Natural = 0
    """Splits move by so many devices, such as those of one machine; 0 takes ``rollout.devices_per_replica``."""
    publishes: Count = 3
    """Measured in each, fewer than in the plan itself."""


class Horizon(Section, frozen=True, kw_only=True):
    """How much is simulated."""

    publishes: Count = 8
    """Policy versions that are measured..."""
    warm_up: Natural = 3
    """... after so many that are not: the pipeline fills."""
    seed: Seed = 0


class Measured(Section, frozen=True, kw_only=True):
    """A real run to stand beside its prediction."""

    name: str
    groups: Count
    seconds: Positive
    """What it took for so many groups."""
    colocated: bool = False
    """It was the synchronous baseline; the first such row is what ratios refer to."""
    set: dict[str, Any] = {}
    """What is different from the plan, under full keys: ``{"schedule.staleness" = 0.1}``."""


class Plan(Section, frozen=True, kw_only=True):
    """A cluster to be."""

    devices: Annotated[int, Meta(ge=2)]
    """Of rollouts and trainer together; the baseline has all of them for both."""
    lengths: LengthNumbers
    rollout: Rollout
    trainer: Trainer
    publish: Publish = Publish()
    reward: Reward = Reward()
    synchronous: Synchronous = Synchronous()
    schedule: Schedule = Schedule()
    search: Search = Search()
    horizon: Horizon = Horizon()
    assumptions: list[str] = []
    """What was not measured, in words; printed with the result."""
    measured: list[Measured] = []

    @property
    def replicas(self) -> int:
        """Engines that sample."""
        return self.rollout.devices // self.rollout.devices_per_replica

    @property
    def trainer_devices(self) -> int:
        """The rest."""
        return self.devices - self.rollout.devices

    @property
    def groups_per_publish(self) -> int:
        """P T."""
        return self.schedule.groups_per_step * self.schedule.steps_per_publish

    def run_config(self, steps: int) -> Config:
        """A run of so many steps on this schedule, as the broker's rules want to know it."""
        longest = DATA.max_prompt_tokens + self.lengths.max_tokens
        return Config(
            run=Run(steps=steps, seed=self.horizon.seed),
            model=Model(path="planned"),
            data=DATA,
            schedule=self.schedule,
            sampling=SamplingConfig(max_tokens=self.lengths.max_tokens),
            trainer=RunTrainer(max_tokens_per_micro_batch=longest),
        )
