"""A run file: all sections together."""

from collections.abc import Iterator
from typing import Any

import msgspec

from asyncrl.config.catalogue import ADVANTAGES
from asyncrl.config.sections.algorithm import Algorithm
from asyncrl.config.sections.broker import Broker, Supervisor, Trackers
from asyncrl.config.sections.data import Data
from asyncrl.config.sections.environment import Environment
from asyncrl.config.sections.evaluation import Checkpoint, Evaluation
from asyncrl.config.sections.models import ServedModel
from asyncrl.config.sections.reward import Reward
from asyncrl.config.sections.rollout import Rollout
from asyncrl.config.sections.run import Model, Run
from asyncrl.config.sections.sampling import SamplingConfig
from asyncrl.config.sections.schedule import Schedule
from asyncrl.config.sections.section import Section
from asyncrl.config.sections.trainer import Critic, Trainer
from asyncrl.config.sections.weights import Weights
from asyncrl.messages.words import Split


class Config(Section, frozen=True, kw_only=True):
    """A run file."""

    run: Run = Run()
    model: Model
    data: Data
    schedule: Schedule = Schedule()
    sampling: SamplingConfig = SamplingConfig()
    rollout: Rollout = Rollout()
    environment: Environment = Environment()
    models: dict[str, ServedModel] = {}
    """Tables ``[models.NAME]``: models that environments, agent programs, tools and rewards may ask."""
    reward: Reward = Reward()
    algorithm: Algorithm = Algorithm()
    trainer: Trainer = Trainer()
    critic: Critic = Critic()
    weights: Weights = Weights()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    trackers: Trackers = Trackers()
    broker: Broker = Broker()
    supervisor: Supervisor = Supervisor()

    @property
    def greedy_per_group(self) -> int:
        """Greedy completions per prompt that serve as a baseline and are not trained on."""
        entry = ADVANTAGES.get(self.algorithm.advantage)
        return int(entry is not None and "baseline" in entry.needs)

    @property
    def least_group(self) -> int:
        """
        Fewest sampled trajectories with which a group goes on when others have failed for good.

        All of them for a custom estimator, which may count on a group's size.
        """
        entry = ADVANTAGES.get(self.algorithm.advantage)
        compares = bool(self.reward.group) or bool(entry and entry.compares_group)
        return 1 + compares if entry else self.schedule.group_size

    @property
    def trajectories_per_group(self) -> int:
        """Trajectories of one group, greedy ones included."""
        return self.schedule.group_size + self.greedy_per_group

    @property
    def verdict_s(self) -> float:
        """Seconds within which a trajectory is judged, or with ``reward.group`` all of a group."""
        calls = 1 + (self.trajectories_per_group if self.reward.group else 0)
        return calls * self.reward.timeout_s

    @property
    def trajectories_per_step(self) -> int:
        """Trajectories of one batch, greedy ones included."""
        return self.schedule.groups_per_step * self.trajectories_per_group

    @property
    def longest_request(self) -> int:
        """Tokens of the longest prompt and the longest completion together."""
        return self.data.max_prompt_tokens + max(self.longest_written("train"), self.longest_written("held_out"))

    @property
    def longest_slot(self) -> int:
        """Positions of a slot of the engine: those that it was told, or of the longest request."""
        return self.rollout.own(self.rollout.entry.max_tokens, 0) or self.longest_request

    def longest_written(self, split: Split) -> int:
        """Most tokens after a prompt: of a completion, or of an episode with those of its environment."""
        if self.environment.is_set:
            return self.environment.max_tokens
        return (split == "held_out" and self.evaluation.max_tokens) or self.sampling.max_tokens

    @property
    def rollout_models(self) -> dict[str, ServedModel]:
        """Models that the code of a rollout may ask, by name."""
        return self.models if self.environment.is_set else {}

    @property
    def reward_models(self) -> dict[str, ServedModel]:
        """Models that the code of a reward node may ask, by name."""
        return self.models if self.reward.is_custom else {}

    @property
    def max_turns(self) -> int:
        """Most turns of an episode; 0 without an environment."""
        return self.environment.max_turns if self.environment.is_set else 0


def to_json(config: Config) -> bytes:
    """Encode a config for the wire."""
    return msgspec.json.encode(config)


def from_json(raw: bytes) -> Config:
    """Decode a config from the wire."""
    return msgspec.json.decode(raw, type=Config)


def leaves(raw: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a nested dict with its full key."""
    for key, value in raw.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value
