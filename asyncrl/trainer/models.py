"""
The networks of a trainer, and what there is to save of them.

    policy      in training                                          always
    reference   the policy it is held to; never changes              with algorithm.kl_coef
    critic      what to expect from where the policy stands          with algorithm.advantage = "gae"

Spread over ranks they are used together: every call here is collective then.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from asyncrl.config.sections import Config
from asyncrl.trainer.algorithm.recipe import LOGPROBS, REFERENCE, SUM_PI_SQUARED, VALUES, Recipe
from asyncrl.trainer.checkpoints.snapshot import OPTIMIZER
from asyncrl.trainer.model.critic import Critic
from asyncrl.trainer.model.optimizer import Optimizer
from asyncrl.trainer.model.policy import Policy
from asyncrl.trainer.packing.batch import MicroBatch
from asyncrl.trainer.ranks.ranks import Ranks

ADAPTERS = "adapters"
"""What `tensors` calls those of LoRA: in the checkpoint's model they are merged."""


class Models:
    """
    Loaded, and spread over ``ranks``.

    Args:
        config: Its ``model``, ``trainer``, ``critic`` and ``sampling.temperature`` are read.
        model_path: Where the policy starts.
        base_path: The reference, and where a critic starts that has no path of its own.

    Raises:
        ConfigError: One of them cannot be loaded, or not be trained as configured.
    """

    def __init__(self, config: Config, recipe: Recipe, model_path: Path, base_path: Path, ranks: Ranks) -> None:
        trainer, dtype = config.trainer, config.model.dtype
        self._temperature = config.sampling.temperature
        self._has_adapters = trainer.lora.rank > 0
        self.policy = Policy(
            model_path,
            dtype=dtype,
            device=ranks.device,
            gradient_checkpointing=trainer.gradient_checkpointing,
            lora=trainer.lora,
        )
        self.reference = Policy(base_path, dtype=dtype, device=ranks.device) if recipe.has_reference else None
        if ranks.mesh is not None:
            for model in filter(None, (self.policy, self.reference)):
                model.shard(ranks.mesh)
        self.descent = Optimizer(
            self.policy.parameters(), trainer, weight_decay=trainer.weight_decay, grad_clip=trainer.grad_clip
        )
        critic_path = Path(config.critic.path) if config.critic.path else base_path
        self.critic = Critic(config, critic_path, ranks.mesh, device=ranks.device) if VALUES in recipe.wanted else None

    def look(self, batch: MicroBatch, wanted: Collection[str]) -> dict[str, Tensor]:
        """
        What they say of N tokens as they are now.

        Args:
            wanted: Names of columns, by `Recipe.wanted`.

        Returns:
            [N] of each name.
        """
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
        """What a checkpoint holds beside the policy's weights, by the name of its file. Borrowed."""
        found = {OPTIMIZER: self.descent.state()}
        if self._has_adapters:
            found[ADAPTERS] = {name: weight.detach() for name, weight in self.policy.parameters().items()}
        return found | (self.critic.tensors() if self.critic else {})

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """
        Take back what `tensors` gave, whole. Copied.

        Raises:
            LedgerError: They are not of these models.
        """
        if self._has_adapters:
            self.policy.restore_adapters(tensors.get(ADAPTERS, {}))
        self.descent.restore(tensors[OPTIMIZER])
        if self.critic:
            self.critic.restore(tensors)
