"""Settings of the trainer and the critic."""

from typing import Annotated, Literal

from asyncrl.config.sections.section import LIVE, Count, Decay, Limit, Natural, NonNegative, Positive, Section
from asyncrl.errors import ConfigError


class Lora(Section, frozen=True, kw_only=True):
    """Low-rank adapters, trained instead of the model and merged into it when published."""

    rank: Natural = 0
    """Rank of an adapter; 0 trains the model itself [lora_rank]."""
    alpha: NonNegative = 0.0
    """An adapter is scaled by ``alpha / rank``; 0 takes twice the rank [lora_alpha]."""
    targets: list[str] = []
    """Linear layers with an adapter, such as ``["q_proj", "v_proj"]``; empty: all but the head [target_modules]."""
    path: str = ""
    """
    PEFT adapter directory to start from, whose rank, alpha and layers must be those above; the reference of a KL has
    the adapter too. Empty: adapters start without an effect [lora_adapter_path].
    """

    @property
    def effective_alpha(self) -> float:
        """``alpha``, or the number that its 0 stands for."""
        return self.alpha or 2.0 * self.rank

    def check(self) -> None:
        """Raise `ConfigError` for settings that are not read without a rank."""
        if not self.rank and self != Lora():
            raise ConfigError(
                "trainer.lora.alpha, targets and path are only read with trainer.lora.rank above 0; set it, or remove "
                "them"
            )


