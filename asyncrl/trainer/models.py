"""
Models of a trainer.

    policy      the model in training                                always
    reference   frozen; the policy is regularised towards it         with algorithm.kl_coef
    critic      the value model                                      with algorithm.advantage = "gae"

With several ranks they are sharded, and every call here is collective.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from asyncrl.config.config import Config
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.checkpoints.snapshot import ADAPTERS, OPTIMIZER, Stored
from asyncrl.trainer.model.architecture import (
    check_critic,
    check_lengths,
    check_sequence_parallel,
    read_architecture,
)
from asyncrl.trainer.model.critic import ValueModel
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.model.vision import refuse_critic
from asyncrl.trainer.packing.batch import MicroBatch, collate
from asyncrl.trainer.packing.step import TrainingTrajectory
from asyncrl.trainer.ranks.ranks import Ranks


class Models:
    """
    Models of one rank, loaded and sharded.

    Args:
        model_path: Initial policy.
        base_path: Reference, and initial critic unless ``critic.path`` is set.

    Raises:
        ConfigError: A model cannot be loaded, or not be trained as configured.
    """

    def __init__(self, config: Config, recipe: Recipe, model_path: Path, base_path: Path, ranks: Ranks) -> None:
        trainer, dtype = config.trainer, config.model.dtype
        critic_path = Path(config.critic.path) if config.critic.path else base_path
        has_critic = VALUES in recipe.wanted
        overrides = config.model.overrides
        for setting, path in [("model.path", model_path), ("critic.path", critic_path)][: 1 + has_critic]:
            of_model = {} if setting == "critic.path" and config.critic.path else overrides
            architecture = read_architecture(path, setting, of_model)
            check_sequence_parallel(architecture, ranks.sequence.size, f"{setting}={path}")
            check_lengths(architecture, config.longest_request, f"{setting}={path}")
            if setting == "critic.path":
                check_critic(architecture, f"{setting}={path}")
        self._ranks = ranks
        self._temperature = config.sampling.temperature
        place: dict[str, Any] = {"overrides": overrides, "dtype": dtype, "device": ranks.device, "mesh": ranks.mesh}
        place |= {"expert_parallel": trainer.expert_parallel}
        offload = trainer.offload
        self.num_collated = 0
        """Micro-batches packed so far."""
        self.policy = Policy(
            model_path,
            **place,
            gradient_checkpointing=trainer.gradient_checkpointing,
            freeze_vision=trainer.freeze_vision,
            lora=trainer.lora,
            offload=offload,
            replay_routes=config.rollout.replay_routes,
        )
        if has_critic:
            refuse_critic(self.policy.model, f"model.path={model_path}")
        self.reference: Policy | None = None
        if recipe.has_reference:
            reference_offload = ("parameters",) if "reference" in offload else ()
            start = trainer.lora if trainer.lora.path else None  # the policy starts with it, and so does the reference
            self.reference = Policy(base_path, **place, is_frozen=True, lora=start, offload=reference_offload)
        self.optimizer = Optimizer(
            self.policy.parameters(), trainer, weight_decay=trainer.weight_decay, grad_clip=trainer.grad_clip
        )
        self.critic = ValueModel(config, critic_path, ranks.mesh, device=ranks.device) if has_critic else None

    def collate(self, trajectories: Sequence[TrainingTrajectory]) -> MicroBatch:
        """Pack trajectories as the models read them, pictures included."""
        ranks = self._ranks
        self.num_collated += 1
        return collate(trajectories, device=ranks.device, group=ranks.sequence, processor=self.policy.processor)

    def score(self, batch: MicroBatch, wanted: Collection[str]) -> dict[str, Tensor]:
        """Score N completion tokens with policy, reference and critic: [N] for each name in ``wanted``."""
        found: dict[str, Tensor | None] = {}
        if LOGPROBS in wanted or SUM_PI_SQUARED in wanted:
            scores = self.policy.score(batch, temperature=self._temperature, sum_pi_squared=SUM_PI_SQUARED in wanted)
            found |= {LOGPROBS: scores.logprobs, SUM_PI_SQUARED: scores.sum_pi_squared}
        if self.reference is not None:
            found[REFERENCE] = self.reference.score(batch, temperature=self._temperature).logprobs
        if self.critic is not None:
            found[VALUES] = self.critic.values(batch)
        return {name: values for name, values in found.items() if name in wanted and values is not None}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Tensors of a checkpoint besides the policy's weights, by file name. Borrowed."""
        found = {OPTIMIZER: self.optimizer.state()}
        if self.policy.adapters is not None:
            found[ADAPTERS] = {name: weight.detach() for name, weight in self.policy.parameters().items()}
        return found | (self.critic.tensors() if self.critic else {})

    def memory(self) -> tuple[list[Tensor], list[Tensor]]:
        """All tensors between two steps: those with values, and gradients, which are zero. Borrowed."""
        owners = [one for one in (self.policy, self.reference, self.optimizer, self.critic) if one is not None]
        kept = [tensor for owner in owners for tensor in owner.memory()]
        return kept, self.optimizer.gradients() + (self.critic.optimizer.gradients() if self.critic else [])

    def restore(self, tensors: Mapping[str, Stored]) -> None:
        """Read this rank's rows of `tensors`; raises `LedgerError` if they are not of these models."""
        if self.policy.adapters is not None:
            self.policy.adapters.restore(tensors.get(ADAPTERS, {}))
        self.optimizer.restore(tensors[OPTIMIZER])
        if self.critic:
            self.critic.restore(tensors)
