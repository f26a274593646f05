"""
Sections of a plan file, the input of `asyncrl plan`.

    measured by the user                                       chosen by the user
    lengths   completion lengths                               schedule  as in a run file
    rollout   decode and prefill speed of one replica          devices, rollout.devices: the split
    trainer   training speed                                   search    other splits and staleness to try
    publish, reward, synchronous

``[[measured]]`` rows are real runs that are reported beside their predictions; nothing is fitted to them.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.config.config import Config
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.run import Model, Run
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.config.sections.schedule import Schedule
from asyncrl.config.sections.section import Count, Natural, NonNegative, Positive, Section, Seed
from asyncrl.config.sections.trainer import Trainer as RunTrainer

Share = Annotated[float, Meta(ge=0, le=1)]
LONGEST = 1 << 24
"""Limit on completions whose lengths are recorded, and are not known to the plan."""
Measurement = tuple[Annotated[float, Meta(gt=0)], Annotated[float, Meta(gt=0)]]


class LengthNumbers(Section, frozen=True, kw_only=True):
    """
    Completion tokens: recorded ``samples`` of a run, or a lognormal given by its location and its spread.

    The location is ``mean`` or ``median`` (before clipping), or is fitted to ``synchronous_generate_s``. The spread is
    ``sigma``, or ``p99`` together with ``median``.
    """

    samples: str = ""
    """The ``samples`` folder of a run, or one file of it; in a plan file, relative to that file."""
    mean: NonNegative = 0.0
    median: NonNegative = 0.0
    p99: NonNegative = 0.0
    sigma: NonNegative = 0.0
    """Standard deviation of the logarithm; 0 gives every completion the median length."""
    synchronous_generate_s: NonNegative = 0.0
    """Measured seconds in which all devices together generated P T groups; the median is fitted to it."""
    prompt_share: Share = 0.0
    """Share of the log variance that completions of one prompt have in common."""
    max_tokens: Count = 4096
    """Upper bound of a lognormal [data.max_response_length]; recorded lengths are not clipped."""


class PlanRollout(Section, frozen=True, kw_only=True):
    """The rollout devices and their speed."""

    devices: Count
    """Rollout devices; the plan's other devices train."""
    devices_per_replica: Count = 1
    """Devices of one engine [tensor_model_parallel_size]."""
    slots: Count = 64
    """Completions that one engine decodes at once [max_num_seqs]."""
    decode: list[Measurement]
    """Measured ``[running, tokens_per_s]`` of one replica; two points show how step time grows with the batch."""
    prefill_tokens_per_s: Positive
    """Prefill speed of one replica."""
    prompt_tokens: Natural = 0
    """Tokens of one prompt; prefilled once per group."""
    kv: Literal["keep", "recompute"] = "recompute"
    """After new weights: prefill the running completions again, or continue with the old KV cache."""


class TrainerSpeed(Section, frozen=True, kw_only=True):
    """Measured training speed: ``tokens_per_s``, or ``groups`` and the ``seconds`` they took."""

    devices: Count
    tokens_per_s: NonNegative = 0.0
    """Prompt and completion tokens per second of all ``devices`` together."""
    groups: Natural = 0
    seconds: NonNegative = 0.0


class PlanTrainer(Section, frozen=True, kw_only=True):
    speeds: list[TrainerSpeed]
    """With one point, speed is proportional to devices; with several, part of the time may not scale."""


class Publish(Section, frozen=True, kw_only=True):
    """Transfer of new weights to the rollouts."""

    seconds: NonNegative = 0.0
    """Seconds from the trainer to every replica, which continue to decode."""
    pause_s: NonNegative = 0.0
    """Seconds that decoding pauses for the swap, besides any prefill."""
    blocks_trainer: bool = False
    """True: the trainer waits until the weights are live. False: its next step overlaps the transfer, as in asyncrl."""


class PlanReward(Section, frozen=True, kw_only=True):
    seconds: NonNegative = 0.0
    """Seconds of one verifier call."""
    at_once: Natural = 0
    """Calls that run at once, while others wait; 0 runs any number."""


class Synchronous(Section, frozen=True, kw_only=True):
    """Further work of the colocated baseline, besides generating and training, for P T groups."""

    other_s: NonNegative = 0.0
    """Seconds for resharding, recomputing log-probs and waiting for rewards."""


class PlanSearch(Section, frozen=True, kw_only=True):
    """Other splits and staleness values to simulate."""

    staleness: list[NonNegative] = []
    """Empty tries only the schedule's own."""
    multiple_of: Natural = 0
    """Step between splits, such as the devices of one machine; 0 takes ``rollout.devices_per_replica``."""
    publishes: Count = 3
    """Policy versions measured for each, fewer than for the plan itself."""


class Horizon(Section, frozen=True, kw_only=True):
    publishes: Count = 8
    """Policy versions that are measured."""
    warm_up: Natural = 3
    """Policy versions before that, which fill the pipeline and are not measured."""
    seed: Seed = 0


class MeasuredRun(Section, frozen=True, kw_only=True):
    """A real run, reported beside its prediction."""

    name: str
    groups: Count
    seconds: Positive
    """Seconds that the run took for ``groups``."""
    colocated: bool = False
    """True for the synchronous baseline; ratios refer to the first such row."""
    set: dict[str, Any] = {}
    """Differences from the plan, by full key: ``{"schedule.staleness" = 0.1}``."""


class Plan(Section, frozen=True, kw_only=True):
    """Contents of a plan file."""

    devices: Annotated[int, Meta(ge=2)]
    """Devices of rollouts and trainer together; the baseline uses all of them for both."""
    lengths: LengthNumbers
    rollout: PlanRollout
    trainer: PlanTrainer
    publish: Publish = Publish()
    reward: PlanReward = PlanReward()
    synchronous: Synchronous = Synchronous()
    schedule: Schedule = Schedule()
    search: PlanSearch = PlanSearch()
    horizon: Horizon = Horizon()
    assumptions: list[str] = []
    """Sentences on what was assumed rather than measured; printed with the result."""
    measured: list[MeasuredRun] = []

    @property
    def replicas(self) -> int:
        return self.rollout.devices // self.rollout.devices_per_replica

    @property
    def trainer_devices(self) -> int:
        return self.devices - self.rollout.devices

    @property
    def groups_per_publish(self) -> int:
        """P T: groups trained between two policy versions."""
        return self.schedule.groups_per_step * self.schedule.steps_per_publish

    def versions_with(self, completions: int) -> int:
        """Policy versions in which so many completions are trained."""
        return -(-completions // (self.groups_per_publish * self.schedule.group_size))

    def run_config(self, steps: int) -> Config:
        """Config of a run of ``steps`` steps with this schedule, for the broker's scheduler."""
        data = Data(train="planned", max_prompt_tokens=max(self.rollout.prompt_tokens, 1))
        max_tokens = LONGEST if self.lengths.samples else self.lengths.max_tokens
        return Config(
            run=Run(steps=steps, seed=self.horizon.seed),
            model=Model(path="planned"),
            data=data,
            schedule=self.schedule,
            sampling=SamplingConfig(max_tokens=max_tokens),
            trainer=RunTrainer(max_tokens_per_micro_batch=data.max_prompt_tokens + max_tokens),
        )