class Trainer(Section, frozen=True, kw_only=True):
    """The optimizer (AdamW) and its processes."""

    lr: Annotated[Positive, LIVE] = 1e-6
    """Learning rate after the warm-up. Set live, it is for the steps whose batch is formed from then on."""
    warmup_steps: Natural = 0
    """Optimizer steps of linear warm-up [lr_warmup_steps]."""
    lr_schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant, or a cosine down to ``min_lr_ratio`` [lr_scheduler_type]."""
    min_lr_ratio: NonNegative = 0.0
    """Learning rate at the end of the cosine, as a fraction of ``lr``."""
    beta1: Decay = 0.9
    """Decay of the mean of gradients."""
    beta2: Decay = 0.999
    """Decay of the mean of squared gradients."""
    eps: Positive = 1e-8
    """Added to the root of the mean of squared gradients."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    grad_clip: NonNegative = 1.0
    """Norm to which the gradient is clipped; 0 never clips."""
    mini_batches: Count = 1
    """Updates per pass over a batch, each on a part of whole groups [train_batch_size / ppo_mini_batch_size]."""
    epochs: Count = 1
    """Passes over a batch [ppo_epochs]."""
    ranks: Count = 1
    """
    Processes of each machine that share the model, its gradients and its optimizer state (FSDP2) [n_gpus_per_node].
    """
    shard_size: Limit = 0
    """
    Ranks over which the model is sharded; groups of this many ranks hold a copy of it each (HSDP). 0 or -1: all ranks
    [fsdp_size].
    """
    sequence_parallel: Count = 1
    """
    Adjacent ranks of a machine that share each packed row, for sequences too long for one device (Ulysses): each
    computes a slice of its positions, and attention for a part of the heads. It divides ``ranks`` and the model's
    attention heads; if the heads of keys and values are fewer, they are repeated [ulysses_sequence_parallel_size].
    """
    expert_parallel: bool = False
    """
    Leave each expert of a mixture on the rank that stores it, and send it tokens, instead of gathering the experts of a
    layer on every rank. The ranks that share a copy (``shard_size``) must divide the number of experts
    [expert_model_parallel_size].
    """
    nodes: Count = 1
    """Machines that train together; each runs ``asyncrl-node --role trainer`` with ``ranks`` processes [nnodes]."""
    min_nodes: Natural = 0
    """With several ``nodes``: fewest machines to train with while others are missing; 0 waits for all of them."""
    wait_s: Positive = 60.0
    """Seconds to wait for missing machines before training with fewer of them, if they are at least ``min_nodes``."""
    device: Literal["cpu", "cuda", "npu"] = "cpu"
    """Device of the trainer, one per rank, the first ones available; rollouts get the others [trainer.device]."""
    collective_timeout_s: Positive = 600.0
    """
    Seconds that a rank waits for the others in one collective, and to form their groups; then the trainer starts again.
    A rank that hangs is found much sooner. More is for ranks that save or load for long [nccl_timeout].
    """
    max_tokens_per_micro_batch: Count = 16384
    """
    Tokens of one forward and backward pass on a rank; a shared prompt counts once. The row that ``sequence_parallel``
    ranks share has as many from each of them, so that a rank takes the same memory [ppo_max_token_len_per_gpu].
    """
    gradient_checkpointing: bool | Literal["selective"] = False
    """
    Activations that the backward pass recomputes: with true all but one per layer, with ``"selective"`` all but that
    and what attention and matrix products return [enable_gradient_checkpointing].
    """
    offload: list[Literal["parameters", "moments", "reference", "activations"]] = []
    """
    Parts of the trainer that are on the host between their uses: ``parameters`` of what is trained with their
    gradients, and the optimizer's step with them; the optimizer's ``moments`` alone; the frozen ``reference``;
    ``activations`` that ``gradient_checkpointing`` keeps, the inputs of layers [param_offload / optimizer_offload].
    """
    freeze_vision: bool = False
    """Leave the vision tower of a model that reads pictures as it is [freeze_vision_tower]."""
    lora: Lora = Lora()
    logprob_gap_warn: NonNegative = 0.0
    """
    Warn once if the mean absolute difference of log-probs between sampler and trainer, with the same weights, exceeds
    this many nats in a step; 0 takes 0.0001 for ``model.dtype = "float32"`` and 0.1 for ``"bfloat16"``.
    """
    threads: Count = 1
    """Torch threads of each process."""

    def check_lr(self) -> None:
        """Raise `ConfigError` if the end of the learning rate is not read, or above its beginning."""
        if self.min_lr_ratio and self.lr_schedule == "constant":
            raise ConfigError("trainer.min_lr_ratio is only read with lr_schedule='cosine'; remove it")
        if self.min_lr_ratio > 1:
            raise ConfigError(
                f"trainer.min_lr_ratio is {self.min_lr_ratio:g}: the cosine would end above trainer.lr; use at most 1"
            )

    def check_machines(self) -> None:
        """Raise `ConfigError` if machines and ranks cannot be grouped as the settings say."""
        if self.min_nodes > self.nodes:
            raise ConfigError(
                f"trainer.min_nodes is {self.min_nodes}, more than trainer.nodes = {self.nodes}; use at most as many"
            )
        if self.min_nodes in (0, self.nodes) and self.wait_s != Trainer().wait_s:
            raise ConfigError(
                "trainer.wait_s is only read with trainer.min_nodes between 1 and trainer.nodes - 1: otherwise the "
                "trainer waits for all of its machines; remove it, or set min_nodes"
            )

        fewest = self.ranks * (self.min_nodes or self.nodes)
        if self.shard_size and (self.ranks * self.nodes % self.shard_size or fewest % self.shard_size):
            raise ConfigError(
                f"trainer.shard_size is {self.shard_size}, which does not divide the trainer's {fewest} ranks; use a "
                f"divisor of trainer.ranks = {self.ranks}, or 0 to shard over all ranks"
            )
        if self.ranks % self.sequence_parallel:
            raise ConfigError(
                f"trainer.sequence_parallel is {self.sequence_parallel}, which does not divide the {self.ranks} "
                f"ranks of a machine, which share rows with each other alone; use a divisor of trainer.ranks"
            )
        if self.expert_parallel:
            self._check_expert_parallel(fewest)

    def _check_expert_parallel(self, fewest: int) -> None:
        """Raise `ConfigError` unless ranks share a copy of the model, as many of them with fewer machines."""
        most = self.ranks * self.nodes
        if (self.shard_size or most) == 1:
            raise ConfigError(
                "trainer.expert_parallel spreads experts over the ranks that share one copy of the model, but each "
                "rank has its own; raise trainer.ranks or trainer.shard_size, or remove it"
            )
        if fewest < most and not self.shard_size:
            raise ConfigError(
                f"trainer.expert_parallel with trainer.min_nodes = {self.min_nodes} needs as many ranks for each copy "
                f"of the model with fewer machines; set trainer.shard_size, for example to {self.ranks} (trainer.ranks)"
            )

    def check_offload(self, *, has_reference: bool) -> None:
        """Raise `ConfigError` if ``offload`` names what is not there, or twice."""
        offload = self.offload
        if twice := [name for name in offload if offload.count(name) > 1]:
            raise ConfigError(f"trainer.offload names {twice[0]!r} twice; remove one")
        if "parameters" in offload and "moments" in offload:
            raise ConfigError(
                "trainer.offload names 'moments', which 'parameters' keeps on the host too, because the optimizer "
                "steps there; remove 'moments'"
            )
        if self.expert_parallel and (away := [name for name in offload if name in ("parameters", "reference")]):
            raise ConfigError(
                f"trainer.offload names {away[0]!r}, but with trainer.expert_parallel experts compute where they are "
                f"stored; remove one of them"
            )
        if "reference" in offload and not has_reference:
            raise ConfigError(
                "trainer.offload names 'reference', but without algorithm.kl_coef there is no reference model; remove "
                "it"
            )
        if "activations" in offload and not self.gradient_checkpointing:
            raise ConfigError(
                "trainer.offload names 'activations', the inputs of layers that trainer.gradient_checkpointing "
                "recomputes; set gradient_checkpointing to true or 'selective'"
            )


class Critic(Section, frozen=True, kw_only=True):
    """The value model of ``algorithm.advantage = "gae"``. All other settings are those of ``[trainer]``."""

    path: str = ""
    """Hugging Face model directory to start from; empty takes ``model.path``."""
    lr: Positive = 1e-5
    """Learning rate of the critic."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of the critic."""
    grad_clip: NonNegative = 1.0
    """Norm to which the critic's gradient is clipped; 0 never clips."""
    value_clip: Positive = 0.5
    """Largest change of a prediction from the one before the step that the loss rewards [cliprange_value]."""
